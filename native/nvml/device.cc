#include "nvml/device.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <utility>

#include "process/futex.h"

namespace gpu_owner::nvml {
namespace {

constexpr uint32_t kMaxInstances = 64;
constexpr int64_t kMemoryHealthAge = 5'000'000'000;  // ns

std::atomic<EnergyOf> with_energy{EnergyOf::none};
std::atomic<bool> with_process_use{false};
// The driver samples several times a second, and keeps some seconds.
constexpr std::chrono::microseconds kProcessUseSpan{2000000};

// Codes that say something of the GPU as a whole, not of the one value that was asked for.
// An unknown error (999) isn't, where it is about a sensor: some laptops' power can't be read, and they compute well.
bool is_about_device(Code code, bool sensor) {
  if (code == ERROR_UNKNOWN) return !sensor;
  return code == ERROR_GPU_IS_LOST || code == ERROR_RESET_REQUIRED || code == ERROR_IRQ_ISSUE ||
         code == ERROR_INSUFFICIENT_POWER || code == ERROR_DRIVER_NOT_LOADED || code == ERROR_UNINITIALIZED ||
         code == ERROR_LIBRARY_NOT_FOUND || code == ERROR_OPERATING_SYSTEM || code == ERROR_LIB_RM_VERSION_MISMATCH;
}

// Codes of a driver that doesn't have a reading. All others mean that it has failed to read it.
bool is_absence(Code code) {
  return code == ERROR_NOT_SUPPORTED || code == ERROR_FUNCTION_NOT_FOUND || code == ERROR_VERSION_MISMATCH;
}

constexpr uint32_t kNoId = ~0u;

bool has_ids(const Process& process) { return process.gpu_instance != kNoId && process.compute_instance != kNoId; }

bool runs_on(const Process& process, const MigInstance& instance) {
  return process.gpu_instance == instance.gpu_instance && process.compute_instance == instance.compute_instance;
}

// The processes of an instance. The instance's own handle is asked: only privileged users get the list of the whole
// GPU. Where that isn't supported (hosts of virtual GPUs), `all`, the list of the GPU, has to do.
Code processes_of(const Library& library, Device handle, Library::ProcessKind kind, const MigInstance& instance,
                  const std::vector<Process>* all, std::vector<Process>& list) {
  Code code = library.processes(handle, kind, list);
  const bool id_known = instance.gpu_instance != kNoId && instance.compute_instance != kNoId;
  if (code == SUCCESS) {
    // Several compute instances can share a GPU instance, and drivers may list what runs on any of them.
    if (id_known) {
      const auto elsewhere = [&](const Process& process) { return has_ids(process) && !runs_on(process, instance); };
      list.erase(std::remove_if(list.begin(), list.end(), elsewhere), list.end());
    }
    return code;
  }
  if (code != ERROR_NOT_SUPPORTED || all == nullptr || !id_known) return code;
  if (!std::all_of(all->begin(), all->end(), has_ids)) return code;
  std::copy_if(all->begin(), all->end(), std::back_inserter(list),
               [&](const Process& process) { return runs_on(process, instance); });
  return SUCCESS;
}

// Clients of an MPS server that the list of compute processes leaves out. If a program computes through such a server,
// the server itself is on that list; so an idle GPU costs no further call.
void add_mps_clients(const Library& library, Device device, std::vector<Process>& compute) {
  if (compute.empty()) return;
  std::vector<Process> clients;
  if (library.processes(device, Library::ProcessKind::mps, clients) != SUCCESS) return;
  for (const Process& client : clients) {
    const auto same = [&client](const Process& other) { return other.pid == client.pid; };
    if (std::none_of(compute.begin(), compute.end(), same)) compute.push_back(client);
  }
}

}  // namespace

void read_energy(EnergyOf which) {
  if (which > with_energy.load()) with_energy.store(which);
}
void read_process_use(bool on) { with_process_use.store(on); }

void MigInstance::forget_values() {
  health = SUCCESS;
  memory = {};
  compute_mode = NAN;
  processes_known = false;
  compute.clear();
  graphics.clear();
}

void Sample::fall_silent() {
  std::vector<MigInstance> known = std::move(instances);
  *this = {};
  health = kNotResponding;
  for (MigInstance& instance : known) instance.forget_values();
  instances = std::move(known);
}

// Only the thread that asks about the GPU writes the number.
Code Gpu::answered(Code code) {
  answers_.store(answers_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  return code;
}

void Gpu::read(const Library& library, Sample& sample, bool is_chosen) {
  sample = {};
  sample.health = handle_ == nullptr ? attach(library) : SUCCESS;
  if (sample.health != SUCCESS) return;
  const auto note = [&](Code code, bool sensor = false) {
    answered(code);
    if (is_about_device(code, sensor) && sample.health == SUCCESS) sample.health = code;
    return code == SUCCESS;
  };
  const auto number = [&](auto method, double& out) {
    uint32_t value = 0;
    if (note((library.*method)(handle_, value), true)) out = value;
  };
  // Two readings that a claim depends on.
  const auto need = [&](Code code) {
    if (!is_absence(code) && sample.health == SUCCESS) sample.health = code;
  };
  Memory memory;
  const Code memory_code = library.memory(handle_, memory);
  if (note(memory_code)) sample.memory = memory;
  number(&Library::power_milliwatts, sample.power_milliwatts);
  number(&Library::power_limit_milliwatts, sample.power_limit_milliwatts);
  number(&Library::utilization_percent, sample.utilization_percent);
  int32_t celsius = 0;
  if (note(library.temperature_celsius(handle_, celsius), true)) sample.temperature_celsius = celsius;
  uint64_t energy = 0;
  const bool reads_energy =
      with_energy.load(std::memory_order_relaxed) > (is_chosen ? EnergyOf::none : EnergyOf::chosen);
  if (reads_energy && note(library.energy_millijoules(handle_, energy), true))
    sample.energy_millijoules = static_cast<double>(energy);
  number(&Library::compute_mode, sample.compute_mode);
  number(&Library::display_active, sample.display_active);
  uint32_t mig_mode = 0;
  const Code mig_code = library.mig_mode(handle_, mig_mode);
  if (note(mig_code)) sample.mig_mode = mig_mode;
  need(mig_code);
  // Only privileged users may read the memory of a GPU that is divided.
  if (memory_code != ERROR_NO_PERMISSION || sample.mig_mode != 1) need(memory_code);
  const int64_t now = process::monotonic_nanoseconds();
  if (is_chosen || now >= memory_health_until_) {
    read_memory_health(library, note);
    memory_health_until_ = now + kMemoryHealthAge;
  }
  sample.memory_health = memory_health_;
  // If either list is missing, it is unknown whether the GPU is unused, except where there are no graphics at all.
  sample.processes_known = note(library.processes(handle_, Library::ProcessKind::compute, sample.compute));
  add_mps_clients(library, handle_, sample.compute);
  const Code graphics = library.processes(handle_, Library::ProcessKind::graphics, sample.graphics);
  const bool no_graphics = graphics == ERROR_NOT_SUPPORTED || graphics == ERROR_FUNCTION_NOT_FOUND;
  if (!note(graphics) && !no_graphics) sample.processes_known = false;
  if (with_process_use.load(std::memory_order_relaxed) && !sample.compute.empty()) {
    const auto since = std::chrono::system_clock::now().time_since_epoch() - kProcessUseSpan;
    const auto microseconds = std::chrono::duration_cast<std::chrono::microseconds>(since).count();
    const Code use =
        answered(library.process_utilization(handle_, static_cast<uint64_t>(microseconds), sample.process_use));
    sample.process_use_known = use == SUCCESS || use == ERROR_NOT_FOUND;
  }
  if (sample.health != SUCCESS) {
    sample.instances = instances_;  // a GPU that has failed has lost none
  } else if (sample.mig_mode == 1) {
    read_instances(library, sample);
  } else {
    instances_.clear();
  }
}

template <typename Note>
void Gpu::read_memory_health(const Library& library, Note note) {
  memory_health_ = {};
  uint64_t errors = 0;
  if (note(library.uncorrectable_errors(handle_, errors), true))
    memory_health_.uncorrectable_errors = static_cast<double>(errors);
  bool pending = false, failed = false;
  if (note(library.memory_repair(handle_, pending, failed), true)) {
    memory_health_.repair_pending = pending;
    memory_health_.repair_failed = failed;
  }
}

Code Gpu::attach(const Library& library) {
  Device handle = nullptr;
  Code code = answered(library.device_handle(index_, handle));
  if (code != SUCCESS) return code;
  code = answered(library.uuid(handle, uuid_));
  if (code != SUCCESS) return code;  // without a UUID it can't be claimed
  if (library.name(handle, name_) != SUCCESS) name_.clear();
  if (library.pci_bus_id(handle, pci_bus_id_) != SUCCESS) pci_bus_id_.clear();
  uint32_t persistence = 0;
  if (library.persistence_mode(handle, persistence) == SUCCESS) persistence_ = persistence != 0 ? 1 : 0;
  handle_ = handle;
  return SUCCESS;
}

void Gpu::read_instances(const Library& library, Sample& sample) {
  uint32_t slots = 0;
  bool as_before = true;
  Code refused = library.mig_max_count(handle_, slots);
  for (uint32_t slot = 0; slot < slots && slot < kMaxInstances; slot++) {
    // Handles are read each time: the handle of a destroyed instance may later mean another one.
    Device handle = nullptr;
    MigInstance instance;
    Code code = answered(library.mig_handle(handle_, slot, handle));
    if (code == SUCCESS) code = answered(library.uuid(handle, instance.uuid));
    if (code != SUCCESS) {
      if (code != ERROR_NOT_FOUND) refused = code;  // NOT_FOUND = an empty slot
      continue;
    }
    as_before = identify(library, handle, slot, instance) && as_before;
    code = answered(library.memory(handle, instance.memory));
    if (code != SUCCESS) instance.memory = {};
    if (code != SUCCESS && !is_absence(code)) instance.health = code;
    // With MIG on, the compute mode is a matter of the instances.
    uint32_t mode = 0;
    if (library.compute_mode(handle, mode) == SUCCESS) instance.compute_mode = mode;
    if (std::isnan(sample.compute_mode)) sample.compute_mode = instance.compute_mode;
    using Kind = Library::ProcessKind;
    const auto list = [&](Kind kind, const std::vector<Process>& all, std::vector<Process>& out) {
      return processes_of(library, handle, kind, instance, sample.processes_known ? &all : nullptr, out);
    };
    instance.processes_known = list(Kind::compute, sample.compute, instance.compute) == SUCCESS;
    const Code graphics = list(Kind::graphics, sample.graphics, instance.graphics);
    if (graphics != SUCCESS && graphics != ERROR_NOT_SUPPORTED && graphics != ERROR_FUNCTION_NOT_FOUND) {
      instance.processes_known = false;
    }
    sample.instances.push_back(std::move(instance));
  }
  // The GPU may have instances, but the driver shows none.
  if (sample.instances.empty()) sample.health = refused;
  if (as_before && sample.instances.size() == instances_.size()) return;
  instances_ = sample.instances;
  for (MigInstance& instance : instances_) instance.forget_values();
}

// Asks once for the properties of an instance that never change. Returns whether it was known.
bool Gpu::identify(const Library& library, Device handle, uint32_t slot, MigInstance& instance) {
  instance.slot = slot;
  for (const MigInstance& known : instances_) {
    if (known.slot != slot || known.uuid != instance.uuid) continue;
    instance.name = known.name;
    instance.gpu_instance = known.gpu_instance;
    instance.compute_instance = known.compute_instance;
    return true;
  }
  library.name(handle, instance.name);
  library.gpu_instance_id(handle, instance.gpu_instance);
  library.compute_instance_id(handle, instance.compute_instance);
  return false;
}

}  // namespace gpu_owner::nvml
