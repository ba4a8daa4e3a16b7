// One GPU as NVML shows it: its handle, what never changes, and a sample of what does.
#pragma once

#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "nvml/library.h"

namespace gpu_owner::nvml {

// Health of a GPU in a sample: an NVML code (0 = fine), or this: the driver has not answered for it in time.
constexpr int kNotResponding = -1;

// A part of a GPU that has MIG on. An instance has temperature and display of its GPU.
struct MigInstance {
  std::string uuid, name;
  uint32_t slot = 0;  // NVML's number of it on its GPU, the device number of `nvidia-smi -L`; some may be missing
  uint32_t gpu_instance = ~0u, compute_instance = ~0u;
  // Values at one moment; unknown as in a Sample.
  int health = SUCCESS;  // beside that of its GPU
  Memory memory;
  double compute_mode = NAN;
  bool processes_known = false;
  std::vector<Process> compute, graphics;

  // Keeps what identifies it.
  void forget_values();
};

// Faults of a GPU's memory; NaN where the driver can't tell.
struct MemoryHealth {
  double uncorrectable_errors = NAN;                 // since the last reset
  double repair_pending = NAN, repair_failed = NAN;  // see Library::memory_repair
};

// A GPU's values at one moment; NaN where the driver can't tell.
struct Sample {
  int health = ERROR_UNINITIALIZED;
  Memory memory;
  double power_milliwatts = NAN, power_limit_milliwatts = NAN, utilization_percent = NAN, temperature_celsius = NAN;
  double energy_millijoules = NAN;  // since the driver was loaded; see read_energy()
  double compute_mode = NAN, display_active = NAN, mig_mode = NAN;
  MemoryHealth memory_health;  // some seconds old, unless it was asked for: see Gpu::read
  bool processes_known = false;
  std::vector<Process> compute, graphics;
  bool process_use_known = false;  // see read_process_use()
  std::vector<ProcessUtilization> process_use;
  std::vector<MigInstance> instances;

  // The driver doesn't answer: what was known is no longer, except which instances there were.
  void fall_silent();
};

// Which samples have the energy counter: it is one call more per GPU. `chosen`: those that are about to be claimed or
// are claimed.
enum class EnergyOf : uint8_t { none, chosen, all };
// From now on these, and what was asked for before.
void read_energy(EnergyOf which);
// Whether they have each process's share of the multiprocessors from now on, for those who show it.
void read_process_use(bool on);

class Gpu {
 public:
  explicit Gpu(uint32_t index) : index_(index) {}

  // Attaches the GPU if that isn't done yet (1 to 3 s without persistence mode), then samples it. May block for as
  // long as the driver pleases. The health of its memory takes two calls and rarely changes: where `is_chosen` isn't
  // set, an answer of the last seconds will do.
  void read(const Library& library, Sample& sample, bool is_chosen = false);

  uint32_t index() const { return index_; }
  // null before it is attached.
  Device handle() const { return handle_; }
  const std::string& uuid() const { return uuid_; }
  const std::string& name() const { return name_; }
  const std::string& pci_bus_id() const { return pci_bus_id_; }
  // Whether the driver kept the GPU awake when it was attached: 0, 1, or -1 where it doesn't tell.
  int persistence() const { return persistence_; }
  // How many calls the driver has answered for it, for those who wonder whether it does.
  uint32_t answers() const { return answers_.load(std::memory_order_relaxed); }

 private:
  Code attach(const Library& library);
  // Notes that a call has returned.
  Code answered(Code code);
  void read_instances(const Library& library, Sample& sample);
  bool identify(const Library& library, Device handle, uint32_t slot, MigInstance& instance);
  template <typename Note>
  void read_memory_health(const Library& library, Note note);

  uint32_t index_;
  Device handle_ = nullptr;
  std::string uuid_, name_, pci_bus_id_;
  std::vector<MigInstance> instances_;  // as last seen, without values
  int persistence_ = -1;
  MemoryHealth memory_health_;       // as last asked for
  int64_t memory_health_until_ = 0;  // when it is too old, on the monotonic clock
  std::atomic<uint32_t> answers_{0};
};

}  // namespace gpu_owner::nvml
