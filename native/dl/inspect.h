// Looks at a library's file before the linker does, for what the linker doesn't survive or doesn't tell.
#pragma once

#include <string>

namespace gpu_owner::dl {

struct Inspection {
  bool loadable =
      true;  // false: the linker would hang on it, or touch what the file lacks, and SIGBUS would end the process
  std::string problem;  // '' where there is none, or where the linker itself names it
};

// Never blocks, and opens regular files only.
Inspection inspect(const std::string& path);

}  // namespace gpu_owner::dl
