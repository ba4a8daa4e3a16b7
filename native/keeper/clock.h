#pragma once

#include <stdint.h>
#include <time.h>

namespace keeper {

inline int64_t read_clock_ms(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
}

inline int64_t now_ms() { return read_clock_ms(CLOCK_MONOTONIC); }

// Goes on while the machine sleeps.
inline int64_t boot_time_ms() { return read_clock_ms(CLOCK_BOOTTIME); }

// For people and files: ms since 1970.
inline int64_t calendar_time_ms() { return read_clock_ms(CLOCK_REALTIME); }

}  // namespace keeper
