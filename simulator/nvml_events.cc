// Events: programs register GPUs with a set, and wait until one of them has an XID error.
#include <ctime>

#include "simulator/nvml.h"

using namespace simulator;

namespace {

constexpr unsigned long long kSingleBitError = 1, kDoubleBitError = 2, kXid = 8;
constexpr unsigned kNoInstance = 0xffffffff;
constexpr unsigned kSets = 64;

unsigned long long event_types(const Model& model) {
  return model.ecc == Ecc::on ? kXid | kDoubleBitError | kSingleBitError : kXid;
}

}  // namespace

// In place of memory that a program could free twice.
struct nvmlEventSet_st {
  std::atomic<bool> used;
  std::atomic<uint64_t> gpus;            // that wait for XID errors: a bit each
  std::atomic<uint32_t> seen[kMaxGpus];  // how many XID errors of each have been told
};

namespace {

nvmlEventSet_st g_sets[kSets];

bool is_set(nvmlEventSet_t set) {
  const uintptr_t offset = reinterpret_cast<uintptr_t>(set) - reinterpret_cast<uintptr_t>(g_sets);
  return offset < sizeof g_sets && offset % sizeof *g_sets == 0 && set->used;
}

// The next event of a GPU of this set, which other threads may wait for too.
bool take_event(const Machine& machine, nvmlEventSet_t set, uint32_t gpu, nvmlEventData_t* out) {
  const GpuState& state = machine.gpus[gpu];
  const uint32_t count = state.xid_count.load(std::memory_order_acquire);
  uint32_t seen = set->seen[gpu].load();
  // Events that weren't waited for in time are lost.
  while (seen != count) {
    const uint32_t next = count - seen > kXids ? count - kXids : seen;
    if (!set->seen[gpu].compare_exchange_weak(seen, next + 1)) continue;
    *out = {handle_of(gpu, 0), kXid, state.xids[next % kXids], kNoInstance, kNoInstance};
    return true;
  }
  return false;
}

nvmlReturn_t look_for_event(const Machine& machine, nvmlEventSet_t set, nvmlEventData_t* out) {
  const uint64_t gpus = set->gpus;
  for (uint32_t gpu = 0; gpu < machine.gpu_count; ++gpu)
    if (gpus >> gpu & 1 && take_event(machine, set, gpu, out)) return NVML_SUCCESS;
  for (uint32_t gpu = 0; gpu < machine.gpu_count; ++gpu) {
    if (!(gpus >> gpu & 1)) continue;
    if (health_of(machine, gpu) & kLost) return NVML_ERROR_GPU_IS_LOST;
    if (const uint32_t injected = injected_error(machine, gpu, Call::events))
      return static_cast<nvmlReturn_t>(injected);
  }
  return NVML_ERROR_TIMEOUT;
}

nvmlReturn_t wait_for_event(nvmlEventSet_t set, nvmlEventData_t* out, unsigned timeout_ms) {
  const Machine* machine = initialized_machine();
  if (!machine) return NVML_ERROR_UNINITIALIZED;
  if (!is_set(set) || !out) return NVML_ERROR_INVALID_ARGUMENT;
  stall(*machine, Call::events);
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const timespec end = {
      now.tv_sec + static_cast<time_t>(timeout_ms / 1000) + (now.tv_nsec + timeout_ms % 1000 * 1000000L) / 1000000000,
      (now.tv_nsec + timeout_ms % 1000 * 1000000L) % 1000000000};
  for (;;) {
    const uint32_t count = machine->header->event_count.load(std::memory_order_acquire);
    const nvmlReturn_t result = look_for_event(*machine, set, out);
    if (result != NVML_ERROR_TIMEOUT || !sleep_until_event(*machine, count, end)) return result;
  }
}

}  // namespace

NVML_GETTER(nvmlDeviceGetSupportedEventTypes, unsigned long long, events, oldest, event_types(q.model()))

NVML_EXPORT nvmlEventSetCreate(nvmlEventSet_t* out) {
  if (!initialized_machine()) return NVML_ERROR_UNINITIALIZED;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  for (nvmlEventSet_st& set : g_sets) {
    bool used = false;
    if (!set.used.compare_exchange_strong(used, true)) continue;
    set.gpus = 0;
    *out = &set;
    return NVML_SUCCESS;
  }
  return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

NVML_EXPORT nvmlEventSetFree(nvmlEventSet_t set) {
  if (!initialized_machine()) return NVML_ERROR_UNINITIALIZED;
  if (!is_set(set)) return NVML_ERROR_INVALID_ARGUMENT;
  set->used = false;
  return NVML_SUCCESS;
}

// Errors of before are no events.
NVML_EXPORT nvmlDeviceRegisterEvents(nvmlDevice_t handle, unsigned long long types, nvmlEventSet_t set) {
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::events, set);
  if (result != NVML_SUCCESS) return result;
  if (!is_set(set)) return NVML_ERROR_INVALID_ARGUMENT;
  if (types & ~event_types(question.model())) return NVML_ERROR_NOT_SUPPORTED;
  if (!(types & kXid)) return NVML_SUCCESS;
  const uint64_t bit = uint64_t{1} << question.device.gpu;
  if (set->gpus & bit) return NVML_SUCCESS;
  set->seen[question.device.gpu] = question.state().xid_count.load(std::memory_order_acquire);
  set->gpus |= bit;
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t* out, unsigned timeout_ms) {
  const Machine* machine = initialized_machine();
  if (machine && !driver_has(*machine, Symbols::old)) return NVML_ERROR_FUNCTION_NOT_FOUND;
  return wait_for_event(set, out, timeout_ms);
}

// Before there were MIG instances, the structure ended before them.
NVML_EXPORT nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_v1_t* out, unsigned timeout_ms) {
  nvmlEventData_t event;
  const nvmlReturn_t result = wait_for_event(set, out ? &event : nullptr, timeout_ms);
  if (result == NVML_SUCCESS) *out = {event.device, event.eventType, event.eventData};
  return result;
}
