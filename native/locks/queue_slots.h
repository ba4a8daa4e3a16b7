// The slots of a wait queue that are taken, and the starts of waiters, without memory of its own.
#pragma once

#include <cstdint>

#include "locks/locks.h"

namespace gpu_owner::locks {

// Slots are numbers in JavaScript, too.
constexpr int64_t kMaxSlot = (int64_t{1} << 53) - 2;

// Goes through the slots in their order.
class QueueSlots {
 public:
  explicit QueueSlots(int queue) : queue_(queue) {}

  // `visitor` is given each slot, and returns false to end. False also where the kernel would have to be asked too
  // often: that isn't a queue of waiters.
  template <typename Visitor>
  bool visit(Visitor visitor) {
    questions_ = kMaxQuestions;
    return visit(0, kMaxSlot + 1, visitor);
  }

 private:
  static constexpr int64_t kMaxQuestions = 8'192;

  template <typename Visitor>
  bool visit(int64_t from, int64_t to, Visitor& visitor) {
    if (from >= to) return true;
    if (--questions_ < 0) return false;
    Conflict conflict;
    if (probe(queue_, Mode::shared, {from, to - from}, conflict) != 0 || !conflict.exists) return true;
    const Range found = conflict.range;
    const int64_t end = found.length == 0 ? to : found.start + found.length;
    if (!visit(from, found.start, visitor)) return false;
    // A lock on more than a byte is a stranger's, and no slot.
    if (found.length == 1 && !visitor(found.start)) return false;
    return visit(end, to, visitor);
  }

  const int queue_;
  int64_t questions_ = 0;
};

// Behind all slots: a waiter that is a small process locks one of these bytes to start Node.js, on the description of
// its slot, until Node.js has looked. So few on a machine do that at a time.
constexpr int64_t kFirstStart = kMaxSlot + 1;
constexpr int64_t kStarts = 4;

inline bool begin_start(int queue) {
  for (int64_t byte = kFirstStart; byte < kFirstStart + kStarts; byte++) {
    if (try_lock(queue, Kind::ofd, Mode::exclusive, {byte, 1}) == 0) return true;
  }
  return false;
}

inline void end_start(int queue) { unlock(queue, Kind::ofd, {kFirstStart, kStarts}); }

}  // namespace gpu_owner::locks
