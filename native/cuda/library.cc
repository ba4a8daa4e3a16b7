#include "cuda/library.h"

#include <cstdio>

#include "dl/search.h"

namespace gpu_owner::cuda {
namespace {

constexpr const char* kSoname = "libcuda.so.1";

template <typename Function, typename... Arguments>
Code call(Function function, Arguments... arguments) {
  return function != nullptr ? static_cast<Code>(function(arguments...)) : ERROR_NOT_FOUND;
}

}  // namespace

bool Library::load(const std::string& path) {
  if (opened_.handle != nullptr) return missing_.empty();
  opened_ = dl::open_first(path.empty() ? dl::driver_library_candidates(kSoname) : std::vector<std::string>{path});
  if (opened_.handle == nullptr) return false;
  const auto resolve = [this](auto& function, const char* name, const char* older = nullptr) {
    return dl::resolve(opened_.handle, name, function) ||
           (older != nullptr && dl::resolve(opened_.handle, older, function));
  };
  const auto need = [&](auto& function, const char* name, const char* older = nullptr) {
    if (!resolve(function, name, older) && missing_.empty()) missing_ = name;
  };
  need(init_, "cuInit");
  resolve(version_, "cuDriverGetVersion");
  need(count_, "cuDeviceGetCount");
  need(device_, "cuDeviceGet");
  resolve(uuid_, "cuDeviceGetUuid_v2", "cuDeviceGetUuid");
  need(retain_, "cuDevicePrimaryCtxRetain");
  need(release_, "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease");
  need(push_, "cuCtxPushCurrent_v2", "cuCtxPushCurrent");
  need(pop_, "cuCtxPopCurrent_v2", "cuCtxPopCurrent");
  need(allocate_, "cuMemAlloc_v2", "cuMemAlloc");
  need(free_, "cuMemFree_v2", "cuMemFree");
  return missing_.empty();
}

int Library::supported_version() const {
  int version = 0;
  return call(version_, &version) == SUCCESS ? version : 0;
}

Code Library::init() const { return call(init_, 0u); }
Code Library::device_count(int& count) const { return call(count_, &count); }
Code Library::device(int ordinal, Device& device) const { return call(device_, &device, ordinal); }

Code Library::uuid(Device device, std::string& text) const {
  Uuid uuid = {};
  const Code code = call(uuid_, &uuid, device);
  if (code != SUCCESS) return code;
  text.clear();
  for (int i = 0; i < 16; i++) {
    char digits[4];
    snprintf(digits, sizeof digits, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid.bytes[i]);
    text += digits;
  }
  return code;
}

Code Library::retain_primary(Device device, Context& context) const { return call(retain_, &context, device); }
Code Library::release_primary(Device device) const { return call(release_, device); }

template <typename Use>
Code Library::with_current(Context context, Use use) const {
  const Code pushed = call(push_, context);
  if (pushed != SUCCESS) return pushed;
  const Code code = use();
  Context popped = nullptr;
  call(pop_, &popped);
  return code;
}

Code Library::allocate(Context context, size_t bytes, Pointer& pointer) const {
  return with_current(context, [&] { return call(allocate_, &pointer, bytes); });
}

Code Library::free(Context context, Pointer pointer) const {
  return with_current(context, [&] { return call(free_, pointer); });
}

State state(const std::string& path) {
  void* handle = dl::already_loaded(path.empty() ? kSoname : path);
  if (handle == nullptr) return State::not_loaded;
  int (*count)(int*) = nullptr;
  int devices = 0;
  if (!dl::resolve(handle, "cuDeviceGetCount", count)) return State::loaded;
  const int code = count(&devices);
  return code == ERROR_NOT_INITIALIZED || code == ERROR_STUB_LIBRARY ? State::loaded : State::initialized;
}

}  // namespace gpu_owner::cuda
