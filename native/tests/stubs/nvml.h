// Settings that a test gives a stub of NVML (stubs/nvml.cc), which exports a variable `stub` of this type.
#pragma once

#include <cstdint>

struct NvmlStub {
  // Return codes of NVML, by function.
  struct Codes {
    int init, count, handle, uuid, name, pci, memory_v1, memory_v2, power, power_limit, utilization, temperature_v,
        temperature, compute_mode, display, mig, processes_v1, processes_v2, processes_v3, graphics, instance_processes,
        instance_memory, instance_id, mig_handle;
  } code;

  uint32_t gpus = 1;
  bool unterminated = false;  // strings fill their buffer to the last byte

  // Processes have the numbers 1000, 1001, … and 1, 2, … MiB.
  uint32_t processes = 0;
  uint32_t growth = 0;            // that many more after each call
  bool memory_unknown = false;    // the memory of every process
  uint32_t pretended_needed = 0;  // if any, never gives the list, and says that this many entries are needed
  bool needs_nothing = false;     // never gives the list, and says that it needs no room for it
  uint32_t pretended_count = 0;   // if any, says after success that there are this many

  // MIG (STUB_MIG): a bit for each slot that has an instance; instance i is GPU instance 7 + i and has one process,
  // 1000 + i.
  uint32_t slots = 0;
  char generation = '0';          // a digit of the instances' UUIDs
  bool lists_neighbours = false;  // an instance's list has the processes of all
  bool without_ids = false;       // no process says on which instance it runs

  // The list of MPS clients: that many, with the numbers mps_first, mps_first + 1, …
  uint32_t mps = 0, mps_first = 1000;
  int mps_code = 0;

  // Calls so far.
  int inits = 0, v1_calls = 0, v2_calls = 0, v3_calls = 0, instance_id_calls = 0, mps_calls = 0;
  uint32_t first_room = 0;  // how many entries the first caller had room for
};
