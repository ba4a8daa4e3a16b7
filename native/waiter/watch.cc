#include "waiter/watch.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "locks/files.h"
#include "locks/heartbeat_file.h"
#include "locks/locks.h"
#include "locks/queue_slots.h"
#include "process/futex.h"

namespace waiter {
namespace {

using namespace gpu_owner;

constexpr int64_t kHeartbeatMs = 1'000;
// The kernel blocks on one lock at a time: several are looked at so often.
constexpr int64_t kPollMs = 100;
// A lease may be free for a moment whenever it changes hands; and waiters ahead look first whether it stays free.
constexpr int64_t kTakeTimeoutMs = 1'000;
constexpr int64_t kStaggerMs = 50;
// Nothing tells whether the change matters to a request, so all look: one after the other.
constexpr int64_t kBookingsStaggerMs = 250;
// A signal that comes just before the system call that it is to end is repeated.
constexpr int64_t kRepeatMs = 50;

int64_t now() { return process::monotonic_nanoseconds() / 1'000'000; }

timeval interval(int64_t milliseconds) { return {milliseconds / 1000, milliseconds % 1000 * 1000}; }

// Sends SIGALRM after so many milliseconds; 0: no longer.
void set_alarm(int64_t milliseconds) {
  const itimerval timer = {interval(milliseconds == 0 ? 0 : kRepeatMs), interval(milliseconds)};
  setitimer(ITIMER_REAL, &timer, nullptr);
}

bool is_free(Lock lock, locks::Mode mode) {
  locks::Conflict conflict;
  return locks::probe(lock.descriptor, mode, {lock.byte, 1}, conflict) != 0 || !conflict.exists;
}

void send_heartbeat(const Options& options) {
  if (options.queue >= 0) locks::write_heartbeat(options.queue, locks::heartbeat_offset(options.slot), true);
}

// Counts the waiters that are served before one.
class CountAhead {
 public:
  CountAhead(int queue, int64_t slot)
      : queue_(queue), slot_(slot), own_(locks::read_order_key(queue, locks::heartbeat_offset(slot))) {}

  // Whether there are at most so many.
  bool is_at_most(int64_t most) {
    most_ = most;
    count_ = 0;
    return locks::QueueSlots(queue_).visit([this](int64_t slot) { return !is_ahead(slot) || ++count_ <= most_; });
  }

 private:
  bool is_ahead(int64_t slot) const {
    const locks::OrderKey key = locks::read_order_key(queue_, locks::heartbeat_offset(slot));
    // Releases without tags are ordered by their slots.
    const bool is_ordered = own_.exists && key.exists;
    return is_ordered && !(key == own_) ? key < own_ : slot < slot_;
  }

  const int queue_;
  const int64_t slot_;
  const locks::OrderKey own_;
  int64_t most_ = 0;
  int64_t count_ = 0;
};

// As formatDuration in lib/platform/quantities.ts.
void format_duration(int64_t milliseconds, char* text, size_t size) {
  const int64_t seconds = milliseconds / 1000;
  const struct {
    int64_t amount;
    const char* unit;
  } parts[] = {{seconds / 86400, "d"}, {seconds / 3600 % 24, "h"}, {seconds / 60 % 60, "min"}, {seconds % 60, "s"}};
  int first = 0;
  while (first < 3 && parts[first].amount == 0) first++;
  const auto& [amount, unit] = parts[first];
  int length = snprintf(text, size, "%" PRId64 " %s", amount, unit);
  if (first == 3 || parts[first + 1].amount == 0 || length < 0 || static_cast<size_t>(length) >= size) return;
  snprintf(text + length, size - static_cast<size_t>(length), " %" PRId64 " %s", parts[first + 1].amount,
           parts[first + 1].unit);
}

class Watch {
 public:
  explicit Watch(const Options& options) : options_(options), order_(hash_order()) {}

  void run() {
    for (int64_t next = now();;) {
      if (now() >= next) {
        if (beat()) return;
        next = now() + kHeartbeatMs;
      }
      if (now() >= options_.until) return;
      if (wait(next < options_.until ? next : options_.until)) return;
    }
  }

 private:
  // The order of its own request, and of those that it waits for.
  uint64_t hash_order() const {
    if (options_.queue < 0) return 0;
    uint64_t hash = locks::add_order(0, options_.queue, locks::heartbeat_offset(options_.slot));
    for (const int64_t slot : options_.ahead)
      hash = locks::add_order(hash, options_.queue, locks::heartbeat_offset(slot));
    return hash;
  }

  // In the background it would be painted over what is typed at the prompt.
  void paint() const {
    winsize size = {};
    if (options_.line_before == nullptr || tcgetpgrp(STDERR_FILENO) != getpgrp()) return;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || (size.ws_col != 0 && size.ws_col < options_.line_columns))
      return;
    char line[4096], passed[64];
    format_duration(now() - options_.line_since, passed, sizeof passed);
    snprintf(line, sizeof line, "\r\033[K%s%s%s", options_.line_before, passed, options_.line_after);
    if (write(STDERR_FILENO, line, strlen(line)) < 0) return;
  }

  // Sends a heartbeat, and looks at everything that tells of no change by itself. Whether there is news.
  bool beat() {
    paint();
    if (options_.queue >= 0) {
      send_heartbeat(options_);
      if (options_.queue_path != nullptr && locks::names_same_file(options_.queue, options_.queue_path) == 0)
        return true;
      // The user has put these requests in another order, or a slot has another request by now.
      if (hash_order() != order_) return true;
      for (const int64_t slot : options_.ahead) {
        if (!locks::is_alive(options_.queue, locks::heartbeat_offset(slot), locks::kHeartbeatTimeoutMs)) return true;
      }
    }
    return nobody_takes_a_lease() || bookings_changed();
  }

  // A GPU may have become free for anybody: those ahead look first.
  bool bookings_changed() const {
    if (options_.queue < 0) return false;
    const int64_t changed = locks::bookings_changed(options_.queue, options_.bookings);
    return changed != 0 && CountAhead(options_.queue, options_.slot).is_at_most((now() - changed) / kBookingsStaggerMs);
  }

  bool nobody_takes_a_lease() {
    bool found = false;
    for (const int lease : options_.leases) found = found || is_free({lease, 0}, locks::Mode::exclusive);
    if (!found)
      free_since_ = 0;
    else if (free_since_ == 0)
      free_since_ = now();
    if (!found || now() - free_since_ < kTakeTimeoutMs) return false;
    if (options_.queue < 0) return true;
    const int64_t most = (now() - free_since_ - kTakeTimeoutMs) / kStaggerMs;
    return CountAhead(options_.queue, options_.slot).is_at_most(most);
  }

  // Returns true if one of the locks could be had, false at the latest at the time given.
  bool wait(int64_t end) {
    const int count = options_.all ? 1 : options_.locks.count() + options_.ahead.count();
    if (count == 1) return block(end);
    for (int64_t left; (left = end - now()) > 0;) {
      for (const Lock& lock : options_.locks) {
        if (is_free(lock, locks::Mode::shared)) return true;
      }
      for (const int64_t slot : options_.ahead) {
        if (is_free({options_.queue, slot}, locks::Mode::shared)) return true;
      }
      if (count > 0 && left > kPollMs) left = kPollMs;
      const timespec pause = {left / 1000, left % 1000 * 1'000'000};
      nanosleep(&pause, nullptr);
    }
    return false;
  }

  bool block(int64_t end) {
    const Lock lock = options_.locks.count() > 0 ? options_.locks[done_] : Lock{options_.queue, options_.ahead[0]};
    const int64_t left = end - now();
    set_alarm(left > 0 ? left : 1);
    const int error = locks::wait_lock(lock.descriptor, locks::Kind::ofd, locks::Mode::shared, {lock.byte, 1});
    set_alarm(0);
    if (error == EINTR) return false;
    if (error == 0) locks::unlock(lock.descriptor, locks::Kind::ofd, {lock.byte, 1});
    return !options_.all || ++done_ == options_.locks.count();
  }

  const Options& options_;
  const uint64_t order_;
  int done_ = 0;  // with --all
  int64_t free_since_ = 0;
};

}  // namespace

void wait_for_news(const Options& options) { Watch(options).run(); }

const char* wait_for_files(const Options& options) {
  for (const int64_t end = now() + options.needs_timeout;;) {
    send_heartbeat(options);
    const char* missing = nullptr;
    for (const char* path : options.needed) {
      if (missing == nullptr && access(path, R_OK) != 0) missing = path;
    }
    if (missing == nullptr || now() >= end) return missing;
    const timespec pause = {0, kPollMs * 1'000'000};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace waiter
