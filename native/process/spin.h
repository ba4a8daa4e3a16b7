// Spinning for a moment before sleeping: threads that hand something over in quick succession then need no context
// switch.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "process/futex.h"

namespace gpu_owner::process {

// Longer than a wake-up takes, too short to be noticed.
constexpr int64_t kSpin = 50'000;  // ns

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// On a single processor, spinning would keep the other thread from running.
inline bool can_spin() {
  cpu_set_t processors;
  return sched_getaffinity(0, sizeof processors, &processors) == 0 && CPU_COUNT(&processors) > 1;
}

// Spins while `word` is `value`, for kSpin at most; true when it changed.
inline bool spin_while(const std::atomic<uint32_t>& word, uint32_t value) {
  static const bool worthwhile = can_spin();
  const int64_t end = worthwhile ? monotonic_nanoseconds() + kSpin : 0;
  do {
    for (int i = 0; i < 32; i++) {
      if (word.load(std::memory_order_acquire) != value) return true;
      relax();
    }
  } while (worthwhile && monotonic_nanoseconds() < end);
  return false;
}

}  // namespace gpu_owner::process
