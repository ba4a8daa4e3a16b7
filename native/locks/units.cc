#include "locks/units.h"

#include <errno.h>

#include <algorithm>

#include "locks/probe_budget.h"

namespace gpu_owner::locks {
namespace {

// More than the units of a GPU: other programs have locked the rest.
constexpr int kMaxQuestions = 1 << 14;
// So often other claimants may come first.
constexpr int kMaxTries = 64;

}  // namespace

int taken_units(int descriptor, Range range, std::vector<Range>& taken) {
  // Ranges that remain to be looked through: the kernel tells of any lock in one, not of the first.
  std::vector<Range> ranges{range};
  ProbeBudget budget(kMaxQuestions);
  while (!ranges.empty()) {
    if (!budget.goes_on()) return E2BIG;
    const Range part = ranges.back();
    ranges.pop_back();
    Conflict conflict;
    const int error = probe(descriptor, Mode::exclusive, part, conflict);
    if (error != 0) return error;
    if (!conflict.exists) continue;
    const int64_t part_end = part.start + part.length;
    const int64_t start = std::max(conflict.range.start, part.start);
    const int64_t end =
        conflict.range.length == 0 ? part_end : std::min(conflict.range.start + conflict.range.length, part_end);
    taken.push_back({start, end - start});
    if (start > part.start) ranges.push_back({part.start, start - part.start});
    if (end < part_end) ranges.push_back({end, part_end - end});
  }
  std::sort(taken.begin(), taken.end(), [](const Range& a, const Range& b) { return a.start < b.start; });
  return 0;
}

int64_t take_units(int descriptor, Range range, int64_t wanted) {
  const int64_t end = range.start + range.length;
  int error = EAGAIN;
  for (int i = 0; i < kMaxTries; i++) {
    std::vector<Range> taken;
    error = taken_units(descriptor, range, taken);
    if (error != 0) break;
    taken.push_back({end, 0});
    int64_t free = range.length;
    for (const Range& each : taken) free -= each.length;
    error = EAGAIN;
    if (free < wanted) break;
    int64_t lowest = -1;
    int64_t left = wanted;
    int64_t from = range.start;
    bool is_outrun = false;
    for (const Range& each : taken) {
      const int64_t length = std::min(each.start - from, left);
      if (length > 0) {
        error = try_lock(descriptor, Kind::ofd, Mode::exclusive, {from, length});
        is_outrun = error != 0;
        if (is_outrun) break;
        if (lowest < 0) lowest = from;
        left -= length;
      }
      if (left == 0) return lowest;
      from = each.start + each.length;
    }
    unlock(descriptor, Kind::ofd, range);
    if (!is_outrun || error != EAGAIN) break;
  }
  unlock(descriptor, Kind::ofd, range);
  return -error;
}

}  // namespace gpu_owner::locks
