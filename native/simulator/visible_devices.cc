#include "simulator/visible_devices.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "simulator/faults.h"

namespace simulator {
namespace {

struct Enumeration {
  uint32_t gpus[kMaxGpus];
  uint32_t count = 0;
};

// Fastest first, unless PCI order is asked for. A GPU that can't be used isn't numbered at all.
Enumeration enumerate(const Machine& machine, const char* order) {
  Enumeration all;
  const bool pci = order && strcmp(order, "PCI_BUS_ID") == 0;
  for (uint32_t gpu = 0; gpu < machine.gpuCount; ++gpu) {
    if (healthOf(machine, gpu)) continue;
    uint32_t at = all.count++;
    const uint32_t speed = machine.description.gpus[gpu].model->speed;
    for (; !pci && at > 0 && machine.description.gpus[all.gpus[at - 1]].model->speed < speed; --at)
      all.gpus[at] = all.gpus[at - 1];
    all.gpus[at] = gpu;
  }
  return all;
}

// A GPU with MIG on is seen as its first instance.
bool wholeOrFirstInstance(const Machine& machine, uint32_t gpu, VisibleDevice* out) {
  *out = {gpu, 0};
  if (!migOn(machine, gpu)) return true;
  for (uint32_t unit = 1; unit < kUnits; ++unit)
    if (instanceExists(machine, gpu, unit)) {
      out->unit = unit;
      return true;
    }
  return false;
}

// Where the variable isn't set: one of each GPU instance.
uint32_t allOf(const Machine& machine, uint32_t gpu, VisibleDevice (&out)[kMaxGpus], uint32_t at) {
  if (!migOn(machine, gpu)) {
    if (at == kMaxGpus) return 0;
    out[at] = {gpu, 0};
    return 1;
  }
  uint32_t count = 0;
  for (uint32_t unit = 1; unit < kUnits && at + count < kMaxGpus; ++unit)
    if (instanceExists(machine, gpu, unit)) out[at + count++] = {gpu, unit};
  return count;
}

bool byIndex(const Machine& machine, const Enumeration& all, const char* token, VisibleDevice* out) {
  char* end;
  const long index = strtol(token, &end, 10);
  while (*end == ' ' || *end == '\t') ++end;
  if (end == token || *end || index < 0 || index >= static_cast<long>(all.count)) return false;
  return wholeOrFirstInstance(machine, all.gpus[index], out);
}

bool byGpuUuid(const Machine& machine, const Enumeration& all, const char* token, VisibleDevice* out) {
  const size_t length = strlen(token);
  uint32_t matches = 0, match = 0;
  if (length <= strlen("GPU-")) return false;
  for (uint32_t i = 0; i < all.count; ++i)
    if (strncmp(machine.description.gpus[all.gpus[i]].uuid, token, length) == 0) {
      match = all.gpus[i];
      ++matches;
    }
  return matches == 1 && wholeOrFirstInstance(machine, match, out);
}

bool byMigUuid(const Machine& machine, const Enumeration& all, const char* token, VisibleDevice* out) {
  // The older form: MIG-GPU-<uuid>/<GPU instance>/<compute instance>.
  const char* slash = strchr(token, '/');
  const bool older = strncmp(token, "MIG-GPU-", 8) == 0 && slash;
  unsigned gpuInstance = 0, computeInstance = 0;
  char rest;
  if (older && sscanf(slash, "/%u/%u%c", &gpuInstance, &computeInstance, &rest) != 2) return false;
  for (uint32_t i = 0; i < all.count; ++i) {
    const uint32_t gpu = all.gpus[i];
    const Gpu& description = machine.description.gpus[gpu];
    if (!migOn(machine, gpu)) continue;
    if (older && (strncmp(token + 4, description.uuid, static_cast<size_t>(slash - token) - 4) != 0 ||
                  description.uuid[slash - token - 4] != 0))
      continue;
    for (uint32_t unit = 1; unit < kUnits; ++unit) {
      const MigInstance& instance = description.instances[unit - 1];
      if (!instanceExists(machine, gpu, unit)) continue;
      if (older ? instance.gpuInstanceId == gpuInstance && instance.computeInstanceId == computeInstance
                : strcmp(instance.uuid, token) == 0) {
        *out = {gpu, unit};
        return true;
      }
    }
  }
  return false;
}

bool showsSeveralInstances(const Machine& machine) { return atoi(machine.description.driverVersion) >= 570; }

// Before R570, CUDA shows one MIG instance at most, and no whole GPU beside it.
uint32_t onlyOneInstance(const Machine& machine, VisibleDevice (&devices)[kMaxGpus], uint32_t count) {
  if (showsSeveralInstances(machine)) return count;
  for (uint32_t i = 0; i < count; ++i)
    if (devices[i].unit) {
      devices[0] = devices[i];
      return 1;
    }
  return count;
}

}  // namespace

uint32_t visibleDevices(const Machine& machine, const char* list, const char* order, VisibleDevice (&out)[kMaxGpus]) {
  const Enumeration all = enumerate(machine, order);
  uint32_t count = 0;
  if (!list || hasQuirk(machine, kAllVisible)) {
    for (uint32_t i = 0; i < all.count; ++i) count += allOf(machine, all.gpus[i], out, count);
    return onlyOneInstance(machine, out, count);
  }
  bool sawGpu = false, sawMig = false;
  for (const char* at = list; *at;) {
    char token[128];
    while (*at == ' ' || *at == '\t') ++at;
    size_t length = strcspn(at, ",");
    const char* next = at + length + (at[length] == ',');
    while (length > 0 && (at[length - 1] == ' ' || at[length - 1] == '\t')) --length;
    if (length >= sizeof token) break;
    memcpy(token, at, length);
    token[length] = 0;
    at = next;

    // The list ends at the first entry that names nothing.
    VisibleDevice device;
    const bool isGpu = strncmp(token, "GPU-", 4) == 0, isMig = strncmp(token, "MIG-", 4) == 0;
    if ((isGpu && sawMig) || (isMig && sawGpu)) break;
    sawGpu |= isGpu;
    sawMig |= isMig;
    if (!(isMig   ? byMigUuid(machine, all, token, &device)
          : isGpu ? byGpuUuid(machine, all, token, &device)
                  : byIndex(machine, all, token, &device)))
      break;
    for (uint32_t i = 0; i < count; ++i)
      if (out[i].gpu == device.gpu && out[i].unit == device.unit) return 0;  // duplicates: no device at all
    if (count == kMaxGpus) break;
    out[count++] = device;
  }
  return onlyOneInstance(machine, out, count);
}

}  // namespace simulator
