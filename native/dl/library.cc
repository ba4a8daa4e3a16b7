#include "dl/library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <mutex>
#include <utility>

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

std::string loaded_from(void* handle) {
  const link_map* map = nullptr;
  if (handle == nullptr || dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return "";
  return map->l_name != nullptr ? map->l_name : "";
}

namespace {

// How many libraries this process has loaded so far; 0 where the linker doesn't tell.
unsigned long long loads_so_far() {
  unsigned long long loads = 0;
  const auto note = [](dl_phdr_info* info, size_t size, void* out) {
    if (size >= offsetof(dl_phdr_info, dlpi_subs)) *static_cast<unsigned long long*>(out) = info->dlpi_adds;
    return 1;  // it is the same for all
  };
  dl_iterate_phdr(note, &loads);
  return loads;
}

}  // namespace

void* already_loaded(const std::string& path) {
  // For one that isn't, the linker searches the disk each time.
  // A list: std::map is in libstdc++, which the placeholder does without.
  static std::mutex mutex;
  static std::vector<std::pair<std::string, unsigned long long>>* missing = nullptr;
  const unsigned long long loads = loads_so_far();
  const std::lock_guard<std::mutex> lock(mutex);
  if (missing == nullptr) missing = new std::vector<std::pair<std::string, unsigned long long>>;
  unsigned long long* known = nullptr;
  for (auto& [name, when] : *missing) {
    if (name == path) known = &when;
  }
  if (known != nullptr && loads != 0 && *known == loads) return nullptr;
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle == nullptr && known != nullptr) *known = loads;
  if (handle == nullptr && known == nullptr) missing->emplace_back(path, loads);
  return handle;
}

void* symbol(void* handle, const char* name) { return dlsym(handle, name); }

}  // namespace gpu_owner::dl
