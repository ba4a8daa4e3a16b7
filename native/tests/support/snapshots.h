// Snapshots of a simulated machine.
#pragma once

#include <vector>

#include "nvml/driver.h"
#include "support/simulator.h"

namespace tests {

using Samples = std::vector<gpu_owner::nvml::Sample>;

// The process's driver, opened with the simulated library. The test ends if that fails.
gpu_owner::nvml::Driver& opened_driver();

// One snapshot as a thread other than the main one takes it, under the mutex.
Samples snapshot(const std::vector<uint32_t>* only = nullptr);
void snapshot(Samples& samples, const std::vector<uint32_t>* only = nullptr);

// The health of each GPU in words, e.g. "ok ok hangs 15".
std::string health(const Samples& samples);

}  // namespace tests
