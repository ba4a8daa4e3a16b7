// The kinds of locks that a thread can wait for while others of its process go on.
#pragma once

#include <vector>

#include "locks/locks.h"
#include "test.h"

namespace tests {

// valgrind takes a wait for an OFD lock for a call that doesn't block, and stops all threads meanwhile (3.19).
inline std::vector<gpu_owner::locks::Kind> waitable_kinds() {
  using gpu_owner::locks::Kind;
  if (under_valgrind()) return {Kind::flock};
  return {Kind::flock, Kind::ofd};
}

}  // namespace tests
