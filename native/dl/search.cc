#include "dl/search.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <unistd.h>

#include "process/unique_fd.h"

namespace gpu_owner::dl {
namespace {

const char* const kDirectories[] = {
    "/usr/lib64",
#if defined(__aarch64__)
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/tegra",
    "/usr/lib/aarch64-linux-gnu/nvidia",
#else
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
#endif
    "/usr/lib/wsl/lib",
    "/usr/lib/wsl/drivers/*",  // one folder per driver version
    "/run/opengl-driver/lib",
    "/usr/local/nvidia/lib64",
};

const char kCache[] = "/etc/ld.so.cache";

// '' where it can't be read.
std::string contents_of(const char* path) {
  std::string text;
  const process::UniqueFd file(open(path, O_RDONLY | O_CLOEXEC));
  if (!file) return text;
  char buffer[16384];
  for (ssize_t got; (got = read(file.get(), buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(got));
  return text;
}

}  // namespace

std::vector<std::string> linker_candidates(const std::string& soname) {
  std::vector<std::string> candidates;
  const std::string ending = "/" + soname;
  void* self = dlopen(nullptr, RTLD_LAZY);
  Dl_serinfo size;
  if (self != nullptr && dlinfo(self, RTLD_DI_SERINFOSIZE, &size) == 0) {
    std::vector<char> room(size.dls_size);
    auto* places = reinterpret_cast<Dl_serinfo*>(room.data());
    *places = size;
    if (dlinfo(self, RTLD_DI_SERINFO, places) == 0) {
      for (unsigned i = 0; i < places->dls_cnt; i++) candidates.push_back(places->dls_serpath[i].dls_name + ending);
    }
  }
  // Whatever the format of the cache, the paths in it are strings that end with a zero byte.
  const std::string cache = contents_of(kCache);
  const std::string last(ending.c_str(), ending.size() + 1);
  for (size_t at = cache.find(last); at != std::string::npos; at = cache.find(last, at + 1)) {
    const size_t before = cache.rfind('\0', at);
    if (before != std::string::npos) candidates.emplace_back(&cache[before + 1]);
  }
  return candidates;
}

std::vector<std::string> driver_library_candidates(const std::string& soname) {
  std::vector<std::string> candidates{soname};
  for (const char* directory : kDirectories) {
    const std::string path = std::string(directory) + "/" + soname;
    if (path.find('*') == std::string::npos) {
      candidates.push_back(path);
      continue;
    }
    glob_t found;
    if (glob(path.c_str(), 0, nullptr, &found) == 0) {
      for (size_t i = 0; i < found.gl_pathc; i++) candidates.emplace_back(found.gl_pathv[i]);
    }
    globfree(&found);
  }
  return candidates;
}

}  // namespace gpu_owner::dl
