// The machines that can be simulated: what is fixed about them. The shared state has what changes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "simulator/layout.h"

namespace simulator {

// As in NVML.
enum class Brand : uint32_t { unknown = 0, quadro = 1, tesla = 2, geforce = 5, nvidia_rtx = 13, nvidia = 14 };
enum class Ecc { none, off, on };

// 0 where the card lacks something: fans, NVLinks.
struct Model {
  const char* name;
  Brand brand;
  uint32_t compute_capability;  // 90 = 9.0
  uint32_t multiprocessors;
  uint32_t speed;  // CUDA's default order is fastest first
  uint32_t pci_device_id;
  uint32_t memory_mib;
  uint64_t reserved_bytes;
  uint32_t bar1_mib;
  uint32_t memory_bus_bits;
  Ecc ecc;
  uint32_t idle_power_mw;
  uint32_t busy_power_mw;
  uint32_t power_limit_mw;
  uint32_t lowest_power_limit_mw;
  uint32_t highest_power_limit_mw;
  bool no_power_sensor;
  uint32_t idle_temperature;
  uint32_t busy_temperature;
  uint32_t slowdown_temperature;
  uint32_t shutdown_temperature;
  uint32_t fans;  // 0: cooled by the server
  uint32_t idle_fan_percent;
  uint32_t idle_sm_mhz;
  uint32_t busy_sm_mhz;
  uint32_t sm_mhz;  // the highest
  uint32_t idle_memory_mhz;
  uint32_t memory_mhz;
  uint32_t video_mhz;
  uint32_t idle_state;  // 8 = P8; servers stay in P0
  uint32_t pcie_generation;
  uint32_t pcie_width;
  uint32_t nvlinks;
  const char* mig_profiles[3];  // for one, two and three slices; null: no MIG
};

// Common to the models of one architecture.
struct Architecture {
  uint32_t compute_capability;  // the lowest of it
  uint32_t number;              // as in NVML
  uint32_t cores_per_multiprocessor;
  uint32_t nvlink_version;
  const char* vbios;  // how versions begin
};
const Architecture& architecture_of(const Model& model);

struct MigInstance {
  bool present;
  char uuid[48];
  const char* profile;
  uint32_t gpu_instance_id;
  uint32_t compute_instance_id;
  uint32_t slices;
  uint64_t memory;
};

struct GraphicsProcess {
  const char* name;
  uint32_t pid;
  uint32_t memory_mib;
};
constexpr uint32_t kMaxGraphics = 4;

struct Gpu {
  const Model* model;
  char uuid[48];
  uint32_t domain, bus, slot;  // on the PCI bus
  uint32_t numa_node;
  uint32_t pcie_switch;  // GPUs of one node with the same number are behind one PCIe switch
  uint64_t base_used;    // in use on an idle GPU
  bool display;
  bool mig;
  MigInstance instances[kUnits - 1];  // as they are when MIG is on; unit = index here + 1
  uint32_t graphics_count;
  GraphicsProcess graphics[kMaxGraphics];  // shown while `display` is on, or always where an X server opens
  bool graphics_always;                    // every GPU, not only those with a monitor
  uint32_t compute_mode;                   // as in NVML
  uint64_t unsupported;                    // calls that the driver doesn't support, a bit each
  uint64_t total() const { return model->memory_mib * kMiB; }
  uint64_t reserved() const { return model->reserved_bytes; }
  bool can_mig() const { return model->mig_profiles[0] != nullptr; }
  bool is_at(unsigned in_domain, unsigned on_bus, unsigned in_slot) const {
    return in_domain == domain && on_bus == bus && in_slot == slot;
  }
};

// NVLinks that join two GPUs directly.
struct Bridge {
  uint32_t first, second;
  uint32_t links;
  bool is_down;
};
constexpr uint32_t kMaxBridges = 128;
constexpr uint32_t kMaxNvlinks = 18;  // of a GPU

// Room for the words of a machine file.
struct FileTexts {
  char driver_version[32];
  char nvml_version[40];
  Model models[kMaxGpus];
  char names[kMaxGpus][64];
  char profiles[kMaxGpus][kUnits - 1][16];
  char graphics[kMaxGpus][kMaxGraphics][64];
};

// Which functions the simulated driver's generation has.
enum class Symbols { oldest, old, early_r535, current };

struct MachineDescription {
  char name[64];
  const char* driver_version;
  const char* nvml_version;
  int cuda_version;
  Symbols symbols;
  bool wsl;
  bool integrated;  // a Jetson: the GPU shares the system's memory
  bool persistence;
  uint32_t gpu_count;
  Gpu gpus[kMaxGpus];
  // Without any, the NVLinks of eight GPUs and more lead to switches; those of fewer lead to all others in turn.
  uint32_t bridge_count;
  Bridge bridges[kMaxBridges];
  FileTexts texts;

  // The driver's major version.
  long release() const { return strtol(driver_version, nullptr, 10); }
};

// One of a GPU's NVLinks; `link` is smaller than their number.
struct NvLink {
  bool is_active;
  bool to_switch;
  uint32_t gpu;  // at the other end, if that isn't a switch
};
NvLink nvlink_of(const MachineDescription& machine, uint32_t gpu, uint32_t link);

struct NamedMachine {
  const char* name;
  const char* summary;
};
extern const NamedMachine kNamedMachines[];
extern const size_t kNamedMachineCount;

// `name` as in GPU_OWNER_SIMULATE: 1 to 64 for as many plain GPUs, or a named machine.
bool describe_machine(const char* name, MachineDescription* out);

// The parts that descriptions are made of. The first makes one without GPUs, under the current driver.
void begin_machine(const char* name, MachineDescription* out);
const Model* find_model(const char* name);
Gpu& add_gpu(MachineDescription* machine, const Model& model, uint32_t bus);
// An instance of one to seven slices, in a place from 0 to 6.
MigInstance& add_instance(MachineDescription* machine, uint32_t gpu, uint32_t place, uint32_t slices, uint32_t id);
// Beyond any kernel's largest pid, so that it is never a real process of the machine this runs on.
constexpr uint32_t kFirstMadeUpPid = 4194400;

// "h200x8, a100x4-mig, …" for messages.
void list_machine_names(char* out, size_t size);

// The name of a made-up process, or null.
const char* graphics_process_name(const MachineDescription& machine, uint32_t pid);

}  // namespace simulator
