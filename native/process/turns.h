// A mutex that is had in the order in which it was asked for. std::mutex goes to whoever comes first when it is free: threads that
// take it again at once keep all others out for as long as they like.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "process/futex.h"
#include "process/interrupt.h"

namespace gpu_owner::process {

class Turns {
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

  // `given_up` is asked every 20 ms, and after each signal that this thread handles: true leaves the line. False when it has.
  template <typename GivenUp>
  bool lock_unless(const GivenUp& given_up) {
    Place own;
    if (!join(own)) return true;
    while (!own.is_first(kLongestSleep)) {
      if (given_up() && leave(own)) return false;
    }
    return true;
  }

  void unlock();

  // How many stand in line; it may have changed by the time the caller reads it.
  int waiting();

 private:
  // Somebody who waits; on the stack of who does.
  struct Place {
    std::atomic<uint32_t> turn{0};
    Place* next = nullptr;

    bool is_first(int64_t nanoseconds) {
      if (turn.load() == 0) futex_wait(turn, 0, nanoseconds);
      return turn.load() != 0;
    }
  };

  bool join(Place& own);
  bool leave(Place& own);

  std::mutex mutex_;  // of what follows
  bool held_ = false;
  Place* first_ = nullptr;
  Place* last_ = nullptr;
};

}  // namespace gpu_owner::process
