#pragma once

#include <sys/types.h>

#include "keeper/task.h"

struct signalfd_siginfo;

namespace keeper {

struct Options;

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
