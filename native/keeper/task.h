#pragma once

#include <stdint.h>
#include <sys/types.h>

namespace keeper {

struct Options;

// What keeper and guard of a task know together, in memory that both have: each may be killed at any moment.
struct Ledger {
  pid_t command;      // 0: none as yet
  int32_t ended;      // its end has been told
  int32_t released;   // nobody is left of the task, and all has been told
};

// The keeper of a worker's task: runs the command, and ends when nobody of it is left. The leases stay the worker's, unless that is
// gone. `worker` is its process, `guard` the parent of this one.
int keep_task(const Options &options, Ledger *ledger, pid_t worker, pid_t guard);

// The same for a guard whose keeper was killed: everything ends.
int finish_task(const Options &options, Ledger *ledger, pid_t worker, int signals, bool worker_gone);

}  // namespace keeper
