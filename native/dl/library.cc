#include "dl/library.h"

#include <dlfcn.h>

namespace gpu_owner::dl {

Opened open_first(const std::vector<std::string>& candidates) {
  Opened opened;
  for (const std::string& path : candidates) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) {
      opened.handle = handle;
      opened.path = path;
      return opened;
    }
    const char* error = dlerror();
    opened.attempts.push_back({path, error != nullptr ? error : "unknown error"});
  }
  return opened;
}

void* already_loaded(const std::string& path) {
  return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
}

void* symbol(void* handle, const char* name) { return dlsym(handle, name); }

}  // namespace gpu_owner::dl
