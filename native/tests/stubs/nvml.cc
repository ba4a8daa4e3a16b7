// A driver library whose answers a test chooses. Built several times: what a library exports, and how long its process
// entries are, makes it a driver of some age (CMakeLists.txt has the list).
//
//   STUB_SUFFIXED        nvmlInit_v2 and its like; else nvmlInit …
//   STUB_MEMORY_V2       nvmlDeviceGetMemoryInfo_v2
//   STUB_PROCESSES_V2    process lists _v2
//   STUB_MPS_V1          a list of clients of MPS without suffix and of 16 bytes each
//   STUB_PROCESSES_V3=N  process lists _v3 with entries of N bytes
//   STUB_VERSION="TEXT"  the driver's version; else 1.2.3
//   STUB_TEMPERATURE_V   nvmlDeviceGetTemperatureV
//   STUB_MIG             MIG is on, and the functions for it
//   STUB_WITHOUT_UUID    no nvmlDeviceGetUUID, which every NVML has
#include "stubs/nvml.h"

#include <string.h>

#include "nvml/abi.h"

using namespace gpu_owner::nvml;

#ifndef STUB_VERSION
#define STUB_VERSION "1.2.3"
#endif
#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT NvmlStub stub;
NvmlStub stub;

namespace {

Device device_of(uint32_t index) { return reinterpret_cast<Device>(uintptr_t{0x1000} + index); }

constexpr uint32_t kSlots = 7;
Device instance_of(uint32_t slot) { return reinterpret_cast<Device>(uintptr_t{0x2000} + slot); }
// An instance's slot, else -1.
[[maybe_unused]] int slot_of(Device device) {
  const auto value = reinterpret_cast<uintptr_t>(device);
  return value >= 0x2000 && value < 0x2000 + kSlots ? static_cast<int>(value - 0x2000) : -1;
}

[[maybe_unused]] int text(int code, const char* value, char* buffer, uint32_t size) {
  if (code != SUCCESS) return code;
  if (stub.unterminated) {
    memset(buffer, 'x', size);
  } else {
    strncpy(buffer, value, size);
  }
  return SUCCESS;
}

int init() {
  stub.inits++;
  return stub.code.init;
}

int count(uint32_t* out) {
  *out = stub.gpus;
  return stub.code.count;
}

int handle(uint32_t index, Device* out) {
  if (index >= stub.gpus) return ERROR_INVALID_ARGUMENT;
  *out = device_of(index);
  return stub.code.handle;
}

int pci(PciInfo* out) {
  memset(out, 0, sizeof *out);
  return text(stub.code.pci, "00000000:01:00.0", out->bus_id, sizeof out->bus_id);
}

int number(int code, uint32_t value, uint32_t* out) {
  *out = value;  // also when it means nothing
  return code;
}

int processes(int code, size_t entry_size, uint32_t* count, void* out) {
  if (stub.first_room == 0) stub.first_room = *count;
  if (code != SUCCESS) return code;
  if (stub.pretended_needed != 0 || stub.needs_nothing) {
    *count = stub.pretended_needed;
    return ERROR_INSUFFICIENT_SIZE;
  }
  const uint32_t room = *count, there = stub.processes;
  *count = there;
  stub.processes += stub.growth;
  if (there > room) return ERROR_INSUFFICIENT_SIZE;
  for (uint32_t i = 0; i < there; i++) {
    struct {
      Process process;
      uint64_t confidential;
    } entry = {{1000 + i, stub.memory_unknown ? kUnknownMemory : (i + uint64_t{1}) << 20, ~0u, ~0u}, 0};
    if (entry_size == kProcessSizeV1) entry.process.gpu_instance = entry.process.compute_instance = 0xbad;
    memcpy(static_cast<char*>(out) + i * entry_size, &entry, entry_size);
  }
  if (stub.pretended_count != 0) *count = stub.pretended_count;
  return SUCCESS;
}

#ifdef STUB_MIG
int instance_processes(Device device, uint32_t* count, void* out) {
  const int own = slot_of(device);
  if (own >= 0 && stub.code.instance_processes != SUCCESS) return stub.code.instance_processes;
  uint32_t found = 0;
  for (uint32_t slot = 0; slot < kSlots; slot++) {
    if (!(stub.slots >> slot & 1) || (own >= 0 && !stub.lists_neighbours && static_cast<int>(slot) != own)) continue;
    Process process = {1000 + slot, uint64_t{1} << 20, 7 + slot, 0};
    if (stub.without_ids) process.gpu_instance = process.compute_instance = ~0u;
    if (found < *count) memcpy(static_cast<char*>(out) + found * sizeof process, &process, sizeof process);
    found++;
  }
  *count = found;
  return SUCCESS;
}
#endif

int graphics(size_t, uint32_t* count, void*) {
  *count = 0;
  return stub.code.graphics;
}

int mps(size_t entry_size, uint32_t* count, void* out) {
  stub.mps_calls++;
  if (stub.mps_code != SUCCESS) return stub.mps_code;
  const uint32_t room = *count;
  *count = stub.mps;
  if (stub.mps > room) return ERROR_INSUFFICIENT_SIZE;
  for (uint32_t i = 0; i < stub.mps; i++) {
    struct {
      Process process;
      uint64_t confidential;
    } entry = {{stub.mps_first + i, uint64_t{5} << 20, ~0u, ~0u}, 0};
    memcpy(static_cast<char*>(out) + i * entry_size, &entry, entry_size);
  }
  return SUCCESS;
}

}  // namespace

#ifdef STUB_SUFFIXED
EXPORT int nvmlInit_v2() { return init(); }
EXPORT int nvmlDeviceGetCount_v2(uint32_t* out) { return count(out); }
EXPORT int nvmlDeviceGetHandleByIndex_v2(uint32_t index, Device* out) { return handle(index, out); }
EXPORT int nvmlDeviceGetPciInfo_v3(Device, PciInfo* out) { return pci(out); }
#else
EXPORT int nvmlInit() { return init(); }
EXPORT int nvmlDeviceGetCount(uint32_t* out) { return count(out); }
EXPORT int nvmlDeviceGetHandleByIndex(uint32_t index, Device* out) { return handle(index, out); }
EXPORT int nvmlDeviceGetPciInfo_v2(Device, PciInfo* out) { return pci(out); }
#endif

#ifndef STUB_WITHOUT_UUID
EXPORT int nvmlDeviceGetUUID(Device device, char* buffer, uint32_t size) {
  if (const int slot = slot_of(device); slot >= 0) {
    char uuid[] = "MIG-00000000-2222-3333-4444-555555555555";
    uuid[4] = static_cast<char>('0' + slot);
    uuid[5] = stub.generation;
    return text(stub.code.uuid, uuid, buffer, size);
  }
  return text(stub.code.uuid, "GPU-11111111-2222-3333-4444-555555555555", buffer, size);
}
#endif
EXPORT int nvmlDeviceGetName(Device, char* buffer, uint32_t size) { return text(stub.code.name, "Stub", buffer, size); }
EXPORT int nvmlSystemGetDriverVersion(char* buffer, uint32_t size) { return text(SUCCESS, STUB_VERSION, buffer, size); }

EXPORT int nvmlDeviceGetMemoryInfo(Device device, MemoryV1* out) {
  *out = {100, 70, 30};
  return slot_of(device) >= 0 ? stub.code.instance_memory : stub.code.memory_v1;
}
#ifdef STUB_MEMORY_V2
EXPORT int nvmlDeviceGetMemoryInfo_v2(Device device, MemoryV2* out) {
  if (out->version != kMemoryV2Version) return ERROR_VERSION_MISMATCH;
  *out = {kMemoryV2Version, 100, 10, 70, 20};
  if (slot_of(device) >= 0) return stub.code.instance_memory;
  return stub.code.memory_v2;
}
#endif

EXPORT int nvmlDeviceGetPowerUsage(Device, uint32_t* out) { return number(stub.code.power, 50'000, out); }
EXPORT int nvmlDeviceGetEnforcedPowerLimit(Device, uint32_t* out) {
  return number(stub.code.power_limit, 300'000, out);
}
EXPORT int nvmlDeviceGetComputeMode(Device, uint32_t* out) { return number(stub.code.compute_mode, 0, out); }
EXPORT int nvmlDeviceGetDisplayActive(Device, uint32_t* out) { return number(stub.code.display, 0, out); }
EXPORT int nvmlDeviceGetTemperature(Device, uint32_t, uint32_t* out) { return number(stub.code.temperature, 40, out); }
#ifdef STUB_TEMPERATURE_V
EXPORT int nvmlDeviceGetTemperatureV(Device, TemperatureV1* out) {
  if (out->version != kTemperatureV1Version) return ERROR_VERSION_MISMATCH;
  out->celsius = 41;
  return stub.code.temperature_v;
}
#endif
EXPORT int nvmlDeviceGetUtilizationRates(Device, Utilization* out) {
  *out = {7, 3};
  return stub.code.utilization;
}
EXPORT int nvmlDeviceGetMigMode(Device, uint32_t* current, uint32_t* pending) {
  *pending = 0;
#ifdef STUB_MIG
  return number(stub.code.mig, 1, current);
}
EXPORT int nvmlDeviceGetMaxMigDeviceCount(Device, uint32_t* out) { return number(SUCCESS, kSlots, out); }
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(Device, uint32_t slot, Device* out) {
  *out = instance_of(slot);
  if (stub.code.mig_handle != SUCCESS) return stub.code.mig_handle;
  return stub.slots >> slot & 1 ? SUCCESS : ERROR_NOT_FOUND;
}
EXPORT int nvmlDeviceGetGpuInstanceId(Device device, uint32_t* out) {
  stub.instance_id_calls++;
  if (stub.code.instance_id != SUCCESS) return stub.code.instance_id;
  return number(SUCCESS, 7 + static_cast<uint32_t>(slot_of(device)), out);
}
EXPORT int nvmlDeviceGetComputeInstanceId(Device, uint32_t* out) { return number(SUCCESS, 0, out); }
#else
  return number(stub.code.mig, 0, current);
}
#endif

EXPORT int nvmlDeviceGetComputeRunningProcesses(Device, uint32_t* count, void* out) {
  stub.v1_calls++;
  return processes(stub.code.processes_v1, kProcessSizeV1, count, out);
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses(Device, uint32_t* count, void* out) {
  return graphics(kProcessSizeV1, count, out);
}
#ifdef STUB_PROCESSES_V2
EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(Device, uint32_t* count, void* out) {
  stub.v2_calls++;
  return processes(stub.code.processes_v2, kProcessSizeV2, count, out);
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v2(Device, uint32_t* count, void* out) {
  return graphics(kProcessSizeV2, count, out);
}
// As in R450 and R460.
EXPORT int nvmlDeviceGetMPSComputeRunningProcesses(Device, uint32_t* count, void* out) {
  return mps(kProcessSizeV2, count, out);
}
#endif
#ifdef STUB_MPS_V1
EXPORT int nvmlDeviceGetMPSComputeRunningProcesses(Device, uint32_t* count, void* out) {
  return mps(kProcessSizeV1, count, out);
}
#endif
#ifdef STUB_PROCESSES_V3
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3([[maybe_unused]] Device device, uint32_t* count, void* out) {
  stub.v3_calls++;
#ifdef STUB_MIG
  return instance_processes(device, count, out);
#endif
  return processes(stub.code.processes_v3, STUB_PROCESSES_V3, count, out);
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(Device, uint32_t* count, void* out) {
  return graphics(STUB_PROCESSES_V3, count, out);
}
EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v3(Device, uint32_t* count, void* out) {
  return mps(STUB_PROCESSES_V3, count, out);
}
#endif
