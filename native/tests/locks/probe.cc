// Asking which lock is in the way takes nothing and disturbs no other.
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "locks/files.h"
#include "locks/locks.h"
#include "support/directory.h"
#include "support/processes.h"
#include "test.h"

using namespace gpu_owner::locks;

namespace {

const char* probe_path() {
  static const std::string path = tests::path_of("lock");
  return path.c_str();
}

Conflict probed(int file, Mode mode, Range range) {
  Conflict conflict;
  CHECK_EQUAL(probe(file, mode, range, conflict), 0);
  return conflict;
}

}  // namespace

TEST("no lock, no conflict; and a probe takes none") {
  const int file = tests::open_file(probe_path());
  const int other = tests::open_file(probe_path());
  for (const Mode mode : {Mode::shared, Mode::exclusive}) CHECK(!probed(file, mode, {0, 0}).exists);
  CHECK_EQUAL(try_lock(other, Kind::ofd, Mode::exclusive, {0, 0}), 0);
}

TEST("a probe tells where the lock in the way starts, how long it is and of which mode") {
  const int file = tests::open_file(probe_path());
  const int probing = open(probe_path(), O_RDONLY);
  CHECK_EQUAL(try_lock(file, Kind::ofd, Mode::exclusive, {7, 2}), 0);
  const Conflict conflict = probed(probing, Mode::shared, {1, 0});
  CHECK(conflict.exists);
  CHECK_EQUAL(conflict.mode, Mode::exclusive);
  CHECK_EQUAL(conflict.range.start, 7);
  CHECK_EQUAL(conflict.range.length, 2);
  CHECK(!probed(probing, Mode::shared, {9, 0}).exists);
  CHECK(!probed(probing, Mode::exclusive, {0, 7}).exists);
}

TEST("a shared lock is in the way of exclusive ones only") {
  const int file = tests::open_file(probe_path());
  const int probing = open(probe_path(), O_RDONLY);
  CHECK_EQUAL(try_lock(file, Kind::ofd, Mode::shared, {3, 1}), 0);
  CHECK(!probed(probing, Mode::shared, {0, 0}).exists);
  const Conflict conflict = probed(probing, Mode::exclusive, {0, 0});
  CHECK(conflict.exists);
  CHECK_EQUAL(conflict.mode, Mode::shared);
  CHECK_EQUAL(conflict.range.start, 3);
}

TEST("one's own lock is in nobody's way but others'") {
  const int file = tests::open_file(probe_path());
  CHECK_EQUAL(try_lock(file, Kind::ofd, Mode::exclusive, {0, 0}), 0);
  CHECK(!probed(file, Mode::exclusive, {0, 0}).exists);
  CHECK(probed(open(probe_path(), O_RDONLY), Mode::exclusive, {0, 0}).exists);
}

TEST("a lock that is waited for is not held") {
  const int file = tests::open_file(probe_path());
  CHECK_EQUAL(try_lock(file, Kind::ofd, Mode::shared, {0, 1}), 0);
  tests::Channel channel;
  const pid_t waiting = tests::start([&] {
    channel.say();
    return wait_lock(tests::open_file(probe_path()), Kind::ofd, Mode::exclusive, {0, 1});
  });
  channel.hear();
  tests::sleep_milliseconds(50);
  const int probing = open(probe_path(), O_RDONLY);
  CHECK(!probed(probing, Mode::shared, {0, 1}).exists);
  CHECK_EQUAL(probed(probing, Mode::exclusive, {0, 1}).mode, Mode::shared);
  tests::kill_and_wait(waiting);
}

TEST("a flock is not seen") {
  const int file = tests::open_file(probe_path());
  CHECK_EQUAL(try_lock(file, Kind::flock, Mode::exclusive, {}), 0);
  CHECK(!probed(open(probe_path(), O_RDONLY), Mode::exclusive, {0, 0}).exists);
}

TEST("probes never make others fail") {
  const int rounds = 20'000 / tests::slowness();
  tests::Channel ready;
  const pid_t prober = tests::start([&] {
    const int file = open_for_probe(probe_path());
    ready.say();
    Conflict conflict;
    for (;;) probe(file, Mode::exclusive, {0, 0}, conflict);
    return 0;
  });
  const int file = tests::open_file(probe_path());
  ready.hear();
  for (int i = 0; i < rounds; i++) {
    REQUIRE_EQUAL(try_lock(file, Kind::ofd, Mode::exclusive, {0, 1}), 0);
    REQUIRE_EQUAL(unlock(file, Kind::ofd, {0, 1}), 0);
  }
  tests::kill_and_wait(prober);
}

TEST("a descriptor that can't be asked is an error") {
  Conflict conflict;
  CHECK_EQUAL(probe(-1, Mode::shared, {0, 0}, conflict), EBADF);
  CHECK(!conflict.exists);
}

TEST("a probe tells whose lock a process's own is; one of an open file is nobody's") {
  const int file = tests::open_file(probe_path());
  CHECK_EQUAL(try_lock(file, Kind::ofd, Mode::shared, {0, 1}), 0);
  const int probing = open(probe_path(), O_RDONLY);
  CHECK_EQUAL(probed(probing, Mode::exclusive, {0, 0}).pid, -1);
  tests::Channel locked;
  const pid_t process = tests::start([&] {
    const int own = tests::open_file(probe_path());
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_start = 5;
    if (fcntl(own, F_SETLK, &lock) != 0) return 1;
    locked.say();
    pause();
    return 0;
  });
  locked.hear();
  CHECK_EQUAL(probed(probing, Mode::shared, {0, 0}).pid, process);
}
