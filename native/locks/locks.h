// The kernel's advisory file locks: flock, and open-file-description (OFD) locks on byte ranges.
//
// Both belong to the open file description: they survive fork and exec, and end when its last descriptor is closed,
// however the process ended. Functions return 0 or an errno value; EAGAIN is the only "no".
#pragma once

#include <cstdint>

namespace gpu_owner::locks {

enum class Kind { flock, ofd };
enum class Mode { shared, exclusive };

struct Range {
  int64_t start = 0;
  int64_t length = 0;  // 0 = to the end of all offsets; a flock has no range
};

// Takes the lock if no other lock is in the way: 0 or EAGAIN.
int try_lock(int descriptor, Kind kind, Mode mode, Range range);
// Blocks; EINTR when a signal handler ran.
int wait_lock(int descriptor, Kind kind, Mode mode, Range range);
// Ends the lock for everybody who shares the description. An inherited descriptor is to be closed instead.
int unlock(int descriptor, Kind kind, Range range);

struct Conflict {
  bool exists = false;
  Mode mode = Mode::shared;
  Range range;
  int pid = -1;  // -1: not a process's but an open file's; 0: of another PID namespace
};
// Asks who would stand in the way of an OFD lock. Takes nothing, and a readable descriptor is enough.
int probe(int descriptor, Mode mode, Range range, Conflict& conflict);

}  // namespace gpu_owner::locks
