#include "dl/library.h"

#include <dlfcn.h>
#include <link.h>

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
    const std::string error = dlerror();
    const bool repeats = error.compare(0, path.size() + 2, path + ": ") == 0;
    opened.attempts.push_back({path, repeats ? error.substr(path.size() + 2) : error});
  }
  return opened;
}

std::string explain(const std::vector<Attempt>& attempts) {
  const Attempt* best = nullptr;
  for (const Attempt& each : attempts) {
    const bool is_there = each.error.find("No such file") == std::string::npos;
    if (best == nullptr || is_there) best = &each;
    if (is_there) break;
  }
  return best == nullptr ? "" : best->path + ": " + best->error;
}

std::string loaded_from(void* handle) {
  const link_map* map = nullptr;
  if (handle == nullptr || dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return "";
  return map->l_name != nullptr ? map->l_name : "";
}

void* already_loaded(const std::string& path) { return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD); }

void* symbol(void* handle, const char* name) { return dlsym(handle, name); }

}  // namespace gpu_owner::dl
