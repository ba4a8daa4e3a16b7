// Waiting for a lock on a thread of its own.
#include "locks/wait.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "support/directory.h"
#include "support/kinds.h"
#include "support/outcome.h"
#include "support/processes.h"
#include "support/stopwatch.h"
#include "test.h"

using namespace gpu_owner::locks;
using tests::Outcome;

namespace {

constexpr Range kByte = {0, 1};

std::string waiter_path() { return tests::path_of("lock"); }

}  // namespace

TEST("a free lock is granted at once, and held by the descriptor that was given") {
  for (const Kind kind : tests::waitable_kinds()) {
    const int file = tests::open_file(waiter_path());
    Outcome outcome;
    Waiter* waiter = Waiter::start(file, kind, Mode::exclusive, kByte, Outcome::note, &outcome);
    REQUIRE(waiter != nullptr);
    CHECK(outcome.wait());
    CHECK_EQUAL(outcome.error(), 0);
    waiter->join_and_delete();
    const int other = tests::open_file(waiter_path());
    CHECK_EQUAL(try_lock(other, kind, Mode::exclusive, kByte), EAGAIN);
    close(file);
    CHECK_EQUAL(try_lock(other, kind, Mode::exclusive, kByte), 0);
    close(other);
  }
}

TIMED_TEST("a held lock is granted when its holder lets go, within milliseconds") {
  for (const Kind kind : tests::waitable_kinds()) {
    const int holder = tests::open_file(waiter_path()), file = tests::open_file(waiter_path());
    CHECK_EQUAL(try_lock(holder, kind, Mode::exclusive, kByte), 0);
    Outcome outcome;
    Waiter* waiter = Waiter::start(file, kind, Mode::exclusive, kByte, Outcome::note, &outcome);
    tests::sleep_milliseconds(30);
    CHECK(!outcome.known());
    CHECK(!waiter->over());
    const tests::Stopwatch watch;
    close(holder);
    CHECK(outcome.wait());
    CHECK(watch.milliseconds() < 100 * tests::slowness());
    CHECK_EQUAL(outcome.error(), 0);
    waiter->join_and_delete();
    close(file);
  }
}

TEST("a shared wait ends when the exclusive holder is killed") {
  const Kind kind = tests::waitable_kinds().back();
  tests::Channel ready;
  const pid_t holder = tests::start([&] {
    try_lock(tests::open_file(waiter_path()), kind, Mode::exclusive, kByte);
    ready.say();
    pause();
    return 0;
  });
  ready.hear();
  const int file = open(waiter_path().c_str(), O_RDONLY);
  Outcome outcome;
  Waiter* waiter = Waiter::start(file, kind, Mode::shared, kByte, Outcome::note, &outcome);
  tests::kill_and_wait(holder);
  CHECK(outcome.wait());
  CHECK_EQUAL(outcome.error(), 0);
  waiter->join_and_delete();
}

TEST("the caller may close its descriptor while a wait goes on; the lock then goes with the wait") {
  for (const Kind kind : tests::waitable_kinds()) {
    const int holder = tests::open_file(waiter_path()), file = tests::open_file(waiter_path());
    CHECK_EQUAL(try_lock(holder, kind, Mode::exclusive, kByte), 0);
    Outcome outcome;
    Waiter* waiter = Waiter::start(file, kind, Mode::exclusive, kByte, Outcome::note, &outcome);
    close(file);
    CHECK_EQUAL(unlock(holder, kind, kByte), 0);
    CHECK(outcome.wait());
    waiter->join_and_delete();
    CHECK_EQUAL(try_lock(holder, kind, Mode::exclusive, kByte), 0);
    close(holder);
  }
}

TEST("a lock that can't be taken is an error") {
  errno = 0;
  Outcome outcome;
  CHECK(Waiter::start(-1, Kind::ofd, Mode::exclusive, kByte, Outcome::note, &outcome) == nullptr);
  CHECK_EQUAL(errno, EBADF);
  close(tests::open_file(waiter_path()));
  const int readable = open(waiter_path().c_str(), O_RDONLY);
  Waiter* waiter = Waiter::start(readable, Kind::ofd, Mode::exclusive, kByte, Outcome::note, &outcome);
  REQUIRE(waiter != nullptr);
  CHECK(outcome.wait());
  CHECK_EQUAL(outcome.error(), EBADF);
  waiter->join_and_delete();
}

TEST("sleep ends when the wait is over, or when its time is") {
  const Kind kind = tests::waitable_kinds().back();
  const int holder = tests::open_file(waiter_path()), file = tests::open_file(waiter_path());
  CHECK_EQUAL(try_lock(holder, kind, Mode::exclusive, kByte), 0);
  Outcome outcome;
  Waiter* waiter = Waiter::start(file, kind, Mode::exclusive, kByte, Outcome::note, &outcome);
  const tests::Stopwatch watch;
  waiter->sleep(20'000'000);
  CHECK(watch.milliseconds() >= 19);
  close(holder);
  while (!waiter->over()) waiter->sleep(10'000'000'000);
  CHECK(watch.milliseconds() < 2000 * tests::slowness());
  waiter->join_and_delete();
}

TEST("two hundred waiters get an exclusive lock one after another, each once") {
  constexpr int kWaiters = 200;
  const int holder = tests::open_file(waiter_path());
  for (const Kind kind : tests::waitable_kinds()) {
    CHECK_EQUAL(try_lock(holder, kind, Mode::exclusive, kByte), 0);
    struct One {
      int file;
      Waiter* waiter;
      Outcome outcome;
    };
    std::vector<std::unique_ptr<One>> all;
    for (int i = 0; i < kWaiters; i++) {
      all.push_back(std::make_unique<One>());
      One& one = *all.back();
      one.file = tests::open_file(waiter_path());
      one.waiter = Waiter::start(one.file, kind, Mode::exclusive, kByte, Outcome::note, &one.outcome);
      REQUIRE(one.waiter != nullptr);
    }
    CHECK_EQUAL(unlock(holder, kind, kByte), 0);
    for (int granted = 0; granted < kWaiters; granted++) {
      One* winner = nullptr;
      int known = 0;
      REQUIRE(tests::eventually([&] {
        known = 0;
        for (const auto& one : all) {
          if (one->waiter == nullptr || !one->outcome.known()) continue;
          winner = one.get();
          known++;
        }
        return known > 0;
      }));
      REQUIRE_EQUAL(known, 1);
      REQUIRE_EQUAL(winner->outcome.error(), 0);
      winner->waiter->join_and_delete();
      winner->waiter = nullptr;
      close(winner->file);
    }
  }
  CHECK(tests::eventually([] { return tests::has_threads(1); }));
}

TEST("threads and descriptors are given back") {
  const int file = tests::open_file(waiter_path());
  const int before = tests::open_descriptors();
  for (int i = 0; i < 500 / tests::slowness(); i++) {
    Outcome outcome;
    Waiter* waiter = Waiter::start(file, Kind::ofd, Mode::exclusive, kByte, Outcome::note, &outcome);
    REQUIRE(waiter != nullptr);
    waiter->cancel();
    waiter->join_and_delete();
  }
  CHECK_EQUAL(tests::open_descriptors(), before);
  CHECK(tests::eventually([] { return tests::has_threads(1); }));
}
