// The part of NVML's binary interface that is used here. Layouts and numbers: nvml.h (API 13) as carried by
// NVIDIA/go-nvml.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpu_owner::nvml {

using Device = struct OpaqueDevice*;

// Return codes. The names are NVML's own, without the prefix NVML_.
enum Code : int {
  SUCCESS = 0,
  ERROR_UNINITIALIZED = 1,
  ERROR_INVALID_ARGUMENT = 2,
  ERROR_NOT_SUPPORTED = 3,
  ERROR_NO_PERMISSION = 4,
  ERROR_NOT_FOUND = 6,
  ERROR_INSUFFICIENT_SIZE = 7,
  ERROR_INSUFFICIENT_POWER = 8,
  ERROR_DRIVER_NOT_LOADED = 9,
  ERROR_IRQ_ISSUE = 11,
  ERROR_LIBRARY_NOT_FOUND = 12,
  ERROR_FUNCTION_NOT_FOUND = 13,
  ERROR_GPU_IS_LOST = 15,
  ERROR_RESET_REQUIRED = 16,
  ERROR_OPERATING_SYSTEM = 17,
  ERROR_LIB_RM_VERSION_MISMATCH = 18,
  ERROR_NO_DATA = 21,
  ERROR_VERSION_MISMATCH = 25,
  ERROR_UNKNOWN = 999,
};

struct MemoryV1 {
  uint64_t total, free, used;  // used includes what the driver reserves
};

struct MemoryV2 {
  uint32_t version;
  uint64_t total, reserved, free, used;  // used excludes reserved
};
constexpr uint32_t kMemoryV2Version = sizeof(MemoryV2) | (2u << 24);

struct Utilization {
  uint32_t gpu, memory;  // percent
};

struct TemperatureV1 {
  uint32_t version;
  uint32_t sensor;  // 0 = the GPU die
  int32_t celsius;
};
constexpr uint32_t kTemperatureV1Version = sizeof(TemperatureV1) | (1u << 24);

struct PciInfo {
  char bus_id_legacy[16];
  uint32_t domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

// Processes: 16 bytes in v1, 24 in v2 and v3, 32 in the v3 of early R535 drivers; pid and memory stand at the same
// place in all.
struct Process {
  uint32_t pid;
  uint64_t used_memory;  // kUnknownMemory where the driver can't tell
  uint32_t gpu_instance, compute_instance;
};
constexpr uint64_t kUnknownMemory = ~0ULL;
constexpr size_t kProcessSizeV1 = 16;
constexpr size_t kProcessSizeV2 = 24;
constexpr size_t kProcessSizeEarlyR535 = 32;

// How much of a GPU's multiprocessors a process used in a fraction of a second, in percent.
struct ProcessUtilization {
  uint32_t pid;
  uint64_t microseconds;  // when, since 1970
  uint32_t sm, memory, encoder, decoder;
};

// A past value of a reading; `value` is a union, of which utilization takes the first four bytes.
struct UtilizationSample {
  uint64_t microseconds;  // when, since 1970
  uint32_t value, more;
};
constexpr int kUtilizationSamples = 1;

// nvmlGpuP2PCapsIndex_t and nvmlGpuP2PStatus_t.
constexpr int kP2pNvlink = 2, kP2pOk = 0;

constexpr size_t kStringSize = 96;  // for UUIDs and names

static_assert(sizeof(MemoryV1) == 24 && sizeof(MemoryV2) == 40 && kMemoryV2Version == 0x02000028);
static_assert(offsetof(MemoryV2, used) == 32);
static_assert(sizeof(TemperatureV1) == 12 && kTemperatureV1Version == 0x0100000c);
static_assert(sizeof(PciInfo) == 68 && offsetof(PciInfo, bus_id) == 36);
static_assert(sizeof(ProcessUtilization) == 32 && offsetof(ProcessUtilization, sm) == 16);
static_assert(sizeof(Process) == kProcessSizeV2 && offsetof(Process, used_memory) == 8);
static_assert(offsetof(Process, gpu_instance) == 16 && offsetof(Process, compute_instance) == 20);

}  // namespace gpu_owner::nvml
