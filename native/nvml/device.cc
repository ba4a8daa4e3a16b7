#include "nvml/device.h"

#include <cmath>

namespace gpu_owner::nvml {
namespace {

constexpr uint32_t kMostInstances = 64;

// Codes that say something of the GPU as a whole, not of the one value that was asked for.
// An unknown error (999) isn't, where it is about a sensor: some laptops' power can't be read, and they compute well.
bool is_about_device(Code code, bool sensor) {
  if (code == ERROR_UNKNOWN) return !sensor;
  return code == ERROR_GPU_IS_LOST || code == ERROR_RESET_REQUIRED || code == ERROR_IRQ_ISSUE ||
         code == ERROR_INSUFFICIENT_POWER || code == ERROR_DRIVER_NOT_LOADED || code == ERROR_UNINITIALIZED ||
         code == ERROR_LIBRARY_NOT_FOUND || code == ERROR_OPERATING_SYSTEM || code == ERROR_LIB_RM_VERSION_MISMATCH;
}

}  // namespace

void Sample::clear() {
  health = SUCCESS;
  memory = {};
  power_milliwatts = power_limit_milliwatts = utilization_percent = temperature_celsius = NAN;
  compute_mode = display_active = mig_mode = NAN;
  processes_known = false;
  compute.clear();
  graphics.clear();
  instances.clear();
}

void Gpu::look(const Library& library, Sample& sample) {
  sample.clear();
  if (handle_ == nullptr) {
    sample.health = attach(library);
    if (sample.health != SUCCESS) return;
  }
  const auto note = [&sample](Code code, bool sensor = false) {
    if (is_about_device(code, sensor) && sample.health == SUCCESS) sample.health = code;
    return code == SUCCESS;
  };
  const auto number = [&](auto method, double& out) {
    uint32_t value = 0;
    if (note((library.*method)(handle_, value), true)) out = value;
  };
  Memory memory;
  if (note(library.memory(handle_, memory))) sample.memory = memory;
  number(&Library::power_milliwatts, sample.power_milliwatts);
  number(&Library::power_limit_milliwatts, sample.power_limit_milliwatts);
  number(&Library::utilization_percent, sample.utilization_percent);
  int32_t celsius = 0;
  if (note(library.temperature_celsius(handle_, celsius), true)) sample.temperature_celsius = celsius;
  number(&Library::compute_mode, sample.compute_mode);
  number(&Library::display_active, sample.display_active);
  number(&Library::mig_mode, sample.mig_mode);
  // Either list missing means that nobody can say the GPU is unused, except where there are no graphics at all.
  sample.processes_known = note(library.processes(handle_, Library::ProcessKind::compute, sample.compute));
  const Code graphics = library.processes(handle_, Library::ProcessKind::graphics, sample.graphics);
  const bool no_graphics = graphics == ERROR_NOT_SUPPORTED || graphics == ERROR_FUNCTION_NOT_FOUND;
  if (!note(graphics) && !no_graphics) sample.processes_known = false;
  if (sample.mig_mode == 1) sample_instances(library, sample);
}

Code Gpu::attach(const Library& library) {
  Device handle = nullptr;
  Code code = library.device_handle(index_, handle);
  if (code != SUCCESS) return code;
  code = library.uuid(handle, uuid_);
  if (code != SUCCESS) return code;  // without a UUID it can't be claimed
  if (library.name(handle, name_) != SUCCESS) name_.clear();
  if (library.pci_bus_id(handle, pci_bus_id_) != SUCCESS) pci_bus_id_.clear();
  uint32_t persistence = 0;
  if (library.persistence_mode(handle, persistence) == SUCCESS) persistence_ = persistence != 0 ? 1 : 0;
  handle_ = handle;
  return SUCCESS;
}

void Gpu::sample_instances(const Library& library, Sample& sample) {
  uint32_t slots = 0;
  if (library.mig_max_count(handle_, slots) != SUCCESS) return;
  for (uint32_t slot = 0; slot < slots && slot < kMostInstances; slot++) {
    Device handle = nullptr;
    if (library.mig_handle(handle_, slot, handle) != SUCCESS) continue;  // NOT_FOUND = an empty slot
    MigInstance instance;
    if (library.uuid(handle, instance.uuid) != SUCCESS) continue;
    library.name(handle, instance.name);
    library.gpu_instance_id(handle, instance.gpu_instance);
    library.compute_instance_id(handle, instance.compute_instance);
    if (library.memory(handle, instance.memory) != SUCCESS) instance.memory = {};
    // With MIG on, the compute mode is a matter of the instances.
    uint32_t mode = 0;
    if (std::isnan(sample.compute_mode) && library.compute_mode(handle, mode) == SUCCESS) sample.compute_mode = mode;
    sample.instances.push_back(std::move(instance));
  }
}

}  // namespace gpu_owner::nvml
