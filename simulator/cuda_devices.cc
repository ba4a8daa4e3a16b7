// Queries about a device that need no context.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "simulator/cuda.h"

using namespace simulator;

namespace {

CUresult ask(CUdevice device, const void* out, const Driver** driver) {
  *driver = initialized_driver();
  if (!*driver) return CUDA_ERROR_NOT_INITIALIZED;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  return (*driver)->has(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

void copy_text(const char* text, char* out, int length) {
  if (length > 0) snprintf(out, static_cast<size_t>(length), "%s", text);
}

// "GPU-5f3c…", or a Jetson's "5f3c…", as sixteen bytes.
void uuid_bytes(const char* text, CUuuid* out) {
  unsigned digits = 0;
  memset(out, 0, sizeof *out);
  for (const char* at = text[3] == '-' ? text + 4 : text; *at && digits < 32; ++at) {
    if (*at == '-') continue;
    const int value = *at <= '9' ? *at - '0' : *at - 'a' + 10;
    auto& byte = out->bytes[digits / 2];
    byte = static_cast<char>(digits % 2 ? byte | value : value << 4);
    ++digits;
  }
}

}  // namespace

CUDA_EXPORT cuDeviceGetCount(int* out) {
  const Driver* driver = initialized_driver();
  if (!driver) return CUDA_ERROR_NOT_INITIALIZED;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = static_cast<int>(driver->device_count);
  return CUDA_SUCCESS;
}

CUDA_EXPORT cuDeviceGet(CUdevice* out, int ordinal) {
  const Driver* driver;
  const CUresult result = ask(ordinal, out, &driver);
  if (result == CUDA_SUCCESS) *out = ordinal;
  return result;
}

CUDA_EXPORT cuDeviceGetName(char* out, int length, CUdevice device) {
  const Driver* driver;
  const CUresult result = ask(device, out, &driver);
  if (result != CUDA_SUCCESS) return result;
  const Gpu& gpu = driver->gpu(device);
  const uint32_t unit = driver->devices[device].unit;
  char name[96];
  snprintf(name, sizeof name, unit ? "%s MIG %s" : "%s", gpu.model->name, unit ? gpu.instances[unit - 1].profile : "");
  copy_text(name, out, length);
  return CUDA_SUCCESS;
}

// The instance's own, where the device is one.
CUDA_EXPORT cuDeviceGetUuid_v2(CUuuid* out, CUdevice device) {
  const Driver* driver;
  const CUresult result = ask(device, out, &driver);
  if (result != CUDA_SUCCESS) return result;
  const uint32_t unit = driver->devices[device].unit;
  uuid_bytes(unit ? driver->gpu(device).instances[unit - 1].uuid : driver->gpu(device).uuid, out);
  return CUDA_SUCCESS;
}

// The GPU's, also where the device is an instance.
CUDA_EXPORT cuDeviceGetUuid(CUuuid* out, CUdevice device) {
  const Driver* driver;
  const CUresult result = ask(device, out, &driver);
  if (result == CUDA_SUCCESS) uuid_bytes(driver->gpu(device).uuid, out);
  return result;
}

CUDA_EXPORT cuDeviceGetPCIBusId(char* out, int length, CUdevice device) {
  const Driver* driver;
  const CUresult result = ask(device, out, &driver);
  if (result != CUDA_SUCCESS) return result;
  char id[32];
  const Gpu& gpu = driver->gpu(device);
  snprintf(id, sizeof id, "%04X:%02X:%02X.0", gpu.domain & 0xffff, gpu.bus & 0xff, gpu.slot & 0xff);
  copy_text(id, out, length);
  return CUDA_SUCCESS;
}

CUDA_EXPORT cuDeviceGetByPCIBusId(CUdevice* out, const char* bus_id) {
  const Driver* driver = initialized_driver();
  if (!driver) return CUDA_ERROR_NOT_INITIALIZED;
  unsigned domain = 0, bus = 0, device = 0;
  if (!out || !bus_id || sscanf(bus_id, "%x:%x:%x", &domain, &bus, &device) != 3) return CUDA_ERROR_INVALID_VALUE;
  for (uint32_t i = 0; i < driver->device_count; ++i)
    if (driver->gpu(static_cast<CUdevice>(i)).is_at(domain, bus, device)) {
      *out = static_cast<CUdevice>(i);
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_INVALID_DEVICE;
}

CUDA_EXPORT cuDeviceTotalMem_v2(size_t* out, CUdevice device) {
  const Driver* driver;
  const CUresult result = ask(device, out, &driver);
  if (result == CUDA_SUCCESS) {
    const VisibleDevice& where = driver->devices[device];
    *out = unit_total(driver->machine, where.gpu, where.unit) - unit_reserved(driver->machine, where.gpu, where.unit);
  }
  return result;
}
CUDA_EXPORT cuDeviceTotalMem(unsigned* out, CUdevice device) {
  size_t total = 0;
  const CUresult result = cuDeviceTotalMem_v2(out ? &total : nullptr, device);
  if (result == CUDA_SUCCESS) *out = total > 0xffffffff ? 0xffffffff : static_cast<unsigned>(total);
  return result;
}

CUDA_EXPORT cuDeviceGetAttribute(int* out, int attribute, CUdevice device) {
  const Driver* driver;
  const CUresult result = ask(device, out, &driver);
  if (result != CUDA_SUCCESS) return result;
  const VisibleDevice& where = driver->devices[device];
  const Model& model = *driver->gpu(device).model;
  switch (attribute) {
    case 1: *out = 1024; break;                                   // threads per block
    case 8: *out = 48 * 1024; break;                              // shared memory per block
    case 10: *out = 32; break;                                    // warp size
    case 13: *out = static_cast<int>(model.speed) * 2000; break;  // clock rate in kHz
    case 16: *out = static_cast<int>(model.multiprocessors); break;
    case 18: *out = 0; break;  // integrated
    case 20:                   // compute mode
      *out = mig_on(driver->machine, where.gpu) ? 0 : static_cast<int>(driver->machine.gpus[where.gpu].compute_mode);
      break;
    case 31: *out = 1; break;  // concurrent kernels
    case 33: *out = static_cast<int>(driver->gpu(device).bus); break;
    case 34: *out = static_cast<int>(driver->gpu(device).slot); break;
    case 41: *out = 1; break;  // unified addressing
    case 50: *out = static_cast<int>(driver->gpu(device).domain); break;
    case 75: *out = static_cast<int>(model.compute_capability / 10); break;
    case 76: *out = static_cast<int>(model.compute_capability % 10); break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}
