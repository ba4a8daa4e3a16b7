// Registers the bindings, nothing else.
#include "bindings/bindings.h"

namespace {

Napi::Object init(Napi::Env env, Napi::Object exports) {
  gpu_owner::bindings::add_cuda(env, exports);
  gpu_owner::bindings::add_directory(env, exports);
  gpu_owner::bindings::add_driver(env, exports);
  gpu_owner::bindings::add_wait_queue(env, exports);
  gpu_owner::bindings::add_locks(env, exports);
  gpu_owner::bindings::add_process(env, exports);
  gpu_owner::bindings::add_system(env, exports);
  return exports;
}

}  // namespace

NODE_API_MODULE(gpu_owner, init)
