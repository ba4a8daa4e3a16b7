#include "locks/heartbeat.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "locks/locks.h"
#include "process/futex.h"
#include "process/thread.h"

namespace gpu_owner::locks {
namespace {

constexpr size_t kHeartbeatStack = 128 * 1024;

bool is_free(int lease) {
  Conflict conflict;
  return probe(lease, Mode::exclusive, {0, 1}, conflict) == 0 && !conflict.exists;
}

bool is_removed(int descriptor) {
  struct stat status;
  return fstat(descriptor, &status) == 0 && status.st_nlink == 0;
}

}  // namespace

Heartbeat* Heartbeat::start(int descriptor, int64_t offset, int64_t period, int64_t timeout, Told told, void* context) {
  auto* heartbeat = new Heartbeat;
  heartbeat->descriptor_ = descriptor;
  heartbeat->offset_ = offset;
  heartbeat->period_ = period;
  heartbeat->timeout_ = timeout;
  heartbeat->told_ = told;
  heartbeat->context_ = context;
  write_heartbeat(descriptor, offset);  // before another process looks; the thread may start late
  const int error = process::start_thread(heartbeat->thread_, kHeartbeatStack, 0, run, heartbeat);
  if (error == 0) return heartbeat;
  delete heartbeat;
  errno = error;
  return nullptr;
}

void* Heartbeat::run(void* pointer) {
  auto& self = *static_cast<Heartbeat*>(pointer);
  while (self.ended_.load() == 0) {
    self.beat();
    const int64_t end = process::monotonic_nanoseconds() + self.period_ * 1'000'000;
    for (int64_t left = self.period_ * 1'000'000; left > 0; left = end - process::monotonic_nanoseconds()) {
      if (self.ended_.load() != 0) break;
      process::futex_wait(self.ended_, 0, left);
    }
  }
  return nullptr;
}

void Heartbeat::beat() {
  write_heartbeat(descriptor_, offset_);
  pthread_mutex_lock(&mutex_);
  bool lifeless = false;
  for (const int64_t slot : watch_.slots) lifeless = lifeless || !is_alive(descriptor_, slot, timeout_);
  // A slot that has another request by now is news as well.
  if (!watch_.slots.empty()) lifeless = lifeless || hash_order() != order_;
  bool changed = bookings_changed(descriptor_, watch_.bookings) != 0 || is_removed(descriptor_);
  if (!lifeless && process::monotonic_milliseconds() >= quiet_until_) {
    for (const process::UniqueFd& lease : watch_.leases) changed = changed || is_free(lease.get());
  }
  if (lifeless || changed) {
    drop_watch();
    told_(context_, lifeless ? News::lifeless : News::changed);
  }
  pthread_mutex_unlock(&mutex_);
}

uint64_t Heartbeat::hash_order() const {
  uint64_t hash = add_order(0, descriptor_, offset_);
  for (const int64_t slot : watch_.slots) hash = add_order(hash, descriptor_, slot);
  return hash;
}

void Heartbeat::drop_watch() { watch_ = {}; }

void Heartbeat::watch(Watch watch) {
  pthread_mutex_lock(&mutex_);
  drop_watch();
  watch_ = std::move(watch);
  order_ = hash_order();
  quiet_until_ = process::monotonic_milliseconds() + watch_.quiet;
  pthread_mutex_unlock(&mutex_);
}

void Heartbeat::end() {
  ended_.store(1);
  process::futex_wake(ended_);
  pthread_join(thread_, nullptr);
  drop_watch();
  pthread_mutex_destroy(&mutex_);
  delete this;
}

}  // namespace gpu_owner::locks
