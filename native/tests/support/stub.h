// Stubs of drivers, see native/tests/stubs.
#pragma once

#include <string>

#include "nvml/library.h"
#include "stubs/nvml.h"

namespace tests {

// Path of a stub library, e.g. "nvml-v2".
std::string stub_path(const std::string& name);

// Loads such a stub of NVML; gives access to what it is told and tells.
NvmlStub& stub_of(const std::string& name);

// A stub of NVML, loaded and initialised as the program does it. Settings from before hold for that too.
struct StubbedNvml {
  NvmlStub& stub;
  gpu_owner::nvml::Library library;
  gpu_owner::nvml::Device device = nullptr;  // the first GPU

  explicit StubbedNvml(const std::string& name);
};

}  // namespace tests
