// Waiting on the main thread without making Ctrl-C deaf.
//
// Node.js runs a JavaScript signal handler only when control is back in its event loop, so a wait on the main thread
// has to end when such a signal arrives. While an Interrupt lives, handlers of SIGINT, SIGTERM and SIGHUP are wrapped:
// the original one still runs, and the wait learns of it. Signals without a handler of the program's kill it as always.
#pragma once

#include <cstdint>

namespace gpu_owner::process {

// Whether this is the process's first thread.
bool is_main_thread();

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // The signal that arrived since construction of the outermost one that lives, or 0. Always 0 on other threads than
  // the main one: they don't keep handlers from running.
  int signal() const;

 private:
  const bool on_main_thread_;
};

// No sleep on the main thread is longer, because a signal may be handled on another thread and not end it.
constexpr int64_t kMaxSleep = 20'000'000;  // ns

// Sleeps; false when a handled signal arrived.
bool interruptible_sleep(int64_t nanoseconds);

}  // namespace gpu_owner::process
