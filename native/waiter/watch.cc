#include "waiter/watch.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
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
// The same for those that won't be served soon, and how long that heartbeat counts.
constexpr int64_t kFarHeartbeatMs = 8'000;
constexpr int64_t kFarCountsMs = 20'000;
// With more waiters ahead than this, a waiter is far from the front.
constexpr int64_t kNear = 7;
// The time that Node.js may take until it sends heartbeats: that is long on a busy machine.
constexpr int64_t kWakingMs = 10'000;
// Time that a late waiter gives others to show a heartbeat: the whole machine may have been slow.
constexpr int64_t kLateMs = 1'000;
constexpr int64_t kGraceMs = 5'000;
// While others start Node.js, this one asks at this interval whether it may. In the end it starts without permission,
// one waiter after the other, because any user can lock these bytes.
constexpr int64_t kAskMs = 50;
constexpr int64_t kFarAskMs = 1'000;
constexpr int64_t kStartTimeoutMs = 10'000;
// Without inotify, several locks are polled at this interval: the kernel blocks on one at a time.
constexpr int64_t kPollMs = 100;
constexpr int64_t kSettleMs = 32;
// A lease may be free for a moment whenever it changes hands; and waiters ahead look first whether it stays free.
constexpr int64_t kTakeTimeoutMs = 1'000;
constexpr int64_t kStaggerMs = 50;
// Nothing tells whether the change matters to a request, so all look: one after the other.
constexpr int64_t kBookingsStaggerMs = 250;
// A signal that comes just before the system call that it is to end is repeated.
constexpr int64_t kRepeatMs = 50;

int64_t now() { return process::monotonic_nanoseconds() / 1'000'000; }

timeval interval(int64_t milliseconds) { return {milliseconds / 1000, milliseconds % 1000 * 1000}; }

// Sends SIGALRM after some milliseconds; 0 switches it off.
void set_alarm(int64_t milliseconds) {
  const itimerval timer = {interval(milliseconds == 0 ? 0 : kRepeatMs), interval(milliseconds)};
  setitimer(ITIMER_REAL, &timer, nullptr);
}

// As of SIGCONT: the process was stopped, or is to look at once.
volatile sig_atomic_t is_continued = 0;

void send_heartbeat(const Options& options, locks::Pulse pulse, int64_t counts) {
  if (options.queue >= 0) locks::write_heartbeat(options.queue, locks::heartbeat_offset(options.slot), pulse, counts);
}

void sleep_for(int64_t milliseconds) {
  const timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1'000'000};
  nanosleep(&pause, nullptr);
}

bool is_free(Lock lock, locks::Mode mode) {
  locks::Conflict conflict;
  return locks::probe(lock.descriptor, mode, {lock.byte, 1}, conflict) != 0 || !conflict.exists;
}

// Visits the waiters that are served before one.
class Ahead {
 public:
  Ahead(int queue, int64_t slot)
      : queue_(queue), slot_(slot), own_(locks::read_order_key(queue, locks::heartbeat_offset(slot))) {}

  // Whether at most this many show a heartbeat.
  bool is_at_most(int64_t most) const {
    int64_t count = 0;
    return visit([&](int64_t slot, const locks::OrderKey&) { return !is_alive(slot) || ++count <= most; });
  }

  // As is_at_most(), and none of them is about to look.
  bool is_at_most_and_asleep(int64_t most) const {
    bool wakes = false;
    const bool is_at_most = visit([&, count = int64_t{0}](int64_t slot, const locks::OrderKey&) mutable {
      wakes = wakes || locks::is_waking(queue_, locks::heartbeat_offset(slot));
      return !wakes && (!is_alive(slot) || ++count <= most);
    });
    return is_at_most && !wakes;
  }

  // The last one that shows that it is alive; -1: there is none.
  int64_t nearest() const {
    int64_t nearest = -1;
    locks::OrderKey last;
    visit([&](int64_t slot, const locks::OrderKey& key) {
      if ((nearest < 0 || is_before(last, nearest, key, slot)) && is_alive(slot)) {
        nearest = slot;
        last = key;
      }
      return true;
    });
    return nearest;
  }

 private:
  bool is_alive(int64_t slot) const {
    return locks::is_alive(queue_, locks::heartbeat_offset(slot), locks::kHeartbeatTimeoutMs);
  }

  // Releases without tags are ordered by their slots.
  static bool is_before(const locks::OrderKey& a, int64_t slot_a, const locks::OrderKey& b, int64_t slot_b) {
    return a.exists && b.exists && !(a == b) ? a < b : slot_a < slot_b;
  }

  template <typename Visitor>
  bool visit(Visitor visitor) const {
    return locks::QueueSlots(queue_).visit([&](int64_t slot) {
      const locks::OrderKey key = locks::read_order_key(queue_, locks::heartbeat_offset(slot));
      return !is_before(key, slot, own_, slot_) || visitor(slot, key);
    });
  }

  const int queue_;
  const int64_t slot_;
  const locks::OrderKey own_;
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
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch() {
    if (events_ >= 0) close(events_);
  }

  // Returns when there is news, and this one may start the program.
  void run() {
    if (options_.queue >= 0) locks::end_start(options_.queue);
    for (int64_t next = now();;) {
      bool is_news = now() >= options_.until;
      if (now() >= next) {
        if (is_continued || now() - next > kLateMs) give_grace();
        is_continued = 0;
        is_news = beat() || is_news;
        next = now() + (is_far_ ? kFarHeartbeatMs : kHeartbeatMs);
      }
      is_news = is_news || wait(next < options_.until ? next : options_.until);
      if (is_news) {
        if (may_start()) return;
        sleep_for(is_far_ ? kFarAskMs : kAskMs);
      } else {
        asks_since_ = 0;
      }
      if (is_news || is_continued) next = now();
    }
  }

 private:
  int ahead_count() const { return moved_to_ >= 0 ? 1 : options_.ahead.count(); }
  int64_t ahead(int i) const { return moved_to_ >= 0 ? moved_to_ : options_.ahead[i]; }
  bool is_at_most_ahead(int64_t most) const { return Ahead(options_.queue, options_.slot).is_at_most(most); }

  // The order of its own request, and of those that it waits for.
  uint64_t hash_order() const {
    if (options_.queue < 0) return 0;
    uint64_t hash = locks::add_order(0, options_.queue, locks::heartbeat_offset(options_.slot));
    for (int i = 0; i < ahead_count(); i++)
      hash = locks::add_order(hash, options_.queue, locks::heartbeat_offset(ahead(i)));
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

  void give_grace() {
    grace_until_ = now() + kGraceMs;
    free_since_ = 0;
  }

  // Sends a heartbeat, and looks at everything that tells of no change by itself. Whether there is news.
  bool beat() {
    paint();
    if (options_.queue >= 0) {
      is_far_ = !is_at_most_ahead(kNear);
      send_heartbeat(options_, locks::Pulse::rests, is_far_ ? kFarCountsMs : 0);
      if (options_.queue_path != nullptr && locks::names_same_file(options_.queue, options_.queue_path) == 0)
        return true;
      // The user has put these requests in another order, or a slot has another request by now.
      if (hash_order() != order_ || (is_late() && !move_on())) return true;
    }
    return nobody_takes_a_lease() || bookings_changed();
  }

  bool is_late() const {
    if (now() < grace_until_) return false;
    for (int i = 0; i < ahead_count(); i++) {
      if (!locks::is_alive(options_.queue, locks::heartbeat_offset(ahead(i)), locks::kHeartbeatTimeoutMs)) return true;
    }
    return false;
  }

  // Waits for the next one ahead instead. False where there is none, so that this one may be the first.
  bool move_on() {
    const int64_t nearest = options_.moves_on ? Ahead(options_.queue, options_.slot).nearest() : -1;
    if (nearest < 0) return false;
    moved_to_ = nearest;
    order_ = hash_order();
    return true;
  }

  // Few start the program at a time. The notice says that this one wakes, because it sends no heartbeat for a while.
  bool may_start() {
    if (options_.queue < 0) return true;
    if (!locks::begin_start(options_.queue)) {
      if (asks_since_ == 0) asks_since_ = now();
      const int64_t times = (now() - asks_since_) / kStartTimeoutMs;
      if (times == 0 || !is_at_most_ahead(times - 1)) return false;
    }
    send_heartbeat(options_, locks::Pulse::wakes, kWakingMs);
    return true;
  }

  // A GPU may have become free for any waiter: the ones ahead look first.
  bool bookings_changed() const {
    if (options_.queue < 0) return false;
    const int64_t changed = locks::bookings_changed(options_.queue, options_.bookings);
    return changed != 0 && is_at_most_ahead((now() - changed) / kBookingsStaggerMs);
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
    return Ahead(options_.queue, options_.slot).is_at_most_and_asleep(most);
  }

  // Returns true if one of the locks could be had, false at the latest at the time given, or after SIGCONT.
  bool wait(int64_t end) {
    const int count = options_.all ? 1 : options_.locks.count() + ahead_count();
    if (count == 1) return block(end);
    if (count > 1 && events_ < 0) watch_files();
    // The kernel tells of a file that is closed just before it ends its locks.
    for (int64_t left, settles = 0; (left = end - now()) > 0;) {
      for (const Lock& lock : options_.locks) {
        if (is_free(lock, locks::Mode::shared)) return true;
      }
      for (int i = 0; i < ahead_count(); i++) {
        if (is_free({options_.queue, ahead(i)}, locks::Mode::shared)) return true;
      }
      const int64_t longest = settles > 0 ? settles : count > 0 && events_ < 0 ? kPollMs : left;
      pollfd events = {events_, POLLIN, 0};
      const int result = poll(&events, 1, static_cast<int>(longest < left ? longest : left));
      if (result < 0 && is_continued) return false;
      char ignored[4096];
      const bool is_event = result > 0 && read(events_, ignored, sizeof ignored) > 0;
      settles = is_event ? 1 : settles < kSettleMs ? 2 * settles : 0;
    }
    return false;
  }

  // Where there are several locks, the kernel tells when a process closes one of their files that it could write.
  void watch_files() {
    events_ = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    const auto add = [&](int descriptor) {
      char path[64];
      snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
      return events_ >= 0 && inotify_add_watch(events_, path, IN_CLOSE_WRITE) >= 0;
    };
    bool is_complete = options_.queue < 0 || add(options_.queue);
    for (const Lock& lock : options_.locks) is_complete = is_complete && add(lock.descriptor);
    if (is_complete || events_ < 0) return;
    close(events_);
    events_ = -1;
  }

  bool block(int64_t end) {
    const Lock lock = options_.locks.count() > 0 ? options_.locks[done_] : Lock{options_.queue, ahead(0)};
    const int64_t left = end - now();
    set_alarm(left > 0 ? left : 1);
    const int error = locks::wait_lock(lock.descriptor, locks::Kind::ofd, locks::Mode::shared, {lock.byte, 1});
    set_alarm(0);
    if (error == EINTR) return false;
    if (error == 0) locks::unlock(lock.descriptor, locks::Kind::ofd, {lock.byte, 1});
    return !options_.all || ++done_ == options_.locks.count();
  }

  const Options& options_;
  int64_t moved_to_ = -1;  // instead of all slots ahead
  uint64_t order_;
  bool is_far_ = false;
  int64_t grace_until_ = 0;
  int64_t asks_since_ = 0;
  int done_ = 0;  // with --all
  int64_t free_since_ = 0;
  int events_ = -1;
};

}  // namespace

void note_continued(int) { is_continued = 1; }

void wait_for_news(const Options& options) { Watch(options).run(); }

const char* wait_for_files(const Options& options) {
  for (const int64_t end = now() + options.needs_timeout;;) {
    send_heartbeat(options, locks::Pulse::wakes, kWakingMs);
    const char* missing = nullptr;
    for (const char* path : options.needed) {
      if (missing == nullptr && access(path, R_OK) != 0) missing = path;
    }
    if (missing == nullptr || now() >= end) return missing;
    sleep_for(kPollMs);
  }
}

}  // namespace waiter
