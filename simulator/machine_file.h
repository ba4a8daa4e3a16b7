// Machines that a file describes: docs/simulator.md has the format.
#pragma once
#include <cstring>

#include "simulator/error.h"
#include "simulator/machines.h"

namespace simulator {

// GPU_OWNER_SIMULATE names a file if it has a slash; else a machine of the tables.
inline bool is_machine_file(const char* name) { return strchr(name, '/') != nullptr; }

// The machine's name is that of the file and a hash of its contents: an edited file is another machine, with a state of
// its own. lib/config/simulation.ts makes the same name.
bool describe_machine_file(const char* path, MachineDescription* out, Error* error);

// The same from the contents.
bool parse_machine_file(const char* path, const char* text, size_t size, MachineDescription* out, Error* error);

}  // namespace simulator
