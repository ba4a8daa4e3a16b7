// A CUDA library as old as can be: no function has a suffix. With STUB_WITHOUT_… it lacks one. STUB_OF_TOOLKIT is the
// library that CUDA's toolkit has to link against.
#include <cstddef>
#include <cstdint>

#include "cuda/library.h"

using namespace gpu_owner::cuda;

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int cuInit(unsigned) { return SUCCESS; }
EXPORT int cuDeviceGetCount(int* count) {
  *count = 1;
#ifdef STUB_OF_TOOLKIT
  return ERROR_STUB_LIBRARY;
#else
  return SUCCESS;
#endif
}
EXPORT int cuDeviceGet(Device* device, int ordinal) {
  *device = ordinal;
  return SUCCESS;
}
#ifndef STUB_WITHOUT_UUID
EXPORT int cuDeviceGetUuid(Uuid* uuid, Device) {
  for (int i = 0; i < 16; i++) uuid->bytes[i] = static_cast<unsigned char>(i == 15 ? 0xff : i);
  return SUCCESS;
}
#endif
EXPORT int cuDevicePrimaryCtxRetain(Context* context, Device) {
  *context = reinterpret_cast<Context>(uintptr_t{0x1000});
  return SUCCESS;
}
EXPORT int cuDevicePrimaryCtxRelease(Device) { return SUCCESS; }
EXPORT int cuCtxPushCurrent(Context) { return SUCCESS; }
EXPORT int cuCtxPopCurrent(Context*) { return SUCCESS; }
#ifndef STUB_WITHOUT_ALLOCATION
// In these first versions, addresses on the GPU had 32 bits.
EXPORT int cuMemAlloc(uint32_t* pointer, unsigned) {
  *pointer = 0x1234;
  return SUCCESS;
}
#endif
EXPORT int cuMemFree(uint32_t pointer) { return pointer == 0x1234 ? SUCCESS : ERROR_INVALID_DEVICE; }
