// A wait queue in one file: first come, first served.
//
// A slot is a byte that its waiter has write-locked; the lowest byte is the head of the queue. Slots are numbered as
// they are taken, and the kernel gives a slot back when its waiter ends, however that comes about. Observers of slots
// only probe or wait with read locks, so a dead slot can't be brought back to life.
#pragma once

#include <cstdint>
#include <vector>

namespace gpu_owner::locks {

// A queue that is longer, or takes longer to read, isn't one of waiters: any user can lock any number of bytes, and
// the kernel goes through all of them each time it is asked. Then it is E2BIG, and nothing depends on the queue.
constexpr int kMaxSlots = 4096;

// Takes the last slot on the description of `descriptor`, which must be writable and belong to this waiter
// alone. Returns its number, or -errno.
int64_t join_queue(int descriptor);

// Appends the slots that are taken, in order, from `from` up to but not including `to` (0: to the end). A readable
// descriptor is enough; slots of the same description aren't seen. Returns 0 or an errno value.
int taken_slots(int descriptor, int64_t from, int64_t to, std::vector<int64_t>& slots);

}  // namespace gpu_owner::locks
