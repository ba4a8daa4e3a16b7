#pragma once

#include <stdint.h>

#include "process/unique_fd.h"

namespace keeper {

struct Options;

// Tells when a request in the wait queue needs the GPUs of a preemptible lease (`--give-way`). Which lease gives way is
// decided by the process that waits; here is checked that it still waits, for these GPUs, and isn't preemptible itself.
// A file tells that there is something to look at, so nothing wakes up while no request needs the GPUs.
// docs/decisions/052-preemption.md
class PreemptionWatch {
 public:
  explicit PreemptionWatch(const Options& options);

  // For poll: readable when there is something to look at; -1: nothing tells.
  int fd() const { return watch_.get(); }
  int64_t next_look() const { return look_at_; }  // on the clock of now_ms()
  // To be called whenever something has happened. Whether a request needs the GPUs now.
  bool is_needed();
  // Looks no longer.
  void stop();

 private:
  void arm();

  const Options& options_;
  gpu_owner::process::UniqueFd watch_;
  int64_t look_at_;
  int64_t quiet_until_ = 0;
};

}  // namespace keeper
