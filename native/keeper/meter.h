#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "process/unique_fd.h"

namespace keeper {

struct Options;

// A lease of more GPUs isn't metered: the driver serves no machine that has them.
constexpr int kMaxMetered = 64;

// A GPU at one moment; -1: the driver doesn't tell.
struct Reading {
  int64_t at = 0;            // boot time, in microseconds
  int64_t energy = -1;       // mJ, since the driver was loaded
  int64_t utilization = -1;  // percent, the largest of the last seconds
  int64_t memory = -1;       // bytes in use
};

struct Readings {
  int64_t at = 0;  // boot time
  int count = 0;   // how many GPUs
  Reading gpus[kMaxMetered];
};

// Reads the GPUs of the lease once a minute (`--meter`), by a program that ends then: where the driver hangs, that
// program hangs alone. Takes some 20 ms of a processor.
class Meter {
 public:
  explicit Meter(const Options& options);

  // For poll: readable when the program has something to tell; -1: none runs.
  int fd() const { return output_.get(); }
  int64_t next_look() const { return look_at_; }  // on the clock of now_ms()
  // The child that isn't the command's; 0: none.
  pid_t pid() const { return pid_; }
  // A child was collected.
  void collected(pid_t pid);
  // To be called whenever something has happened: starts the program when it is time. Whether there are new readings.
  bool react();
  const Readings& readings() const { return readings_; }
  // Ends the program, if it runs: it would be waited for.
  void interrupt();

 private:
  bool start();
  void parse();

  const Options& options_;
  int64_t look_at_;
  uint64_t last_ = 1;  // when the last look was, in microseconds since 1970
  pid_t pid_ = 0;
  gpu_owner::process::UniqueFd output_;
  char text_[kMaxMetered * 80];
  size_t length_ = 0;
  Readings readings_;
};

}  // namespace keeper
