#include "locks/wait_queue.h"

#include <errno.h>

#include <algorithm>

#include "locks/locks.h"
#include "locks/probe_budget.h"
#include "locks/queue_slots.h"

namespace gpu_owner::locks {
namespace {

// The last taken slot at or after `from`, or from - 1; or -1 - errno. The kernel reports any lock in a range, not the
// first or the last one: ask again after it until there is none.
int64_t last_slot(int descriptor, int64_t from, ProbeBudget& budget) {
  for (;;) {
    if (!budget.goes_on()) return -1 - E2BIG;
    Conflict conflict;
    const int error = probe(descriptor, Mode::shared, {from, kMaxSlot + 1 - from}, conflict);
    if (error != 0) return -1 - error;
    if (!conflict.exists) return from - 1;
    // A stranger's lock, which leaves no slot.
    if (conflict.range.length == 0 || conflict.range.start + conflict.range.length > kMaxSlot) return -1 - ENOLCK;
    from = conflict.range.start + conflict.range.length;
  }
}

}  // namespace

int64_t join_queue(int descriptor) {
  int64_t from = 0;
  ProbeBudget budget(2 * kMaxSlots);
  for (;;) {
    const int64_t last = last_slot(descriptor, from, budget);
    if (last < from - 1) return last + 1;
    const int64_t slot = last + 1;
    const int error = try_lock(descriptor, Kind::ofd, Mode::exclusive, {slot, 1});
    if (error == 0) return slot;
    if (error != EAGAIN) return -error;
    from = slot + 1;  // another waiter was quicker, or a process is waiting for the end of one that had this number
  }
}

int taken_slots(int descriptor, int64_t from, int64_t to, std::vector<int64_t>& slots) {
  const int64_t before = to == 0 ? kMaxSlot + 1 : to;
  if (before <= from) return 0;
  // Ranges that remain to be looked through, the lowest on top.
  std::vector<Range> ranges{{from, before - from}};
  ProbeBudget budget(2 * kMaxSlots);
  while (!ranges.empty()) {
    if (!budget.goes_on() || slots.size() > kMaxSlots) return E2BIG;
    const Range range = ranges.back();
    Conflict conflict;
    const int error = probe(descriptor, Mode::shared, range, conflict);
    if (error != 0) return error;
    ranges.pop_back();
    if (!conflict.exists) continue;
    // Slots are single bytes; a longer lock is a stranger's, and no slot.
    const int64_t start = std::max(conflict.range.start, range.start);
    const bool endless = conflict.range.length == 0;
    const int64_t end = conflict.range.start + conflict.range.length;
    const int64_t last = range.start + range.length;
    if (!endless && end < last) ranges.push_back({end, last - end});
    if (conflict.range.length == 1) slots.push_back(start);
    if (start > range.start) ranges.push_back({range.start, start - range.start});
  }
  std::sort(slots.begin(), slots.end());
  return 0;
}

}  // namespace gpu_owner::locks
