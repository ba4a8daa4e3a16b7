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
  for (uint32_t gpu = 0; gpu < machine.gpu_count; ++gpu) {
    if (health_of(machine, gpu)) continue;
    uint32_t at = all.count++;
    const uint32_t speed = machine.description.gpus[gpu].model->speed;
    for (; !pci && at > 0 && machine.description.gpus[all.gpus[at - 1]].model->speed < speed; --at)
      all.gpus[at] = all.gpus[at - 1];
    all.gpus[at] = gpu;
  }
  return all;
}

// A GPU with MIG on is seen as its first instance.
bool whole_or_first_instance(const Machine& machine, uint32_t gpu, VisibleDevice* out) {
  *out = {gpu, 0};
  if (!mig_on(machine, gpu)) return true;
  for (uint32_t unit = 1; unit < kUnits; ++unit)
    if (instance_exists(machine, gpu, unit)) {
      out->unit = unit;
      return true;
    }
  return false;
}

// Where the variable isn't set: one of each GPU instance.
uint32_t all_of(const Machine& machine, uint32_t gpu, VisibleDevice (&out)[kMaxGpus], uint32_t at) {
  if (!mig_on(machine, gpu)) {
    if (at == kMaxGpus) return 0;
    out[at] = {gpu, 0};
    return 1;
  }
  uint32_t count = 0;
  for (uint32_t unit = 1; unit < kUnits && at + count < kMaxGpus; ++unit)
    if (instance_exists(machine, gpu, unit)) out[at + count++] = {gpu, unit};
  return count;
}

bool by_index(const Machine& machine, const Enumeration& all, const char* token, VisibleDevice* out) {
  char* end;
  const long index = strtol(token, &end, 10);
  while (*end == ' ' || *end == '\t') ++end;
  if (end == token || *end || index < 0 || index >= static_cast<long>(all.count)) return false;
  return whole_or_first_instance(machine, all.gpus[index], out);
}

bool by_gpu_uuid(const Machine& machine, const Enumeration& all, const char* token, VisibleDevice* out) {
  const size_t length = strlen(token);
  uint32_t matches = 0, match = 0;
  if (length <= strlen("GPU-")) return false;
  for (uint32_t i = 0; i < all.count; ++i)
    if (strncmp(machine.description.gpus[all.gpus[i]].uuid, token, length) == 0) {
      match = all.gpus[i];
      ++matches;
    }
  return matches == 1 && whole_or_first_instance(machine, match, out);
}

bool by_mig_uuid(const Machine& machine, const Enumeration& all, const char* token, VisibleDevice* out) {
  // The older form: MIG-GPU-<uuid>/<GPU instance>/<compute instance>.
  const char* slash = strchr(token, '/');
  const bool older = strncmp(token, "MIG-GPU-", 8) == 0 && slash;
  unsigned gpu_instance = 0, compute_instance = 0;
  char rest;
  if (older && sscanf(slash, "/%u/%u%c", &gpu_instance, &compute_instance, &rest) != 2) return false;
  for (uint32_t i = 0; i < all.count; ++i) {
    const uint32_t gpu = all.gpus[i];
    const Gpu& description = machine.description.gpus[gpu];
    if (!mig_on(machine, gpu)) continue;
    if (older && (strncmp(token + 4, description.uuid, static_cast<size_t>(slash - token) - 4) != 0 ||
                  description.uuid[slash - token - 4] != 0))
      continue;
    for (uint32_t unit = 1; unit < kUnits; ++unit) {
      const MigInstance& instance = description.instances[unit - 1];
      if (!instance_exists(machine, gpu, unit)) continue;
      if (older ? instance.gpu_instance_id == gpu_instance && instance.compute_instance_id == compute_instance
                : strcmp(instance.uuid, token) == 0) {
        *out = {gpu, unit};
        return true;
      }
    }
  }
  return false;
}

bool shows_several_instances(const Machine& machine) { return atoi(machine.description.driver_version) >= 570; }

// Before R570, CUDA shows one MIG instance at most, and no whole GPU beside it.
uint32_t only_one_instance(const Machine& machine, VisibleDevice (&devices)[kMaxGpus], uint32_t count) {
  if (shows_several_instances(machine)) return count;
  for (uint32_t i = 0; i < count; ++i)
    if (devices[i].unit) {
      devices[0] = devices[i];
      return 1;
    }
  return count;
}

}  // namespace

uint32_t visible_devices(const Machine& machine, const char* list, const char* order, VisibleDevice (&out)[kMaxGpus]) {
  const Enumeration all = enumerate(machine, order);
  uint32_t count = 0;
  if (!list || has_quirk(machine, kAllVisible)) {
    for (uint32_t i = 0; i < all.count; ++i) count += all_of(machine, all.gpus[i], out, count);
    return only_one_instance(machine, out, count);
  }
  bool saw_gpu = false, saw_mig = false;
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
    const bool is_gpu = strncmp(token, "GPU-", 4) == 0, is_mig = strncmp(token, "MIG-", 4) == 0;
    if ((is_gpu && saw_mig) || (is_mig && saw_gpu)) break;
    saw_gpu |= is_gpu;
    saw_mig |= is_mig;
    if (!(is_mig   ? by_mig_uuid(machine, all, token, &device)
          : is_gpu ? by_gpu_uuid(machine, all, token, &device)
                   : by_index(machine, all, token, &device)))
      break;
    for (uint32_t i = 0; i < count; ++i)
      if (out[i].gpu == device.gpu && out[i].unit == device.unit) return 0;  // duplicates: no device at all
    if (count == kMaxGpus) break;
    out[count++] = device;
  }
  return only_one_instance(machine, out, count);
}

}  // namespace simulator
