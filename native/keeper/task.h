#pragma once

#include <stdint.h>
#include <sys/types.h>

namespace keeper {

struct Options;

// Shared by keeper and watchdog of a task, in memory that both have: each may be killed at any moment.
struct SharedState {
  pid_t command;     // 0: none as yet
  int32_t ended;     // its end has been told
  int32_t released;  // nobody is left of the task, and all has been told
};

// The keeper of a worker's task: runs the command, and ends when nobody of it is left. The leases stay the worker's,
// unless that is gone. `worker` is its process, `watchdog` the parent of this one.
int keep_task(const Options& options, SharedState* shared, pid_t worker, pid_t watchdog);

// The same for a watchdog whose keeper was killed: everything ends.
int finish_task(const Options& options, SharedState* shared, pid_t worker, int signals, bool worker_gone);

}  // namespace keeper
