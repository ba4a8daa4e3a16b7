#include "cuda/placeholder.h"

#include <cstring>

namespace gpu_owner::cuda {
namespace {

bool begins(const std::string& text, const char* with) { return text.compare(0, strlen(with), with) == 0; }

// "GPU-8-4-4-4-12", "MIG-…" or, on a Jetson, "8-4-4-4-12" as the digits that CUDA knows. Drivers before R470 call an
// instance "MIG-GPU-8-4-4-4-12/gi/ci", and their CUDA gives it the UUID of its GPU.
std::string digits_of(const std::string& uuid) {
  if (begins(uuid, "MIG-GPU-")) return uuid.substr(8, uuid.find('/') - 8);
  return begins(uuid, "GPU-") || begins(uuid, "MIG-") ? uuid.substr(4) : uuid;
}

}  // namespace

Placeholder::Failure Placeholder::take(const Library& library, const std::vector<std::string>& uuids, size_t bytes) {
  int code = library.init();
  if (code != SUCCESS) return {code, "cuInit", ""};
  int count = 0;
  code = library.device_count(count);
  if (code != SUCCESS) return {code, "cuDeviceGetCount", ""};
  struct Seen {
    Device device;
    std::string digits;
  };
  std::vector<Seen> seen;
  for (int ordinal = 0; ordinal < count; ordinal++) {
    Seen one = {};
    code = library.device(ordinal, one.device);
    // Before R396, CUDA doesn't know UUIDs. A process to which it shows as many GPUs as wanted was shown these.
    if (code == SUCCESS && !library.has_uuids() && static_cast<size_t>(count) == uuids.size()) {
      one.digits = digits_of(uuids[static_cast<size_t>(ordinal)]);
    } else if (code == SUCCESS) {
      code = library.uuid(one.device, one.digits);
    }
    if (code != SUCCESS) return {code, "cuDeviceGetUuid", ""};
    seen.push_back(one);
  }
  for (const std::string& uuid : uuids) {
    const std::string digits = digits_of(uuid);
    const Seen* found = nullptr;
    for (const Seen& one : seen) {
      if (one.digits == digits) found = &one;
    }
    // Before R570, CUDA shows a process the first of several MIG instances only.
    if (found == nullptr && !held_.empty() && begins(uuid, "MIG-")) {
      hidden_++;
      continue;
    }
    Failure failure = {SUCCESS, "", uuid};
    Held held = {};
    if (found == nullptr) {
      failure.code = ERROR_INVALID_DEVICE;
      failure.stage = "uuid";
    } else {
      held.device = found->device;
      failure.code = library.retain_primary(held.device, held.context);
      failure.stage = "cuDevicePrimaryCtxRetain";
      if (failure.code == SUCCESS) {
        failure.code = library.allocate(held.context, bytes, held.pointer);
        failure.stage = "cuMemAlloc";
        if (failure.code != SUCCESS) library.release_primary(held.device);
      }
    }
    if (failure.code != SUCCESS) {
      release(library);
      return failure;
    }
    held_.push_back(held);
  }
  return {};
}

void Placeholder::release(const Library& library) {
  for (const Held& held : held_) {
    library.free(held.context, held.pointer);
    library.release_primary(held.device);
  }
  held_.clear();
  hidden_ = 0;
}

}  // namespace gpu_owner::cuda
