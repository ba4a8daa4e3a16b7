#include "dl/search.h"

#include <glob.h>

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

}  // namespace

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
