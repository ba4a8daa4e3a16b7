// Looks of the driver at a simulated machine.
#pragma once

#include <vector>

#include "nvml/driver.h"
#include "support/simulator.h"

namespace tests {

using Samples = std::vector<gpu_owner::nvml::Sample>;

// The process's driver, opened with the simulated library. The test ends if that fails.
gpu_owner::nvml::Driver& opened_driver();

// One look as a thread other than the main one would take it, in its turn.
Samples look(const std::vector<uint32_t>* only = nullptr);
void look(Samples& samples, const std::vector<uint32_t>* only = nullptr);

// The health of each GPU in words, e.g. "ok ok hangs 15".
std::string health(const Samples& samples);

}  // namespace tests
