// Ending a wait, at any moment of its life.
#include <errno.h>
#include <sched.h>
#include <unistd.h>

#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "locks/wait.h"
#include "process/futex.h"
#include "support/directory.h"
#include "support/kinds.h"
#include "support/outcome.h"
#include "support/processes.h"
#include "support/stopwatch.h"
#include "test.h"

using namespace gpu_owner;
using namespace gpu_owner::locks;
using tests::Outcome;

namespace {

constexpr Range kCancelByte = {0, 1};
constexpr double kMaxMilliseconds = 5000;  // ms for a repetition, on however busy a machine

std::string cancel_path() { return tests::path_of("lock"); }

// The moments that matter lie within the first microseconds of a thread's life and within a system call: busy, not
// asleep.
void spin(int64_t nanoseconds) {
  const int64_t end = process::monotonic_nanoseconds() + nanoseconds;
  while (process::monotonic_nanoseconds() < end) sched_yield();
}

bool held_by_others(int file, Kind kind) {
  const int error = try_lock(file, kind, Mode::exclusive, kCancelByte);
  if (error == 0) unlock(file, kind, kCancelByte);
  return error != 0;
}

}  // namespace

TIMED_TEST("a cancelled wait ends at once, says so, and has taken nothing") {
  for (const Kind kind : tests::waitable_kinds()) {
    const int holder = tests::open_file(cancel_path()), file = tests::open_file(cancel_path());
    CHECK_EQUAL(try_lock(holder, kind, Mode::exclusive, kCancelByte), 0);
    Outcome outcome;
    Waiter* waiter = Waiter::start(file, kind, Mode::exclusive, kCancelByte, Outcome::note, &outcome);
    tests::sleep_milliseconds(20);
    const tests::Stopwatch watch;
    waiter->cancel();
    CHECK(watch.milliseconds() < 50 * tests::slowness());
    CHECK_EQUAL(outcome.calls(), 1);
    CHECK_EQUAL(outcome.error(), ECANCELED);
    CHECK(waiter->over());
    waiter->join_and_delete();
    CHECK_EQUAL(unlock(holder, kind, kCancelByte), 0);
    CHECK(!held_by_others(holder, kind));
    close(holder);
    close(file);
  }
}

TEST("waits whose cancellation was begun together all end") {
  const Kind kind = tests::waitable_kinds().back();
  const int holder = tests::open_file(cancel_path()), file = tests::open_file(cancel_path());
  CHECK_EQUAL(try_lock(holder, kind, Mode::exclusive, kCancelByte), 0);
  constexpr int kWaits = 8;
  Outcome outcomes[kWaits];
  Waiter* waiters[kWaits];
  for (int i = 0; i < kWaits; i++) {
    waiters[i] = Waiter::start(file, kind, Mode::shared, kCancelByte, Outcome::note, &outcomes[i]);
    REQUIRE(waiters[i] != nullptr);
    if (i % 2 == 0) tests::sleep_milliseconds(5);  // half of them wait already, half have just been started
  }
  for (Waiter* waiter : waiters) waiter->begin_cancel();
  for (Waiter* waiter : waiters) waiter->begin_cancel();
  for (int i = 0; i < kWaits; i++) {
    waiters[i]->cancel();
    CHECK_EQUAL(outcomes[i].calls(), 1);
    CHECK_EQUAL(outcomes[i].error(), ECANCELED);
    waiters[i]->join_and_delete();
  }
  CHECK_EQUAL(unlock(holder, kind, kCancelByte), 0);
  CHECK(!held_by_others(holder, kind));
  close(holder);
  close(file);
}

TEST("a wait that is over when its cancellation begins keeps its lock") {
  const int file = tests::open_file(cancel_path());
  Outcome outcome;
  Waiter* waiter = Waiter::start(file, Kind::ofd, Mode::exclusive, kCancelByte, Outcome::note, &outcome);
  CHECK(outcome.wait());
  waiter->begin_cancel();
  waiter->cancel();
  CHECK_EQUAL(outcome.calls(), 1);
  CHECK_EQUAL(outcome.error(), 0);
  waiter->join_and_delete();
  close(file);
}

TEST("cancelling what is over does nothing") {
  const int file = tests::open_file(cancel_path());
  Outcome outcome;
  Waiter* waiter = Waiter::start(file, Kind::ofd, Mode::exclusive, kCancelByte, Outcome::note, &outcome);
  CHECK(outcome.wait());
  waiter->cancel();
  waiter->cancel();
  CHECK_EQUAL(outcome.calls(), 1);
  CHECK_EQUAL(outcome.error(), 0);
  waiter->join_and_delete();
}

TEST("thousands of waits cancelled at random moments: none hangs, none leaks, none takes the lock") {
  std::mt19937 random(1);
  for (const Kind kind : tests::waitable_kinds()) {
    const int holder = tests::open_file(cancel_path()), file = tests::open_file(cancel_path());
    CHECK_EQUAL(try_lock(holder, kind, Mode::exclusive, kCancelByte), 0);
    const int before = tests::open_descriptors();
    const tests::Stopwatch watch;
    for (int i = 0; i < 4000 / tests::slowness() && watch.milliseconds() < kMaxMilliseconds; i++) {
      Outcome outcome;
      Waiter* waiter = Waiter::start(file, kind, Mode::exclusive, kCancelByte, Outcome::note, &outcome);
      REQUIRE(waiter != nullptr);
      spin(static_cast<int64_t>(random() % 150'000));
      if (random() % 2 == 0) {
        waiter->begin_cancel();
        spin(static_cast<int64_t>(random() % 50'000));
      }
      waiter->cancel();
      waiter->join_and_delete();
      REQUIRE_EQUAL(outcome.calls(), 1);
      REQUIRE_EQUAL(outcome.error(), ECANCELED);
    }
    CHECK_EQUAL(tests::open_descriptors(), before);
    CHECK_EQUAL(unlock(holder, kind, kCancelByte), 0);
    CHECK(!held_by_others(holder, kind));
    close(holder);
    close(file);
  }
  CHECK(tests::eventually([] { return tests::has_threads(1); }));
}

TEST("a grant that races with the cancellation: what is said is what holds") {
  std::mt19937 random(2);
  for (const Kind kind : tests::waitable_kinds()) {
    int granted = 0, rounds = 0;
    const tests::Stopwatch watch;
    for (; rounds < 3000 / tests::slowness() && watch.milliseconds() < kMaxMilliseconds; rounds++) {
      const int holder = tests::open_file(cancel_path()), file = tests::open_file(cancel_path()),
                witness = tests::open_file(cancel_path());
      REQUIRE_EQUAL(try_lock(holder, kind, Mode::exclusive, kCancelByte), 0);
      Outcome outcome;
      Waiter* waiter = Waiter::start(file, kind, Mode::exclusive, kCancelByte, Outcome::note, &outcome);
      const auto until_end = static_cast<int64_t>(random() % 100'000),
                 until_cancel = static_cast<int64_t>(random() % 100'000);
      std::thread ending([=] {
        spin(until_end);
        close(holder);
      });
      spin(until_cancel);
      waiter->cancel();
      waiter->join_and_delete();
      ending.join();
      REQUIRE_EQUAL(outcome.calls(), 1);
      const bool taken = outcome.error() == 0;
      if (!taken) REQUIRE_EQUAL(outcome.error(), ECANCELED);
      REQUIRE_EQUAL(held_by_others(witness, kind), taken);
      granted += taken;
      close(file);
      close(witness);
    }
    // Both ends of the race were seen, else this has shown nothing.
    CHECK(granted > 0);
    CHECK(granted < rounds);
  }
}

TEST("many waits at once, cancelled in another order than started") {
  constexpr int kWaiters = 300;
  std::mt19937 random(3);
  const Kind kind = tests::waitable_kinds().back();
  const int holder = tests::open_file(cancel_path());
  CHECK_EQUAL(try_lock(holder, kind, Mode::exclusive, kCancelByte), 0);
  const int before = tests::open_descriptors();
  std::vector<Outcome> outcomes(kWaiters);
  std::vector<Waiter*> waiters;
  std::vector<int> files;
  for (int i = 0; i < kWaiters; i++) {
    files.push_back(tests::open_file(cancel_path()));
    waiters.push_back(Waiter::start(files.back(), kind, i % 3 == 0 ? Mode::shared : Mode::exclusive, kCancelByte,
                                    Outcome::note, &outcomes[static_cast<size_t>(i)]));
    REQUIRE(waiters.back() != nullptr);
  }
  std::vector<size_t> order;
  for (size_t i = 0; i < kWaiters; i++) order.insert(order.begin() + static_cast<long>(random() % (i + 1)), i);
  for (const size_t i : order) {
    waiters[i]->cancel();
    waiters[i]->join_and_delete();
    REQUIRE_EQUAL(outcomes[i].error(), ECANCELED);
    close(files[i]);
  }
  CHECK_EQUAL(tests::open_descriptors(), before);
  CHECK(tests::eventually([] { return tests::has_threads(1); }));
}

TEST("the shared lock that a cancelled conversion had is not given up") {
  if (tests::under_valgrind()) tests::skip("valgrind can't wait for OFD locks");
  const int file = tests::open_file(cancel_path()), other = tests::open_file(cancel_path());
  CHECK_EQUAL(try_lock(file, Kind::ofd, Mode::shared, kCancelByte), 0);
  CHECK_EQUAL(try_lock(other, Kind::ofd, Mode::shared, kCancelByte), 0);
  Outcome outcome;
  Waiter* waiter = Waiter::start(file, Kind::ofd, Mode::exclusive, kCancelByte, Outcome::note, &outcome);
  tests::sleep_milliseconds(10);
  waiter->cancel();
  waiter->join_and_delete();
  CHECK_EQUAL(outcome.error(), ECANCELED);
  Conflict conflict;
  CHECK_EQUAL(probe(other, Mode::exclusive, kCancelByte, conflict), 0);
  CHECK(conflict.exists);
}
