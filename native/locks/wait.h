// Waiting for a lock without blocking the thread that asks: each wait has a thread of its own.
//
// The libuv pool is no place for it (four waits would stop all file access, and the process could not exit), nor is the
// main thread (Ctrl-C). A wait is cancelled by a signal that is repeated until the thread has acknowledged it.
#pragma once

#include <pthread.h>

#include <atomic>

#include "locks/locks.h"
#include "process/unique_fd.h"

namespace gpu_owner::locks {

class Waiter {
 public:
  // Called on the waiter's thread when the wait is over: 0 = locked, ECANCELED, or an errno value. After a cancel()
  // that returned, it has been called.
  using Done = void (*)(void* context, int error);

  // Starts the wait. The lock is taken on the description of `descriptor`, of which a duplicate is kept meanwhile.
  // Null when no thread or descriptor can be had; errno says why.
  static Waiter* start(int descriptor, Kind kind, Mode mode, Range range, Done done, void* context);

  // Ends the wait if it isn't over. Returns when the thread has acknowledged (usually well below a millisecond).
  void cancel();
  // Begins that without waiting for the thread, where several are to end at the same time. This may come too early to
  // be noticed, so cancel() must follow.
  void begin_cancel();
  // Whether `done` has been called.
  bool over() const { return over_.load() != 0; }
  // Sleeps until the wait is over or the time has passed; a signal may end the sleep early.
  void sleep(int64_t nanoseconds) const;
  // To be called once, after cancel() or when over.
  void join_and_delete();

 private:
  Waiter() = default;
  static void* run(void* self);

  process::UniqueFd descriptor_;
  Kind kind_ = Kind::ofd;
  Mode mode_ = Mode::exclusive;
  Range range_;
  Done done_ = nullptr;
  void* context_ = nullptr;
  pthread_t thread_ = {};
  std::atomic<bool> cancelled_{false};
  std::atomic<uint32_t> over_{0};
};

}  // namespace gpu_owner::locks
