// Opening shared libraries at run time. Knows nothing of NVML or CUDA.
#pragma once

#include <string>
#include <vector>

namespace gpu_owner::dl {

// One place where a library was looked for, and why it wasn't had from there.
struct Attempt {
  std::string path;
  std::string error;  // doesn't begin with the path
};

struct Opened {
  void* handle = nullptr;  // never closed: drivers don't survive dlclose
  std::string path;        // where it was found
  std::vector<Attempt> attempts;
};

// Tries the candidates in order.
Opened open_first(const std::vector<std::string>& candidates);

// The attempt that explains most: at the first file that is there, otherwise the first one. "PATH: ERROR".
std::string explain(const std::vector<Attempt>& attempts);

// Where the dynamic linker has it from, with its directory; '' where it can't tell. A bare name is found by a search.
std::string loaded_from(void* handle);

// The library if this process has loaded it already, else null. Loads nothing.
void* already_loaded(const std::string& path);

template <typename Function>
bool resolve(void* handle, const char* name, Function& function);

void* symbol(void* handle, const char* name);

template <typename Function>
bool resolve(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(symbol(handle, name));
  return function != nullptr;
}

}  // namespace gpu_owner::dl
