// Limits what reading the locks of one file costs: any user can take any number, and the kernel walks all of them
// for each question.
#pragma once

#include <cstdint>

#include "process/futex.h"

namespace gpu_owner::locks {

class ProbeBudget {
 public:
  explicit ProbeBudget(int questions) : left_(questions) {}

  // To be called before each question to the kernel; false: it is enough.
  bool goes_on() {
    if (--left_ < 0) return false;
    if (left_ % kTimed != 0) return true;
    const int64_t now = process::thread_nanoseconds();
    if (started_ == 0) started_ = now;
    return now - started_ < kMaxTime;
  }

 private:
  // ns of this thread's processor time: a busy machine doesn't make a file longer. A full wait queue takes 100 ms on a
  // slow processor, as the kernel walks past each waiter for every later one.
  static constexpr int64_t kMaxTime = 500'000'000;
  static constexpr int kTimed = 16;  // asking for the time takes time

  int left_;
  int64_t started_ = 0;
};

}  // namespace gpu_owner::locks
