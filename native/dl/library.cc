#include "dl/library.h"

#include <dlfcn.h>
#include <link.h>

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

void* already_loaded(const std::string& path) {
  return inspect_candidate(path).loadable ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD) : nullptr;
}

void* symbol(void* handle, const char* name) { return dlsym(handle, name); }

}  // namespace gpu_owner::dl
