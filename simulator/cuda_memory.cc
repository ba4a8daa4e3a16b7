// Device memory: counted, not backed by anything.
#include <cstdlib>
#include <cstring>

#include "simulator/cuda.h"

namespace simulator {
namespace {

struct Allocation {
  CUdeviceptr address;
  uint64_t size;
  const Context* context;
};

// In ascending order, for addresses only grow.
Allocation* g_allocations = nullptr;
size_t g_count = 0, g_capacity = 0;
CUdeviceptr g_next = 0x7e0000000000;

Allocation* find(CUdeviceptr address) {
  size_t low = 0, high = g_count;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (g_allocations[middle].address < address)
      low = middle + 1;
    else
      high = middle;
  }
  return low < g_count && g_allocations[low].address == address ? g_allocations + low : nullptr;
}

bool reserve() {
  if (g_count < g_capacity) return true;
  const size_t capacity = g_capacity ? g_capacity * 2 : 64;
  void* memory = realloc(g_allocations, capacity * sizeof(Allocation));
  if (!memory) return false;
  g_allocations = static_cast<Allocation*>(memory);
  g_capacity = capacity;
  return true;
}

// A context to allocate in, and where it is.
CUresult current(Driver** driver, const Context** context, VisibleDevice* where) {
  *driver = initialized_driver();
  if (!*driver) return CUDA_ERROR_NOT_INITIALIZED;
  *context = current_context();
  if (!*context) return CUDA_ERROR_INVALID_CONTEXT;
  *where = (*driver)->devices[(*context)->device];
  return CUDA_SUCCESS;
}

}  // namespace

void free_allocations(Driver* driver, const Context* context) {
  const VisibleDevice& where = driver->devices[context->device];
  OwnSlot& own = *own_slot(driver);
  size_t kept = 0;
  for (size_t i = 0; i < g_count; ++i) {
    if (g_allocations[i].context == context)
      remove_bytes(driver->machine, own, where.gpu, where.unit, g_allocations[i].size);
    else
      g_allocations[kept++] = g_allocations[i];
  }
  g_count = kept;
}

}  // namespace simulator

using namespace simulator;

CUDA_EXPORT cuMemAlloc_v2(CUdeviceptr* out, size_t size) {
  Driver* driver;
  const Context* context;
  VisibleDevice where;
  const CUresult result = current(&driver, &context, &where);
  if (result != CUDA_SUCCESS) return result;
  if (!out || size == 0) return CUDA_ERROR_INVALID_VALUE;
  stall(driver->machine, where.gpu, Call::cuda_alloc);
  if (const uint32_t injected = injected_error(driver->machine, where.gpu, Call::cuda_alloc))
    return static_cast<CUresult>(injected);
  Guard guard;
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (health_of(driver->machine, where.gpu)) return CUDA_ERROR_UNKNOWN;
  if (size > unit_total(driver->machine, where.gpu, where.unit) || !reserve()) return CUDA_ERROR_OUT_OF_MEMORY;
  // Taken first and counted after: of two that are one too many, neither is told that there was room.
  OwnSlot& own = *own_slot(driver);
  add_bytes(driver->machine, own, where.gpu, where.unit, size);
  if (overcommitted(driver->machine, where.gpu, where.unit)) {
    remove_bytes(driver->machine, own, where.gpu, where.unit, size);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  g_allocations[g_count++] = {g_next, size, context};
  *out = g_next;
  g_next += (size + 511) / 512 * 512;
  return CUDA_SUCCESS;
}
CUDA_EXPORT cuMemAlloc(unsigned* out, unsigned size) {
  // Addresses of this interface have 32 bits, which none of ours fits in.
  return out && size ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
}

CUDA_EXPORT cuMemFree_v2(CUdeviceptr address) {
  Driver* driver;
  const Context* context;
  VisibleDevice where;
  CUresult result = current(&driver, &context, &where);
  if (result != CUDA_SUCCESS) return result;
  if (address == 0) return CUDA_SUCCESS;
  stall(driver->machine, where.gpu, Call::cuda_free);
  Guard guard;
  Allocation* allocation = find(address);
  if (!allocation) return CUDA_ERROR_INVALID_VALUE;
  const VisibleDevice& owner = driver->devices[allocation->context->device];
  remove_bytes(driver->machine, *own_slot(driver), owner.gpu, owner.unit, allocation->size);
  --g_count;
  memmove(allocation, allocation + 1, static_cast<size_t>(g_allocations + g_count - allocation) * sizeof *allocation);
  return CUDA_SUCCESS;
}
CUDA_EXPORT cuMemFree(unsigned address) { return cuMemFree_v2(address); }

CUDA_EXPORT cuMemGetInfo_v2(size_t* free, size_t* total) {
  Driver* driver;
  const Context* context;
  VisibleDevice where;
  const CUresult result = current(&driver, &context, &where);
  if (result != CUDA_SUCCESS) return result;
  if (!free || !total) return CUDA_ERROR_INVALID_VALUE;
  const Usage usage = usage_of(driver->machine, where.gpu);
  const uint64_t used = where.unit ? usage.units[where.unit] : usage.gpu;
  *total = unit_total(driver->machine, where.gpu, where.unit) - unit_reserved(driver->machine, where.gpu, where.unit);
  *free = *total - used;
  return CUDA_SUCCESS;
}
CUDA_EXPORT cuMemGetInfo(unsigned* free, unsigned* total) {
  size_t free_bytes = 0, total_bytes = 0;
  const CUresult result = cuMemGetInfo_v2(free ? &free_bytes : nullptr, &total_bytes);
  if (result != CUDA_SUCCESS) return result;
  const auto clip = [](size_t bytes) { return bytes > 0xffffffff ? 0xffffffffu : static_cast<unsigned>(bytes); };
  *free = clip(free_bytes);
  if (total) *total = clip(total_bytes);
  return CUDA_SUCCESS;
}
