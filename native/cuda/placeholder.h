// A CUDA context with a tiny allocation on each of some GPUs: tools that look at the driver see them as taken.
//
// The primary context is used, as the CUDA runtime of this process will use it as well: it costs nothing extra later.
#pragma once

#include <string>
#include <vector>

#include "cuda/library.h"

namespace gpu_owner::cuda {

class Placeholder {
 public:
  struct Failure {
    int code = SUCCESS;      // the code of CUDA
    const char* stage = "";  // the CUDA function that failed, or "uuid" where CUDA shows other GPUs than asked for
    std::string uuid;        // the GPU that it concerns, if one
  };

  // Initialises CUDA (CUDA_VISIBLE_DEVICES must be set by now) and takes the GPUs with these UUIDs; all or none.
  // Blocks for some 100 ms per GPU on real hardware. MIG instances that CUDA doesn't show this process are left out.
  Failure take(const Library& library, const std::vector<std::string>& uuids, size_t bytes);
  void release(const Library& library);
  // How many MIG instances were left out.
  int hidden() const { return hidden_; }

 private:
  struct Held {
    Device device;
    Context context;
    Pointer pointer;
  };
  std::vector<Held> held_;
  int hidden_ = 0;
};

}  // namespace gpu_owner::cuda
