#pragma once

namespace keeper {

struct Options;

// Removes the markers and ends the leases, even if other processes still have copies of the descriptors (a foreground
// process that is stopped, for instance). Only for the keeper, and only once no process of the job is left.
void unlock(const Options& options);
// The same without the lock that goes with a command that restarts (`--kept`).
void unlock_gpus(const Options& options);

// The same but for what the command inherits: that ends with the last of its descriptors.
void unlock_own(const Options& options);

// Whether a lease file was unlinked under us: the next claim would make and lock another one.
bool lease_file_removed(const Options& options);

}  // namespace keeper
