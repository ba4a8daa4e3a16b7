#include <errno.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "locks/heartbeat.h"
#include "locks/held.h"
#include "locks/queue_slots.h"
#include "locks/wait_queue.h"

namespace gpu_owner::bindings {
namespace {

// queueJoin(descriptor) -> slot or -errno
Napi::Value join_queue(const Napi::CallbackInfo& info) {
  const int64_t slot = locks::join_queue(integer(info[0]));
  if (slot >= 0) locks::note_held(integer(info[0]));
  return number(info, static_cast<double>(slot));
}

// queueSlots(descriptor, from, to) -> the slots that are taken, in order; to = 0: to the end. null: too many for a wait
// queue of waiters
Napi::Value queue_slots(const Napi::CallbackInfo& info) {
  std::vector<int64_t> slots;
  if (locks::taken_slots(integer(info[0]), long_integer(info[1]), long_integer(info[2]), slots) == E2BIG) {
    return info.Env().Null();
  }
  auto array = Napi::Array::New(info.Env(), slots.size());
  for (size_t i = 0; i < slots.size(); i++) array.Set(i, number(info, static_cast<double>(slots[i])));
  return array;
}

// queueIsAlive(descriptor, offset, timeout) -> whether the heartbeat there is younger than `timeout` milliseconds
Napi::Value queue_is_alive(const Napi::CallbackInfo& info) {
  return Napi::Boolean::New(info.Env(),
                            locks::is_alive(integer(info[0]), long_integer(info[1]), long_integer(info[2])));
}

// queueEndStart(descriptor): lets other waiters start Node.js
Napi::Value end_start(const Napi::CallbackInfo& info) {
  locks::end_start(integer(info[0]));
  return info.Env().Undefined();
}

// A heartbeat, and the watch on those of others, told to JavaScript through a thread-safe function.
class Heartbeat : public Napi::ObjectWrap<Heartbeat> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(env, "Heartbeat",
                       {InstanceMethod<&Heartbeat::watch>("watch"), InstanceMethod<&Heartbeat::stop>("end")});
  }

  // new Heartbeat(descriptor, offset, period, timeout, told(changed: boolean)). Keeps the event loop alive until
  // end().
  explicit Heartbeat(const Napi::CallbackInfo& info) : Napi::ObjectWrap<Heartbeat>(info), env_(info.Env()) {
    function_ = Napi::ThreadSafeFunction::New(info.Env(), info[4].As<Napi::Function>(), "gpu-owner heartbeat", 0, 1);
    heartbeat_ = locks::Heartbeat::start(integer(info[0]), long_integer(info[1]), long_integer(info[2]),
                                         long_integer(info[3]), tell, this);
    if (heartbeat_ == nullptr) {
      function_.Release();
      return;
    }
    Ref();  // until the end
    // Added after the function's own hook, so it runs before that one: the thread is gone when the function goes.
    napi_add_env_cleanup_hook(env_, clean_up, this);
  }

 private:
  // On the heartbeat's thread.
  static void tell(void* context, locks::Heartbeat::News news) {
    auto* self = static_cast<Heartbeat*>(context);
    const bool changed = news == locks::Heartbeat::News::changed;
    self->function_.NonBlockingCall(
        [changed](Napi::Env env, Napi::Function told) { told.Call({Napi::Boolean::New(env, changed)}); });
  }

  static void clean_up(void* context) {
    auto* self = static_cast<Heartbeat*>(context);
    self->heartbeat_->end();
    self->heartbeat_ = nullptr;
  }

  // watch(slots, leases, quiet, bookings): offsets, descriptors (closed by the heartbeat), milliseconds, as of when
  // bookings are known
  Napi::Value watch(const Napi::CallbackInfo& info) {
    locks::Heartbeat::Watch watch;
    const auto slots = info[0].As<Napi::Array>();
    for (uint32_t i = 0; i < slots.Length(); i++) watch.slots.push_back(long_integer(slots.Get(i)));
    for (const int lease : integers(info[1])) watch.leases.emplace_back(lease);
    watch.quiet = long_integer(info[2]);
    watch.bookings = long_integer(info[3]);
    if (heartbeat_ != nullptr) heartbeat_->watch(std::move(watch));
    return info.Env().Undefined();
  }

  Napi::Value stop(const Napi::CallbackInfo& info) {
    if (heartbeat_ != nullptr) {
      napi_remove_env_cleanup_hook(env_, clean_up, this);
      heartbeat_->end();
      heartbeat_ = nullptr;
      function_.Release();
      Unref();
    }
    return info.Env().Undefined();
  }

  napi_env env_;
  Napi::ThreadSafeFunction function_;
  locks::Heartbeat* heartbeat_ = nullptr;
};

}  // namespace

void add_wait_queue(Napi::Env env, Napi::Object exports) {
  exports.Set("queueJoin", Napi::Function::New<join_queue>(env));
  exports.Set("queueSlots", Napi::Function::New<queue_slots>(env));
  exports.Set("queueEndStart", Napi::Function::New<end_start>(env));
  exports.Set("queueIsAlive", Napi::Function::New<queue_is_alive>(env));
  exports.Set("Heartbeat", Heartbeat::define(env));
}

}  // namespace gpu_owner::bindings
