#pragma once

#include <stdint.h>
#include <sys/types.h>

struct signalfd_siginfo;

namespace keeper {

struct Options;

// Shared by keeper and watchdog of a task, in memory that both have: each may be killed at any moment.
struct SharedState {
  pid_t command;     // 0: none as yet
  int32_t ended;     // the command's end has been told
  int32_t released;  // no process of the task is left, and all has been told
};

// The keeper of a worker's task: runs the command, and ends when no process of it is left. The leases stay the
// worker's, unless that is gone. `worker` is its process, `watchdog` the parent of this one.
int keep_task(const Options& options, SharedState* shared, pid_t worker, pid_t watchdog);

// The same for a watchdog whose keeper was killed: everything ends.
int finish_task(const Options& options, SharedState* shared, pid_t worker, int signals, bool worker_gone);

// Parent of a task's keeper, and all that it does is to outlive it: should the keeper be killed, the command and its
// descendants become the watchdog's, which ends them. The keeper goes on without a watchdog.
class Watchdog {
 public:
  explicit Watchdog(const Options& options) : options_(options) {}

  int run();

 private:
  bool start_keeper();
  int watch(int signals);
  // Whether it has ended.
  bool collect_keeper();

  const Options& options_;
  SharedState* shared_ = nullptr;
  pid_t worker_ = 0;
  pid_t keeper_ = 0;
};

}  // namespace keeper
