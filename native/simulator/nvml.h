// Shared by the files of the simulated libnvidia-ml.so.1.
#pragma once
#include "simulator/faults.h"
#include "simulator/nvml_abi.h"
#include "simulator/slots.h"

#define NVML_EXPORT extern "C" __attribute__((visibility("default"))) nvmlReturn_t

namespace simulator {

// A GPU (unit 0) or one of its MIG instances.
struct Device {
  uint32_t gpu;
  uint32_t unit;
};

// The machine while the library is initialised, else null.
const Machine* initializedMachine();

nvmlDevice_t handleOf(uint32_t gpu, uint32_t unit);

// Also false for an instance that doesn't exist (any more).
bool decodeHandle(const Machine& machine, nvmlDevice_t handle, Device* out);

inline nvmlReturn_t healthError(const Machine& machine, uint32_t gpu) {
  const uint32_t health = healthOf(machine, gpu);
  if (__builtin_expect(health == 0, 1)) return NVML_SUCCESS;
  if (health & kLost) return NVML_ERROR_GPU_IS_LOST;
  if (health & kResetRequired) return NVML_ERROR_RESET_REQUIRED;
  return health & kNoPermission ? NVML_ERROR_NO_PERMISSION : NVML_SUCCESS;
}

// Everything that comes before the answer to a question about a GPU. On success `device` and `machine` are set.
struct Question {
  const Machine* machine = nullptr;
  Device device = {0, 0};
  const Gpu& gpu() const { return machine->description.gpus[device.gpu]; }
  const GpuState& state() const { return machine->gpus[device.gpu]; }

  nvmlReturn_t ask(nvmlDevice_t handle, Call call) {
    machine = initializedMachine();
    if (!machine) return NVML_ERROR_UNINITIALIZED;
    if (!decodeHandle(*machine, handle, &device)) return NVML_ERROR_INVALID_ARGUMENT;
    stall(*machine, device.gpu, call);
    const nvmlReturn_t health = healthError(*machine, device.gpu);
    if (health != NVML_SUCCESS) return health;
    return static_cast<nvmlReturn_t>(injectedError(*machine, device.gpu, call));
  }
};

// A library can't take back symbols while it runs: on a machine with an older driver, newer functions are there but
// return FUNCTION_NOT_FOUND, which programs have to treat like a missing symbol.
inline bool driverHas(const Machine& machine, Symbols atLeast) { return machine.description.symbols >= atLeast; }

// Copies text into a caller's buffer.
nvmlReturn_t giveText(const char* text, char* out, unsigned length);

}  // namespace simulator
