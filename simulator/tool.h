// gpu-owner-simulator: a file per command.
#pragma once
#include <string>

#include "simulator/faults.h"
#include "simulator/slots.h"

namespace simulator {

constexpr int kExitUsage = 64;

struct Arguments {
  int count;
  char** values;
};

int command_machines(const Arguments& arguments);
int command_show(const Machine& machine, const Arguments& arguments);
int command_set(const Machine& machine, const Arguments& arguments);
int command_reset(const Machine& machine, const Arguments& arguments);
// `program_name` to `program_end`: where the kernel looks for the command line of this process.
int command_occupy(const Machine& machine, const Arguments& arguments, char* program_name, char* program_end);
// Becomes the user's shell or, after `--`, a command.
int command_shell(const Machine& machine, const Arguments& arguments);

// The directory of the simulated libraries, which lies beside this program; empty, after saying why, if it can't be
// told.
std::string libraries_directory();

// Prints "gpu-owner-simulator: …" and how to get help; returns kExitUsage.
__attribute__((format(printf, 1, 2))) int usage_error(const char* format, ...);

// "2GiB", "500 MB", "0", bytes from 1 MiB on; false for anything else.
bool parse_size(const std::string& text, uint64_t* out);
// A whole or decimal number without sign.
bool parse_number(const std::string& text, double* out);
// A whole number up to `most`.
bool parse_count(const std::string& text, uint32_t most, uint32_t* out);

// An index or a UUID (or a unique beginning of one) of a GPU.
bool find_gpu(const Machine& machine, const std::string& text, uint32_t* out);
// A call's name; false if there is none.
bool find_call(const std::string& name, unsigned* out);
std::string call_names();

}  // namespace simulator
