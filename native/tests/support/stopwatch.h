#pragma once

#include "process/futex.h"

namespace tests {

class Stopwatch {
 public:
  double milliseconds() const {
    return static_cast<double>(gpu_owner::process::monotonic_nanoseconds() - start_) / 1e6;
  }

 private:
  int64_t start_ = gpu_owner::process::monotonic_nanoseconds();
};

}  // namespace tests
