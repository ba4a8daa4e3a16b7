// Units of a GPU's memory, each a byte of a lease file. A share has locks on as many as it needs: the kernel adds up.
#pragma once

#include <cstdint>
#include <vector>

#include "locks/locks.h"

namespace gpu_owner::locks {

// Locks `wanted` units of the range that no other open file has, the lowest ones, all or none.
// Returns the lowest, or -errno; -EAGAIN: too few are free.
int64_t take_units(int descriptor, Range range, int64_t wanted);

// Adds the parts of the range that other open files have locked, in their order, one for each lock. 0 or an errno
// value; E2BIG: there are more than shares make, or reading them takes too long.
int taken_units(int descriptor, Range range, std::vector<Range>& taken);

}  // namespace gpu_owner::locks
