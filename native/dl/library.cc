#include "dl/library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <mutex>

#include "dl/inspect.h"
#include "dl/search.h"

namespace gpu_owner::dl {
namespace {

// Finds the file that the linker would meet. Files for other machines it passes over in a search.
Inspection inspect_candidate(const std::string& path) {
  if (path.find('/') != std::string::npos) return inspect(path);
  Inspection found;
  for (const std::string& file : linker_candidates(path)) {
    const Inspection one = inspect(file);
    if (!one.problem.empty() && found.problem.empty()) found.problem = file + ": " + one.problem;
    if (!one.loadable) return {false, file + ": " + one.problem};
  }
  return found;
}

// About files for other machines, the linker says that there is no file, or no more than their class. In a search, it
// may also have found another one, and say what is wrong with that.
bool explains_more(const Inspection& found, const std::string& path, const std::string& said) {
  if (found.problem.empty()) return false;
  const auto has = [&](const char* words) { return said.find(words) != std::string::npos; };
  return path.find('/') != std::string::npos || has("No such file") || has("wrong ELF class");
}

}  // namespace

Opened open_first(const std::vector<std::string>& candidates) {
  Opened opened;
  for (const std::string& path : candidates) {
    const Inspection found = inspect_candidate(path);
    void* handle = found.loadable ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (handle != nullptr) {
      opened.handle = handle;
      opened.path = path;
      return opened;
    }
    const char* said = found.loadable ? dlerror() : nullptr;
    const std::string error = said == nullptr || explains_more(found, path, said) ? found.problem : said;
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

namespace {

// How many libraries this process has loaded so far; 0 where the linker doesn't tell.
unsigned long long loads_so_far() {
  unsigned long long loads = 0;
  const auto note = [](dl_phdr_info* info, size_t size, void* out) {
    if (size >= offsetof(dl_phdr_info, dlpi_subs)) *static_cast<unsigned long long*>(out) = info->dlpi_adds;
    return 1;  // all have the same number
  };
  dl_iterate_phdr(note, &loads);
  return loads;
}

}  // namespace

void* already_loaded(const std::string& path) {
  // For one that isn't, the linker searches the disk each time. One that is stays so: each answer is a reference to it.
  struct Known {
    std::string path;
    unsigned long long missing_at;  // the number of loads
    void* handle;
  };
  // A list: std::map is in libstdc++, which the placeholder does without.
  static std::mutex mutex;
  static auto* all = new std::vector<Known>;
  const unsigned long long loads = loads_so_far();
  const std::lock_guard<std::mutex> lock(mutex);
  Known* known = nullptr;
  for (Known& each : *all) {
    if (each.path == path) known = &each;
  }
  if (known == nullptr) {
    all->push_back({path, 0, nullptr});
    known = &all->back();
  }
  if (known->handle != nullptr || (loads != 0 && known->missing_at == loads)) return known->handle;
  if (inspect_candidate(path).loadable) known->handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  known->missing_at = loads;
  return known->handle;
}

void* symbol(void* handle, const char* name) { return dlsym(handle, name); }

}  // namespace gpu_owner::dl
