// The machines that can be simulated: what is fixed about them. What changes lives in the shared state.
#pragma once
#include <cstddef>
#include <cstdint>

#include "simulator/layout.h"

namespace simulator {

// As in NVML.
enum class Brand : uint32_t { Unknown = 0, Quadro = 1, Tesla = 2, GeForce = 5, NvidiaRtx = 13, Nvidia = 14 };
enum class Ecc { None, Off, On };

// 0 where the card lacks something: fans, NVLinks.
struct Model {
  const char* name;
  Brand brand;
  uint32_t computeCapability;  // 90 = 9.0
  uint32_t multiprocessors;
  uint32_t speed;  // CUDA's default order is fastest first
  uint32_t pciDeviceId;
  uint32_t memoryMiB;
  uint32_t reservedMiB;
  uint32_t bar1MiB;
  uint32_t memoryBusBits;
  Ecc ecc;
  uint32_t idlePowerMw;
  uint32_t busyPowerMw;
  uint32_t powerLimitMw;
  uint32_t lowestPowerLimitMw;
  uint32_t highestPowerLimitMw;
  bool noPowerSensor;
  uint32_t idleTemperature;
  uint32_t busyTemperature;
  uint32_t slowdownTemperature;
  uint32_t shutdownTemperature;
  uint32_t fans;  // 0: cooled by the server
  uint32_t idleFanPercent;
  uint32_t idleSmMhz;
  uint32_t busySmMhz;
  uint32_t smMhz;  // the highest
  uint32_t idleMemoryMhz;
  uint32_t memoryMhz;
  uint32_t videoMhz;
  uint32_t idleState;  // 8 = P8; servers stay in P0
  uint32_t pcieGeneration;
  uint32_t pcieWidth;
  uint32_t nvlinks;
  const char* migProfiles[3];  // of one, two and three slices; null: no MIG
};

// Common to the models of one architecture.
struct Architecture {
  uint32_t computeCapability;  // the lowest of it
  uint32_t number;             // as in NVML
  uint32_t coresPerMultiprocessor;
  uint32_t nvlinkVersion;
  const char* vbios;  // how versions begin
};
const Architecture& architectureOf(const Model& model);

struct MigInstance {
  bool present;
  char uuid[48];
  const char* profile;
  uint32_t gpuInstanceId;
  uint32_t computeInstanceId;
  uint32_t slices;
  uint64_t memory;
};

struct GraphicsProcess {
  const char* name;
  uint32_t pid;
  uint32_t memoryMiB;
};
constexpr uint32_t kMaxGraphics = 4;

struct Gpu {
  const Model* model;
  char uuid[48];
  uint32_t domain, bus, slot;  // on the PCI bus
  uint32_t numaNode;
  uint64_t baseUsed;  // in use on an idle GPU
  bool display;
  bool mig;
  MigInstance instances[kUnits - 1];  // as they are when MIG is on; unit = index here + 1
  uint32_t graphicsCount;
  GraphicsProcess graphics[kMaxGraphics];  // shown while `display` is on, or always where an X server opens
  bool graphicsAlways;                     // every GPU, not only those with a monitor
  uint32_t computeMode;                    // as in NVML
  uint64_t unsupported;                    // calls that the driver doesn't support, a bit each
  uint64_t total() const { return model->memoryMiB * kMiB; }
  uint64_t reserved() const { return model->reservedMiB * kMiB; }
  bool canMig() const { return model->migProfiles[0] != nullptr; }
  bool isAt(unsigned inDomain, unsigned onBus, unsigned inSlot) const {
    return inDomain == domain && onBus == bus && inSlot == slot;
  }
};

// Room for the words of a machine file.
struct FileTexts {
  char driverVersion[32];
  char nvmlVersion[40];
  Model models[kMaxGpus];
  char names[kMaxGpus][64];
  char profiles[kMaxGpus][kUnits - 1][16];
  char graphics[kMaxGpus][kMaxGraphics][64];
};

// Which functions the simulated driver's generation has.
enum class Symbols { Oldest, Old, EarlyR535, Current };

struct MachineDescription {
  char name[64];
  const char* driverVersion;
  const char* nvmlVersion;
  int cudaVersion;
  Symbols symbols;
  bool wsl;
  bool integrated;  // a Jetson: the GPU shares the system's memory
  bool persistence;
  uint32_t gpuCount;
  Gpu gpus[kMaxGpus];
  FileTexts texts;
};

struct NamedMachine {
  const char* name;
  const char* summary;
};
extern const NamedMachine kNamedMachines[];
extern const size_t kNamedMachineCount;

// `name` as in GPU_OWNER_SIMULATE: 1 to 64 for as many plain GPUs, or a named machine.
bool describeMachine(const char* name, MachineDescription* out);

// The parts that descriptions are made of. The first makes one without GPUs, under the current driver.
void beginMachine(const char* name, MachineDescription* out);
const Model* findModel(const char* name);
Gpu& addGpu(MachineDescription* machine, const Model& model, uint32_t bus);
// An instance of one to seven slices, in a place from 0 to 6.
MigInstance& addInstance(MachineDescription* machine, uint32_t gpu, uint32_t place, uint32_t slices, uint32_t id);
// Beyond any kernel's largest pid, so that it is never a real process of the machine this runs on.
constexpr uint32_t kFirstMadeUpPid = 4194400;

// "h200x8, a100x4-mig, …" for messages.
void listMachineNames(char* out, size_t size);

// The name of a made-up process, or null.
const char* graphicsProcessName(const MachineDescription& machine, uint32_t pid);

}  // namespace simulator
