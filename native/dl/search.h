// Where the NVIDIA driver's libraries are found on the distributions that people use.
#pragma once

#include <string>
#include <vector>

namespace gpu_owner::dl {

// The bare soname first (the system's own search), then the places that it misses: containers, WSL, NixOS, Tegra.
// Never the stubs that come with the CUDA toolkit: they load, and every call fails.
std::vector<std::string> driver_library_candidates(const std::string& soname);

// Files that the linker may take when it is given the bare soname: in the directories of its search path
// (LD_LIBRARY_PATH and the system's own) and in its cache. There may be none.
std::vector<std::string> linker_candidates(const std::string& soname);

}  // namespace gpu_owner::dl
