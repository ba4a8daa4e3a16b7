// A simulated machine as one process sees it: its description, and the state shared with every other process.
#pragma once
#include "simulator/error.h"
#include "simulator/files.h"
#include "simulator/layout.h"
#include "simulator/machines.h"

namespace simulator {

struct Machine {
  MachineDescription description;
  uint32_t gpu_count;  // trusted, unlike anything behind the pointers
  Header* header;
  GpuState* gpus;
  char* slots;
  int slots_file;  // for looking at locks; an owner has one of its own
  uint64_t slots_inode;
  char directory[kPathSize];

  Slot* slot(uint32_t index) const { return reinterpret_cast<Slot*>(slots + index * slot_stride(gpu_count)); }
};

inline bool has_quirk(const Machine& machine, Quirk quirk) {
  return (machine.header->quirks.load(std::memory_order_relaxed) & quirk) != 0;
}

// The machine named by GPU_OWNER_SIMULATE.
bool describe(MachineDescription* out, Error* error);
// Opens it, or makes it with its defaults.
bool attach(Machine* machine, Error* error);
void detach(Machine* machine);

// The `slots` file once more, as an open file description of its own; -1 with errno when the program has closed ours.
int reopen_slots(const Machine& machine);

// Every switch as the machine has it when new. Processes stay.
void apply_defaults(const MachineDescription& description, Header* header, GpuState* gpus);

}  // namespace simulator
