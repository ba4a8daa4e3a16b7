#pragma once

#include <cstdint>

namespace waiter {

struct Lock {
  int descriptor;
  int64_t byte;
};

// A list as long as the command line allows.
template <typename Item>
struct List {
  Item* items = nullptr;
  int count = 0;

  Item* begin() const { return items; }
  Item* end() const { return items + count; }
};

struct Options {
  List<Lock> locks;
  bool all = false;
  int queue = -1;
  int64_t slot = 0;
  const char* queue_path = nullptr;
  List<int64_t> ahead;
  List<int> leases;
  int64_t until = INT64_MAX;  // CLOCK_MONOTONIC, ms
  List<const char*> needed;
  int64_t needs_timeout = 0;  // ms
  uint64_t ignored_signals = 0;
  // Painted every second on standard error, if its terminal has so many columns: how long it has lasted is between.
  const char* line_before = nullptr;
  const char* line_after = "";
  int64_t line_since = 0;  // CLOCK_MONOTONIC, ms
  int64_t line_columns = 0;
  char** program = nullptr;  // and its arguments
};

// Turns the process into a small waiter for GPUs, with one thread and without Node.js, so hundreds can wait. The end
// of the process, however it comes, gives back its slot in the wait queue. Becomes the program when one of the
// options' conditions holds; where that fails, returns the path that can't be started, and errno says why.
const char* wait_for_turn(const Options& options);

}  // namespace waiter
