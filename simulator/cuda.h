// Shared by the files of the simulated libcuda.so.1.
#pragma once
#include <pthread.h>

#include "simulator/cuda_abi.h"
#include "simulator/faults.h"
#include "simulator/slots.h"
#include "simulator/visible_devices.h"

#define CUDA_EXPORT extern "C" __attribute__((visibility("default"))) CUresult

namespace simulator {

// This process's view, fixed by the first cuInit.
struct Driver {
  Machine machine;
  VisibleDevice devices[kMaxGpus];
  uint32_t device_count;
  ProcessType process_type;
  uint32_t utilization;  // percent

  const Gpu& gpu(CUdevice device) const { return machine.description.gpus[devices[device].gpu]; }
  bool has(CUdevice device) const { return device >= 0 && static_cast<uint32_t>(device) < device_count; }
};

// Null, before cuInit and in a child that was forked after it: every call fails with NOT_INITIALIZED.
Driver* initialized_driver();

void complain(const Error& error);

// Contexts, slot and allocations of this process are changed under this lock; it is never held while waiting or
// sleeping.
class Guard {
 public:
  Guard();
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
};

struct Context {
  CUdevice device;
  bool primary;
  bool alive;
  uint32_t references;  // counted for a primary context
};

// The current context of the calling thread, or null.
Context* current_context();

// Memory of a context; call them under the lock.
void free_allocations(Driver* driver, const Context* context);

// The calling process's slot, taken when first needed; null when that failed.
OwnSlot* own_slot(Driver* driver);

}  // namespace simulator
