// Which GPUs a process sees, and in which order: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER.
#pragma once
#include "simulator/state.h"

namespace simulator {

struct VisibleDevice {
  uint32_t gpu;
  uint32_t unit;  // the MIG instance, else 0
};

// `list` is null where the variable isn't set. Returns how many.
uint32_t visible_devices(const Machine& machine, const char* list, const char* order, VisibleDevice (&out)[kMaxGpus]);

}  // namespace simulator
