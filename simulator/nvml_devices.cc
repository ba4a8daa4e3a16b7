// Handles, and what identifies a GPU.
#include <atomic>
#include <cstdio>
#include <cstring>

#include "simulator/nvml.h"

namespace simulator {
namespace {

// A handle is an address in here; nothing is ever stored.
constexpr size_t kHandleSize = 16;
alignas(16) char g_handles[kMaxGpus * kUnits * kHandleSize];

std::atomic<uint64_t> g_attached{0};

nvmlReturn_t count(unsigned* out, bool without_permission) {
  const Machine* machine = initialized_machine();
  if (!machine) return NVML_ERROR_UNINITIALIZED;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  stall(*machine, Call::count);
  if (const uint32_t injected = injected_error(*machine, Call::count)) return static_cast<nvmlReturn_t>(injected);
  *out = 0;
  for (uint32_t gpu = 0; gpu < machine->gpu_count; ++gpu)
    if (without_permission || !(health_of(*machine, gpu) & kNoPermission)) ++*out;
  return NVML_SUCCESS;
}

}  // namespace

nvmlDevice_t handle_of(uint32_t gpu, uint32_t unit) {
  return reinterpret_cast<nvmlDevice_t>(g_handles + (gpu * kUnits + unit) * kHandleSize);
}

// The first handle of a GPU in a process attaches it, which takes long without persistence mode.
nvmlReturn_t give_handle(const Machine& machine, uint32_t gpu, nvmlDevice_t* out) {
  stall(machine, gpu, Call::handle);
  const nvmlReturn_t health = health_error(machine, gpu);
  if (health != NVML_SUCCESS) return health;
  if (const uint32_t injected = injected_error(machine, gpu, Call::handle)) return static_cast<nvmlReturn_t>(injected);
  const uint64_t bit = uint64_t{1} << gpu;
  if (!(g_attached.load(std::memory_order_relaxed) & bit)) {
    stall(machine, gpu, Call::attach);
    g_attached.fetch_or(bit);
  }
  *out = handle_of(gpu, 0);
  return NVML_SUCCESS;
}

bool decode_handle(const Machine& machine, nvmlDevice_t handle, Device* out) {
  const uintptr_t offset = reinterpret_cast<uintptr_t>(handle) - reinterpret_cast<uintptr_t>(g_handles);
  if (offset >= sizeof g_handles || offset % kHandleSize) return false;
  const uint32_t gpu = static_cast<uint32_t>(offset / kHandleSize / kUnits);
  const uint32_t unit = static_cast<uint32_t>(offset / kHandleSize % kUnits);
  if (gpu >= machine.gpu_count) return false;
  if (unit > 0 && !instance_exists(machine, gpu, unit)) return false;
  *out = {gpu, unit};
  return true;
}

}  // namespace simulator

using namespace simulator;

NVML_EXPORT nvmlDeviceGetCount_v2(unsigned* out) { return count(out, true); }
NVML_EXPORT nvmlDeviceGetCount(unsigned* out) { return count(out, false); }

NVML_EXPORT nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* out) {
  const Machine* machine = initialized_machine();
  if (!machine) return NVML_ERROR_UNINITIALIZED;
  if (!out || index >= machine->gpu_count) return NVML_ERROR_INVALID_ARGUMENT;
  return give_handle(*machine, index, out);
}

// The old function leaves out the GPUs that it may not open, and so numbers the others differently.
NVML_EXPORT nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t* out) {
  const Machine* machine = initialized_machine();
  if (!machine) return NVML_ERROR_UNINITIALIZED;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  for (uint32_t gpu = 0; gpu < machine->gpu_count; ++gpu)
    if (!(health_of(*machine, gpu) & kNoPermission) && index-- == 0) return give_handle(*machine, gpu, out);
  return NVML_ERROR_INVALID_ARGUMENT;
}

NVML_EXPORT nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* out) {
  const Machine* machine = initialized_machine();
  if (!machine) return NVML_ERROR_UNINITIALIZED;
  if (!uuid || !out) return NVML_ERROR_INVALID_ARGUMENT;
  for (uint32_t gpu = 0; gpu < machine->gpu_count; ++gpu) {
    const Gpu& description = machine->description.gpus[gpu];
    if (strcmp(description.uuid, uuid) == 0) return give_handle(*machine, gpu, out);
    for (uint32_t unit = 1; unit < kUnits; ++unit) {
      if (!instance_exists(*machine, gpu, unit) || strcmp(description.instances[unit - 1].uuid, uuid) != 0) continue;
      const nvmlReturn_t result = give_handle(*machine, gpu, out);
      if (result == NVML_SUCCESS) *out = handle_of(gpu, unit);
      return result;
    }
  }
  return NVML_ERROR_NOT_FOUND;
}

NVML_EXPORT nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, nvmlDevice_t* out) {
  const Machine* machine = initialized_machine();
  if (!machine) return NVML_ERROR_UNINITIALIZED;
  unsigned domain = 0, bus = 0, device = 0, function = 0;
  if (!bus_id || !out || sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &device, &function) < 3)
    return NVML_ERROR_INVALID_ARGUMENT;
  for (uint32_t gpu = 0; gpu < machine->gpu_count; ++gpu)
    if (machine->description.gpus[gpu].is_at(domain, bus, device)) return give_handle(*machine, gpu, out);
  return NVML_ERROR_NOT_FOUND;
}
NVML_EXPORT nvmlDeviceGetHandleByPciBusId(const char* bus_id, nvmlDevice_t* out) {
  return nvmlDeviceGetHandleByPciBusId_v2(bus_id, out);
}

NVML_EXPORT nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned* out) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::index);
  if (result != NVML_SUCCESS) return result;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  *out = question.device.unit ? question.device.unit - 1 : question.device.gpu;
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetUUID(nvmlDevice_t handle, char* out, unsigned length) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::uuid);
  if (result != NVML_SUCCESS) return result;
  const uint32_t unit = question.device.unit;
  return give_text(unit ? question.gpu().instances[unit - 1].uuid : question.gpu().uuid, out, length);
}

NVML_EXPORT nvmlDeviceGetName(nvmlDevice_t handle, char* out, unsigned length) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::name);
  if (result != NVML_SUCCESS) return result;
  const Gpu& gpu = question.gpu();
  if (question.device.unit == 0) return give_text(gpu.model->name, out, length);
  char name[96];
  snprintf(name, sizeof name, "%s MIG %s", gpu.model->name, gpu.instances[question.device.unit - 1].profile);
  return give_text(name, out, length);
}

NVML_EXPORT nvmlDeviceGetMinorNumber(nvmlDevice_t handle, unsigned* out) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::minor);
  if (result != NVML_SUCCESS) return result;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  if (question.machine->description.wsl) return NVML_ERROR_NOT_SUPPORTED;
  *out = question.device.gpu;
  return NVML_SUCCESS;
}
