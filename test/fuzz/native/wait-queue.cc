// The slots of the wait queue, among locks of strangers. Input: what is asked, then the locks that others hold.
#include "locks/wait_queue.h"

#include <errno.h>

#include <algorithm>

#include "fuzz.h"
#include "locks/locks.h"

namespace {

using gpu_owner::locks::Conflict;
using gpu_owner::locks::Kind;
using gpu_owner::locks::Mode;
using gpu_owner::locks::Range;

struct Lock {
  int64_t start, last;
};
// Write locks of others, which never overlap.
std::vector<Lock> locks;
constexpr int64_t kEnd = (int64_t{1} << 53) - 1;  // no slot is there, or behind it
uint8_t chance = 0;
int refusals = 0;
int64_t taken = -1;

int64_t last_of(Range range) { return range.length == 0 ? INT64_MAX : range.start + range.length - 1; }

const Lock* one_in(Range range) {
  std::vector<const Lock*> found;
  for (const Lock& lock : locks)
    if (lock.start <= last_of(range) && lock.last >= range.start) found.push_back(&lock);
  return found.empty() ? nullptr : found[chance++ % found.size()];
}

void check_range(Range range) {
  EXPECT(range.start >= 0 && range.length >= 0 && (range.length == 0 || range.start <= INT64_MAX - (range.length - 1)));
}

}  // namespace

namespace gpu_owner::locks {

int probe(int, Mode, Range range, Conflict& conflict) {
  check_range(range);
  conflict = {};
  const Lock* lock = one_in(range);
  if (!lock) return 0;
  conflict.exists = true;
  conflict.mode = Mode::exclusive;
  // The kernel says 0 for the length of what reaches to the end.
  conflict.range = {lock->start, lock->last == INT64_MAX ? 0 : lock->last - lock->start + 1};
  return 0;
}

int try_lock(int, Kind, Mode, Range range) {
  check_range(range);
  if (refusals > 0) {
    refusals--;
    return EAGAIN;
  }
  EXPECT(!one_in(range));
  taken = range.start;
  return 0;
}

}  // namespace gpu_owner::locks

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  chance = input.byte();
  refusals = input.byte() % 4;
  const int64_t from = input.number<uint32_t>();
  const int64_t to = input.number<uint32_t>();
  locks.clear();
  int64_t next = 0;
  while (!input.is_empty() && locks.size() < 200) {
    const uint8_t kind = input.byte();
    const int64_t gap = kind & 1 ? input.number<uint64_t>() >> 1 : input.byte();
    const int64_t length = kind & 2 ? input.number<uint64_t>() >> 1 : kind & 4 ? input.byte() : 1;
    if (gap > INT64_MAX - next) break;
    const int64_t start = next + gap;
    const int64_t last = length == 0 || length - 1 > INT64_MAX - start ? INT64_MAX : start + (length - 1);
    locks.push_back({start, last});
    if (last == INT64_MAX) break;
    next = last + 1;
  }

  std::vector<int64_t> expected, found;
  for (const Lock& lock : locks)
    if (lock.start == lock.last && lock.last < kEnd && lock.start >= from && (to == 0 || lock.start < to))
      expected.push_back(lock.start);
  const int error = gpu_owner::locks::taken_slots(3, from, to, found);
  if (error == 0) EXPECT(found == expected);

  taken = -1;
  const int64_t slot = gpu_owner::locks::join_queue(3);
  if (slot < 0) return 0;
  EXPECT(slot == taken && slot < kEnd + 4);
  // A lock beyond all slots is in nobody's way.
  for (const Lock& lock : locks) EXPECT(lock.last < slot || lock.start >= kEnd);
  return 0;
}
