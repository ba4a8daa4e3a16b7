// Contexts. The first one on a GPU is what makes the process appear in the driver's list.
#include "simulator/cuda.h"

namespace simulator {
namespace {

constexpr uint32_t kMaxContexts = 256;
constexpr uint32_t kMaxDepth = 64;

Context g_primary[kMaxGpus];
Context g_created[kMaxContexts];

thread_local Context* t_stack[kMaxDepth];
thread_local uint32_t t_depth = 0;

CUcontext handle_of(Context* context) { return reinterpret_cast<CUcontext>(context); }

template <size_t N>
bool is_element(Context (&all)[N], uintptr_t address) {
  const uintptr_t offset = address - reinterpret_cast<uintptr_t>(all);
  return offset < sizeof all && offset % sizeof(Context) == 0;
}

// Null for what never was a context.
Context* decode(CUcontext handle) {
  const auto address = reinterpret_cast<uintptr_t>(handle);
  return is_element(g_primary, address) || is_element(g_created, address) ? reinterpret_cast<Context*>(handle)
                                                                          : nullptr;
}

bool others_on(const Machine& machine, const OwnSlot& own, uint32_t gpu) {
  bool others = false;
  for_each_process(machine, gpu, [&](const ProcessEntry& entry) { others |= entry.slot != own.index; });
  return others;
}

// By the GPU's compute mode: 0 default, 1 and 3 one process only, 2 none.
CUresult admit(const Driver& driver, const OwnSlot& own, uint32_t gpu) {
  if (mig_on(driver.machine, gpu)) return CUDA_SUCCESS;
  const uint32_t mode = driver.machine.gpus[gpu].compute_mode;
  if (mode == 2) return CUDA_ERROR_UNKNOWN;
  if (mode != 1 && mode != 3) return CUDA_SUCCESS;
  // An MPS server lets its clients in; they don't count.
  if (driver.process_type != kMpsServer && has_mps_server(driver.machine, gpu)) return CUDA_SUCCESS;
  // The lock decides between processes that come at the same moment.
  if (!lock_exclusive(own, gpu)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  if (!others_on(driver.machine, own, gpu)) return CUDA_SUCCESS;
  if (!has_contexts(driver.machine, own, gpu)) unlock_exclusive(own, gpu);
  return CUDA_ERROR_DEVICE_UNAVAILABLE;
}

void leave(Driver* driver, CUdevice device) {
  const VisibleDevice& where = driver->devices[device];
  OwnSlot& own = *own_slot(driver);
  remove_context(driver->machine, own, where.gpu, where.unit);
  if (!has_contexts(driver->machine, own, where.gpu)) unlock_exclusive(own, where.gpu);
}

// Under the lock.
CUresult enter(Driver* driver, CUdevice device) {
  const VisibleDevice& where = driver->devices[device];
  if (health_of(driver->machine, where.gpu)) return CUDA_ERROR_UNKNOWN;
  OwnSlot* own = own_slot(driver);
  if (!own) return CUDA_ERROR_OPERATING_SYSTEM;
  const CUresult admitted = admit(*driver, *own, where.gpu);
  if (admitted != CUDA_SUCCESS) return admitted;
  add_context(driver->machine, *own, where.gpu, where.unit);
  if (!overcommitted(driver->machine, where.gpu, where.unit)) return CUDA_SUCCESS;
  leave(driver, device);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// Under the lock.
void destroy(Driver* driver, Context* context) {
  if (!context->alive) return;
  free_allocations(driver, context);
  leave(driver, context->device);
  context->alive = false;
  context->references = 0;
}

// Before the lock is taken: this may take long.
CUresult prepare(Driver* driver, CUdevice device) {
  const uint32_t gpu = driver->devices[device].gpu;
  stall(driver->machine, gpu, Call::cuda_context);
  return static_cast<CUresult>(injected_error(driver->machine, gpu, Call::cuda_context));
}

bool push(Context* context) {
  if (t_depth == kMaxDepth) return false;
  t_stack[t_depth++] = context;
  return true;
}

}  // namespace

Context* current_context() { return t_depth ? t_stack[t_depth - 1] : nullptr; }

}  // namespace simulator

using namespace simulator;

CUDA_EXPORT cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
  Driver* driver = initialized_driver();
  if (!driver) return CUDA_ERROR_NOT_INITIALIZED;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (!driver->has(device)) return CUDA_ERROR_INVALID_DEVICE;
  Context& context = g_primary[device];
  bool alive;
  {
    Guard guard;
    alive = context.alive;
  }
  if (!alive) {
    const CUresult prepared = prepare(driver, device);
    if (prepared != CUDA_SUCCESS) return prepared;
  }
  Guard guard;
  if (!context.alive) {
    const CUresult result = enter(driver, device);
    if (result != CUDA_SUCCESS) return result;
    context = {device, true, true, 0};
  }
  ++context.references;
  *out = handle_of(&context);
  return CUDA_SUCCESS;
}

CUDA_EXPORT cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  Driver* driver = initialized_driver();
  if (!driver) return CUDA_ERROR_NOT_INITIALIZED;
  if (!driver->has(device)) return CUDA_ERROR_INVALID_DEVICE;
  Guard guard;
  Context& context = g_primary[device];
  if (!context.alive || context.references == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--context.references == 0) destroy(driver, &context);
  return CUDA_SUCCESS;
}
CUDA_EXPORT cuDevicePrimaryCtxRelease(CUdevice device) { return cuDevicePrimaryCtxRelease_v2(device); }

CUDA_EXPORT cuDevicePrimaryCtxReset_v2(CUdevice device) {
  Driver* driver = initialized_driver();
  if (!driver) return CUDA_ERROR_NOT_INITIALIZED;
  if (!driver->has(device)) return CUDA_ERROR_INVALID_DEVICE;
  Guard guard;
  destroy(driver, &g_primary[device]);
  return CUDA_SUCCESS;
}
CUDA_EXPORT cuDevicePrimaryCtxReset(CUdevice device) { return cuDevicePrimaryCtxReset_v2(device); }

CUDA_EXPORT cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  const Driver* driver = initialized_driver();
  if (!driver) return CUDA_ERROR_NOT_INITIALIZED;
  if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
  if (!driver->has(device)) return CUDA_ERROR_INVALID_DEVICE;
  Guard guard;
  *flags = 0;
  *active = g_primary[device].alive;
  return CUDA_SUCCESS;
}

CUDA_EXPORT cuCtxCreate_v2(CUcontext* out, unsigned, CUdevice device) {
  Driver* driver = initialized_driver();
  if (!driver) return CUDA_ERROR_NOT_INITIALIZED;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (!driver->has(device)) return CUDA_ERROR_INVALID_DEVICE;
  const CUresult prepared = prepare(driver, device);
  if (prepared != CUDA_SUCCESS) return prepared;
  Guard guard;
  for (Context& context : g_created) {
    if (context.alive) continue;
    if (t_depth == kMaxDepth) break;
    const CUresult result = enter(driver, device);
    if (result != CUDA_SUCCESS) return result;
    context = {device, false, true, 1};
    push(&context);
    *out = handle_of(&context);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_OUT_OF_MEMORY;
}
CUDA_EXPORT cuCtxCreate(CUcontext* out, unsigned flags, CUdevice device) { return cuCtxCreate_v2(out, flags, device); }

CUDA_EXPORT cuCtxDestroy_v2(CUcontext handle) {
  Driver* driver = initialized_driver();
  if (!driver) return CUDA_ERROR_NOT_INITIALIZED;
  Context* context = decode(handle);
  if (!context || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  Guard guard;
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  destroy(driver, context);
  if (current_context() == context) --t_depth;
  return CUDA_SUCCESS;
}
CUDA_EXPORT cuCtxDestroy(CUcontext handle) { return cuCtxDestroy_v2(handle); }

CUDA_EXPORT cuCtxPushCurrent_v2(CUcontext handle) {
  if (!initialized_driver()) return CUDA_ERROR_NOT_INITIALIZED;
  Context* context = decode(handle);
  if (!context) return handle ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
  return push(context) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUDA_EXPORT cuCtxPushCurrent(CUcontext handle) { return cuCtxPushCurrent_v2(handle); }

CUDA_EXPORT cuCtxPopCurrent_v2(CUcontext* out) {
  if (!initialized_driver()) return CUDA_ERROR_NOT_INITIALIZED;
  if (t_depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --t_depth;
  if (out) *out = handle_of(t_stack[t_depth]);
  return CUDA_SUCCESS;
}
CUDA_EXPORT cuCtxPopCurrent(CUcontext* out) { return cuCtxPopCurrent_v2(out); }

CUDA_EXPORT cuCtxSetCurrent(CUcontext handle) {
  if (!initialized_driver()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!handle) {
    if (t_depth) --t_depth;
    return CUDA_SUCCESS;
  }
  Context* context = decode(handle);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (t_depth) --t_depth;
  push(context);
  return CUDA_SUCCESS;
}

CUDA_EXPORT cuCtxGetCurrent(CUcontext* out) {
  if (!initialized_driver()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = handle_of(current_context());
  return CUDA_SUCCESS;
}

CUDA_EXPORT cuCtxGetDevice(CUdevice* out) {
  if (!initialized_driver()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  const Context* context = current_context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  *out = context->device;
  return CUDA_SUCCESS;
}

// No kernel runs, so there is nothing to wait for.
CUDA_EXPORT cuCtxSynchronize() {
  const Driver* driver = initialized_driver();
  if (!driver) return CUDA_ERROR_NOT_INITIALIZED;
  const Context* context = current_context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return health_of(driver->machine, driver->devices[context->device].gpu) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}
