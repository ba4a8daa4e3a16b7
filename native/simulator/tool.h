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

int commandMachines(const Arguments& arguments);
int commandShow(const Machine& machine, const Arguments& arguments);
int commandSet(const Machine& machine, const Arguments& arguments);
int commandReset(const Machine& machine, const Arguments& arguments);
// `programName` to `programEnd`: where the kernel looks for the command line of this process.
int commandOccupy(const Machine& machine, const Arguments& arguments, char* programName, char* programEnd);
// Becomes the user's shell or, after `--`, a command.
int commandShell(const Machine& machine, const Arguments& arguments);

// The directory of the simulated libraries, which lies beside this program; empty, after saying why, if it can't be
// told.
std::string librariesDirectory();

// Prints "gpu-owner-simulator: …" and how to get help; returns kExitUsage.
__attribute__((format(printf, 1, 2))) int usageError(const char* format, ...);

// "2GiB", "500 MB", "1024"; false for anything else.
bool parseSize(const std::string& text, uint64_t* out);
// A whole or decimal number without sign.
bool parseNumber(const std::string& text, double* out);
// A whole number up to `most`.
bool parseCount(const std::string& text, uint32_t most, uint32_t* out);

// An index or a UUID (or a unique beginning of one) of a GPU.
bool findGpu(const Machine& machine, const std::string& text, uint32_t* out);
// A call's name; false if there is none.
bool findCall(const std::string& name, unsigned* out);
std::string callNames();

}  // namespace simulator
