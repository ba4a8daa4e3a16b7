// A line of waiters in one file: first come, first served.
//
// A place is a byte that its waiter has write-locked; the lowest byte is the head of the line. Places are numbered as they
// are taken, and the kernel gives a place back when its waiter ends, however that comes about. Whoever looks at places only
// probes or waits with read locks, so nobody can bring a dead place back to life.
#pragma once

#include <cstdint>
#include <vector>

namespace gpu_owner::locks {

// A line that is longer, or that takes longer to look through, isn't one of waiters: anybody can lock any number of bytes, and the
// kernel goes through all of them each time it is asked. Then it is E2BIG, and nothing hangs on the line.
constexpr int kMostPlaces = 4096;

// Takes the place behind all others on the description of `descriptor`, which must be writable and belong to this waiter
// alone. Returns its number, or -errno.
int64_t join_line(int descriptor);

// Appends the places that are taken, in order, from `from` up to but not including `to` (0: to the end). A readable
// descriptor is enough; places of the same description aren't seen. Returns 0 or an errno value.
int places_taken(int descriptor, int64_t from, int64_t to, std::vector<int64_t>& places);

}  // namespace gpu_owner::locks
