// Where a GPU sits: PCI, and how far it is from others.
#include <cstdio>
#include <cstring>

#include "simulator/nvml.h"

using namespace simulator;

NVML_EXPORT nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t* out) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::Pci);
  if (result != NVML_SUCCESS) return result;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  const Gpu& gpu = question.gpu();
  memset(out, 0, sizeof *out);
  out->bus = gpu.bus;
  out->pciDeviceId = gpu.model->pciDeviceId;
  out->pciSubSystemId = gpu.model->pciDeviceId;
  snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "0000:%02X:00.0", gpu.bus & 0xff);
  snprintf(out->busId, sizeof out->busId, "00000000:%02X:00.0", gpu.bus & 0xff);
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetPciInfo_v2(nvmlDevice_t handle, nvmlPciInfo_v2_t* out) {
  nvmlPciInfo_t info;
  const nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(handle, out ? &info : nullptr);
  if (result != NVML_SUCCESS) return result;
  memset(out, 0, sizeof *out);
  memcpy(out->busId, info.busIdLegacy, sizeof out->busId);
  out->domain = info.domain;
  out->bus = info.bus;
  out->device = info.device;
  out->pciDeviceId = info.pciDeviceId;
  out->pciSubSystemId = info.pciSubSystemId;
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetPciInfo(nvmlDevice_t handle, nvmlPciInfo_v1_t* out) {
  nvmlPciInfo_t info;
  const nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(handle, out ? &info : nullptr);
  if (result != NVML_SUCCESS) return result;
  memcpy(out->busId, info.busIdLegacy, sizeof out->busId);
  out->domain = info.domain;
  out->bus = info.bus;
  out->device = info.device;
  out->pciDeviceId = info.pciDeviceId;
  return NVML_SUCCESS;
}

// The same GPU 0, one switch 20, one NUMA node 40, across 50.
NVML_EXPORT nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t first, nvmlDevice_t second, int* out) {
  Question a, b;
  nvmlReturn_t result = a.ask(first, Call::Topology);
  if (result != NVML_SUCCESS) return result;
  result = b.ask(second, Call::Topology);
  if (result != NVML_SUCCESS) return result;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  if (a.device.gpu == b.device.gpu)
    *out = 0;
  else if (a.gpu().numaNode != b.gpu().numaNode)
    *out = 50;
  else
    *out = a.device.gpu / 2 == b.device.gpu / 2 ? 20 : 40;
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetNumaNodeId(nvmlDevice_t handle, unsigned* out) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::Topology);
  if (result != NVML_SUCCESS) return result;
  if (!driverHas(*question.machine, Symbols::EarlyR535)) return NVML_ERROR_FUNCTION_NOT_FOUND;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  *out = question.gpu().numaNode;
  return NVML_SUCCESS;
}
