#pragma once

#include <sys/types.h>

namespace keeper {

struct Options;

// Writes this process's PID into the markers that tell one: others take a GPU whose PID is dead, and this process lives
// as long as the lease does. `predecessor` is the process that may have done so before.
void sign_markers(const Options& options, pid_t predecessor = 0);

// Removes the markers that are still ours. To be called before the leases end: afterwards they are the next holder's.
void remove_markers(const Options& options);

}  // namespace keeper
