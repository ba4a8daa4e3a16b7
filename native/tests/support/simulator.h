// A simulated machine of the test's own.
#pragma once

#include <sys/types.h>

#include <string>

namespace tests {

// Where the build has put the libraries.
std::string simulated_nvml();
std::string simulated_cuda();

class SimulatedMachine {
 public:
  // `name` as GPU_OWNER_SIMULATE has it: a number of GPUs or a named machine. The environment of this process says the
  // same.
  explicit SimulatedMachine(const char* name);

  // Takes what `gpu-owner-simulator set` takes: set("gpu=1 hang=memory").
  void set(const std::string& words) const;

  // Another process with this much memory on a GPU; returns when the driver lists it.
  pid_t occupy(int gpu, const std::string& memory) const;

  // UUID of a GPU of a machine that is named by a number.
  static std::string uuid(int gpu);
};

}  // namespace tests
