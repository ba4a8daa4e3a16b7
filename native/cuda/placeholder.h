// A CUDA context with a tiny allocation on each of some GPUs: whoever looks at the driver sees them as taken.
//
// It is the primary context, which the CUDA runtime of this process will use as well, so it costs nothing extra later.
#pragma once

#include <string>
#include <vector>

#include "cuda/library.h"

namespace gpu_owner::cuda {

class Placeholder {
 public:
  struct Failure {
    int code = SUCCESS;      // of CUDA
    const char* stage = "";  // the CUDA function that failed, or "uuid" where CUDA shows other GPUs than asked for
    std::string uuid;        // of the GPU that it concerns, if one
  };

  // Initialises CUDA (CUDA_VISIBLE_DEVICES must be set by now) and takes the GPUs with these UUIDs; all or none. Blocks
  // for some 100 ms per GPU on real hardware. Of several MIG instances, those that CUDA doesn't show this process are
  // left out.
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
