// Heartbeats of queued waiters, and the watch on those of others.
//
// A thread of its own, so that a hundred programs that wait needn't wake up for it: it writes the time into a file
// every second, and tells its owner only if there is something to be done.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "locks/heartbeat_file.h"
#include "process/unique_fd.h"

namespace gpu_owner::locks {

class Heartbeat {
 public:
  enum class News {
    lifeless,  // a watched process shows no signs of life, or the order has changed
    changed,   // one of the watched locks isn't held, bookings have changed, or the file was removed
  };
  // Called on the heartbeat's thread; not after end() has returned.
  using Told = void (*)(void* context, News news);

  struct Watch {
    std::vector<int64_t> slots;             // offsets of others' heartbeats in the same file
    std::vector<process::UniqueFd> leases;  // byte 0 of each is looked at
    int64_t quiet = 0;                      // milliseconds in which leases aren't looked at
    int64_t bookings = INT64_MAX;           // as of when bookings are known; CLOCK_MONOTONIC, ms
  };

  // Starts. The file's descriptor stays the caller's, and open until end(). Null when no thread can be had.
  static Heartbeat* start(int descriptor, int64_t offset, int64_t period, int64_t timeout, Told told, void* context);

  // Sets what to watch from now on, until there is news or another watch; an empty one for nothing.
  void watch(Watch watch);
  // Ends the thread, and itself.
  void end();

 private:
  Heartbeat() = default;
  static void* run(void* self);
  void beat();
  void drop_watch();
  uint64_t hash_order() const;

  int descriptor_ = -1;
  int64_t offset_ = 0;
  int64_t period_ = 0;
  int64_t timeout_ = 0;
  Told told_ = nullptr;
  void* context_ = nullptr;
  pthread_t thread_ = {};
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;  // guards watch_
  Watch watch_;
  int64_t quiet_until_ = 0;
  uint64_t order_ = 0;  // of this waiter's request, and of those that are watched
  std::atomic<uint32_t> ended_{0};
};

}  // namespace gpu_owner::locks
