// The machines that can be simulated: what is fixed about them. What changes lives in the shared state.
#pragma once
#include <cstddef>
#include <cstdint>

#include "simulator/layout.h"

namespace simulator {

struct Model {
  const char* name;
  uint32_t memoryMiB;
  uint32_t reservedMiB;
  uint32_t computeCapability;  // 90 = 9.0
  uint32_t multiprocessors;
  uint32_t powerLimitMw;
  uint32_t idlePowerMw;
  uint32_t idleTemperature;
  uint32_t speed;  // CUDA's default order is fastest first
  uint32_t pciDeviceId;
  const char* migProfiles[3];  // of one, two and three slices; null: no MIG
  bool noPowerSensor;
};

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
  uint32_t bus;
  uint32_t numaNode;
  uint64_t baseUsed;  // in use on an idle GPU
  bool display;
  bool mig;
  MigInstance instances[kUnits - 1];  // as they are when MIG is on; unit = index here + 1
  uint32_t graphicsCount;
  GraphicsProcess graphics[kMaxGraphics];  // shown while `display` is on, or always where an X server opens
  bool graphicsAlways;                     // every GPU, not only those with a monitor
  uint64_t total() const { return model->memoryMiB * kMiB; }
  uint64_t reserved() const { return model->reservedMiB * kMiB; }
  bool canMig() const { return model->migProfiles[0] != nullptr; }
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
};

struct NamedMachine {
  const char* name;
  const char* summary;
};
extern const NamedMachine kNamedMachines[];
extern const size_t kNamedMachineCount;

// `name` as in GPU_OWNER_SIMULATE: 1 to 64 for as many plain GPUs, or a named machine.
bool describeMachine(const char* name, MachineDescription* out);

// "h200x8, a100x4-mig, …" for messages.
void listMachineNames(char* out, size_t size);

// The name of a made-up process, or null.
const char* graphicsProcessName(const MachineDescription& machine, uint32_t pid);

}  // namespace simulator
