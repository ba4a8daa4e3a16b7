// Kernels: none runs, but a process that has launched one computes, all the time, for as long as it has a context.
#include <unistd.h>

#include "simulator/activity.h"
#include "simulator/cuda.h"

namespace simulator {
namespace {

// A context in which something can run.
CUresult current(Driver** driver, const Context** context) {
  *driver = initialized_driver();
  if (!*driver) return CUDA_ERROR_NOT_INITIALIZED;
  *context = current_context();
  if (!*context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!(*context)->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return health_of((*driver)->machine, (*driver)->devices[(*context)->device].gpu) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

// Handles of modules and functions point to it.
char g_loaded;

constexpr useconds_t kKernelMicroseconds = 10'000;

}  // namespace
}  // namespace simulator

using namespace simulator;

CUDA_EXPORT cuModuleLoadData(CUmodule* out, const void* image) {
  Driver* driver;
  const Context* context;
  const CUresult result = current(&driver, &context);
  if (result != CUDA_SUCCESS) return result;
  if (!out || !image) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUmodule>(&g_loaded);
  return CUDA_SUCCESS;
}

CUDA_EXPORT cuModuleGetFunction(CUfunction* out, CUmodule module, const char* name) {
  if (!out || !module || !name) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUfunction>(&g_loaded);
  return CUDA_SUCCESS;
}

CUDA_EXPORT cuLaunchKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                           CUstream, void**, void**) {
  Driver* driver;
  const Context* context;
  const CUresult result = current(&driver, &context);
  if (result != CUDA_SUCCESS) return result;
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  Guard guard;
  uint32_t idle = 0;
  if (own_slot(driver)->slot->utilization.compare_exchange_strong(idle, 100))
    note_power(driver->machine, driver->devices[context->device].gpu);
  return CUDA_SUCCESS;
}

CUDA_EXPORT cuCtxSynchronize() {
  Driver* driver;
  const Context* context;
  const CUresult result = current(&driver, &context);
  if (result != CUDA_SUCCESS) return result;
  if (own_slot(driver)->slot->utilization != 0) usleep(kKernelMicroseconds);
  return CUDA_SUCCESS;
}
