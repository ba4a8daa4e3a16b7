#pragma once

#include <cstdint>
#include <cstdlib>

namespace waiter {

struct Lock {
  int descriptor;
  int64_t byte;
};

// A list as long as the command line allows.
template <typename Item>
class List {
 public:
  List() = default;
  List(const List&) = delete;
  List& operator=(const List&) = delete;
  ~List() { free(items_); }

  // Reserves room for items. False if memory is used up.
  bool reserve(int capacity) {
    free(items_);
    items_ = static_cast<Item*>(calloc(static_cast<size_t>(capacity), sizeof(Item)));
    count_ = 0;
    return items_ != nullptr;
  }

  // The next item, for which there must be room.
  Item& append() { return items_[count_++]; }

  int count() const { return count_; }
  const Item& operator[](int i) const { return items_[i]; }
  Item* begin() const { return items_; }
  Item* end() const { return items_ + count_; }

 private:
  Item* items_ = nullptr;
  int count_ = 0;
};

struct Options {
  List<Lock> locks;
  bool all = false;
  int queue = -1;
  int64_t slot = 0;
  const char* queue_path = nullptr;
  List<int64_t> ahead;
  bool moves_on = false;  // to the next one ahead, while one is late
  List<int> leases;
  int64_t bookings = INT64_MAX;  // as of when they are known; CLOCK_MONOTONIC, ms
  int64_t until = INT64_MAX;     // CLOCK_MONOTONIC, ms
  List<const char*> needed;
  int64_t needs_timeout = 0;  // ms
  // Painted every second on standard error, if its terminal has enough columns; the elapsed time is between.
  const char* line_before = nullptr;
  const char* line_after = "";
  int64_t line_since = 0;  // CLOCK_MONOTONIC, ms
  int64_t line_columns = 0;
};

// Turns the process into a small waiter for GPUs, with one thread and without Node.js, so hundreds can wait. The end
// of the process, however it comes, gives back its slot in the wait queue. Becomes the program, null-terminated with
// its arguments, when one of the options' conditions holds; where that fails, returns the path that can't be started,
// and errno says why. `ignored_signals` is a mask, bit n - 1 for signal n.
const char* wait_for_turn(const Options& options, uint64_t ignored_signals, char** program);

}  // namespace waiter
