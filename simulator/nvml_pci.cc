// Where a GPU sits: PCI, and how far it is from others.
#include <unistd.h>
#include <cstdio>
#include <cstring>

#include "simulator/nvml.h"

using namespace simulator;

NVML_EXPORT nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t* out) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::pci);
  if (result != NVML_SUCCESS) return result;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  const Gpu& gpu = question.gpu();
  memset(out, 0, sizeof *out);
  out->domain = gpu.domain;
  out->bus = gpu.bus;
  out->device = gpu.slot;
  out->pciDeviceId = gpu.model->pci_device_id;
  out->pciSubSystemId = gpu.model->pci_device_id;
  snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%04X:%02X:%02X.0", gpu.domain & 0xffff, gpu.bus & 0xff,
           gpu.slot & 0xff);
  snprintf(out->busId, sizeof out->busId, "%08X:%02X:%02X.0", gpu.domain, gpu.bus & 0xff, gpu.slot & 0xff);
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

NVML_EXPORT nvmlDeviceGetPciInfoExt(nvmlDevice_t handle, nvmlPciInfoExt_v1_t* out) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::pci, Symbols::current);
  if (result != NVML_SUCCESS) return result;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  if (out->version != kPciInfoExtV1Tag) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  const Gpu& gpu = question.gpu();
  // A display controller: one for VGA, or for 3D only.
  const uint32_t id = gpu.model->pci_device_id;
  *out = {kPciInfoExtV1Tag, gpu.domain, gpu.bus, gpu.slot, id, id, 3, gpu.model->fans ? 0u : 2u, {}};
  snprintf(out->busId, sizeof out->busId, "%08X:%02X:%02X.0", gpu.domain, gpu.bus & 0xff, gpu.slot & 0xff);
  return NVML_SUCCESS;
}

namespace {

// The same GPU 0, one switch 10, one NUMA node 40, across 50.
unsigned level_of(const Machine& machine, uint32_t first, uint32_t second) {
  const Gpu* gpus = machine.description.gpus;
  if (first == second) return 0;
  if (gpus[first].numa_node != gpus[second].numa_node) return 50;
  return gpus[first].pcie_switch == gpus[second].pcie_switch ? 10 : 40;
}

// The processors of this computer, shared out among the nodes in order.
struct Processors {
  long first, last;
};
Processors processors_of(const Machine& machine, uint32_t gpu) {
  long nodes = 1;
  for (uint32_t i = 0; i < machine.gpu_count; ++i)
    if (machine.description.gpus[i].numa_node >= nodes) nodes = machine.description.gpus[i].numa_node + 1;
  const long all = sysconf(_SC_NPROCESSORS_CONF), node = machine.description.gpus[gpu].numa_node;
  if (all < nodes) return {0, all - 1};
  return {all * node / nodes, all * (node + 1) / nodes - 1};
}

// A bit for each number from `first` to `last`.
nvmlReturn_t give_bits(long first, long last, unsigned words, unsigned long* out) {
  constexpr long kBits = sizeof *out * 8;
  if (words == 0) return NVML_ERROR_INVALID_ARGUMENT;
  for (unsigned i = 0; i < words; ++i) out[i] = 0;
  for (long bit = first; bit <= last && bit < words * kBits; ++bit) out[bit / kBits] |= 1ul << bit % kBits;
  return NVML_SUCCESS;
}

}  // namespace

NVML_EXPORT nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t first, nvmlDevice_t second, int* out) {
  Question a, b;
  nvmlReturn_t result = a.ask(first, Call::topology);
  if (result != NVML_SUCCESS) return result;
  result = b.ask(second, Call::topology);
  if (result != NVML_SUCCESS) return result;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  *out = static_cast<int>(level_of(*a.machine, a.device.gpu, b.device.gpu));
  return NVML_SUCCESS;
}

// The GPUs that are no farther than this level.
NVML_EXPORT nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t handle, unsigned level, unsigned* count, nvmlDevice_t* out) {
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::topology, count);
  if (result != NVML_SUCCESS) return result;
  nvmlDevice_t near[kMaxGpus];
  unsigned found = 0;
  for (uint32_t gpu = 0; gpu < question.machine->gpu_count; ++gpu)
    if (gpu != question.device.gpu && level_of(*question.machine, question.device.gpu, gpu) <= level)
      near[found++] = handle_of(gpu, 0);
  return give_list(near, found, count, out);
}

NVML_EXPORT nvmlDeviceGetNumaNodeId(nvmlDevice_t handle, unsigned* out) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::topology, Symbols::early_r535);
  if (result != NVML_SUCCESS) return result;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  *out = question.gpu().numa_node;
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetCpuAffinity(nvmlDevice_t handle, unsigned words, unsigned long* out) {
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::topology, out);
  if (result != NVML_SUCCESS) return result;
  const Processors processors = processors_of(*question.machine, question.device.gpu);
  return give_bits(processors.first, processors.last, words, out);
}

// Scopes: 0 the NUMA node, 1 the socket.
NVML_EXPORT nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t handle, unsigned words, unsigned long* out,
                                                unsigned scope) {
  if (scope > 1) return NVML_ERROR_INVALID_ARGUMENT;
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::topology, out, Symbols::old);
  if (result != NVML_SUCCESS) return result;
  const Processors processors = processors_of(*question.machine, question.device.gpu);
  return give_bits(processors.first, processors.last, words, out);
}

NVML_EXPORT nvmlDeviceGetMemoryAffinity(nvmlDevice_t handle, unsigned words, unsigned long* out, unsigned scope) {
  if (scope > 1) return NVML_ERROR_INVALID_ARGUMENT;
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::topology, out, Symbols::old);
  if (result != NVML_SUCCESS) return result;
  return give_bits(question.gpu().numa_node, question.gpu().numa_node, words, out);
}

NVML_EXPORT nvmlSystemGetTopologyGpuSet(unsigned processor, unsigned* count, nvmlDevice_t* out) {
  const Machine* machine = initialized_machine();
  if (!machine) return NVML_ERROR_UNINITIALIZED;
  nvmlDevice_t near[kMaxGpus];
  unsigned found = 0;
  for (uint32_t gpu = 0; gpu < machine->gpu_count; ++gpu) {
    const Processors processors = processors_of(*machine, gpu);
    if (processor >= processors.first && processor <= processors.last) near[found++] = handle_of(gpu, 0);
  }
  return give_list(near, found, count, out);
}
