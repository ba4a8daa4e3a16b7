// Where the NVIDIA driver's libraries are found on the distributions that people use.
#pragma once

#include <string>
#include <vector>

namespace gpu_owner::dl {

// The bare soname first (the system's own search), then the places that it misses: containers, WSL, NixOS, Tegra.
// Never the stubs that come with the CUDA toolkit: they load, and every call fails.
std::vector<std::string> driver_library_candidates(const std::string& soname);

}  // namespace gpu_owner::dl
