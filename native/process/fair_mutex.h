// A mutex that is had in the order in which it was asked for. std::mutex goes to the first that comes when it is
// free: threads that take it again at once keep all others out for as long as they like.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "process/futex.h"
#include "process/interrupt.h"

namespace gpu_owner::process {

class FairMutex {
 public:
  bool try_lock() {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (held_) return false;
    held_ = true;
    return true;
  }

  void lock() {
    lock_unless([] { return false; });
  }

  // Calls `given_up` every 20 ms, and after each signal that this thread handles: true gives up waiting. False when it
  // has.
  template <typename GivenUp>
  bool lock_unless(const GivenUp& given_up) {
    Waiter own;
    if (!join(own)) return true;
    while (!own.has_lock(kMaxSleep)) {
      if (given_up() && leave(own)) return false;
    }
    return true;
  }

  void unlock();

  // Counts the waiting threads; it may have changed by the time the caller reads it.
  int waiting();

 private:
  // A waiting thread, on its own stack.
  struct Waiter {
    std::atomic<uint32_t> granted{0};
    Waiter* next = nullptr;

    bool has_lock(int64_t nanoseconds) {
      if (granted.load() == 0) futex_wait(granted, 0, nanoseconds);
      return granted.load() != 0;
    }
  };

  bool join(Waiter& own);
  bool leave(Waiter& own);

  std::mutex mutex_;  // guards what follows
  bool held_ = false;
  Waiter* first_ = nullptr;
  Waiter* last_ = nullptr;
};

}  // namespace gpu_owner::process
