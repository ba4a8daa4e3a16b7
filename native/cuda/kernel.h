// A kernel that keeps GPUs busy for the self-test: it computes, and changes nothing.
#pragma once

#include <vector>

#include "cuda/library.h"

namespace gpu_owner::cuda {

class Kernel {
 public:
  struct Failure {
    int code = SUCCESS;
    const char* stage = "";  // the CUDA function that failed
  };

  // Compiles the kernel for each context, and runs it once.
  Failure start(const Library& library, const std::vector<Context>& contexts);
  // Runs it for some milliseconds on all of them, side by side.
  Failure run(const Library& library);

 private:
  struct Loaded {
    Context context;
    Function function;
  };
  std::vector<Loaded> loaded_;
  uint32_t rounds_ = 1024;
};

}  // namespace gpu_owner::cuda
