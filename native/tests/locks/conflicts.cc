// Which locks conflict with which.
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "locks/locks.h"
#include "support/directory.h"
#include "support/processes.h"
#include "test.h"

using namespace gpu_owner::locks;

namespace {

const Kind kKinds[] = {Kind::flock, Kind::ofd};

const char* conflict_path() {
  static const std::string path = tests::path_of("lock");
  return path.c_str();
}

// Asks as another process, with an open file description of its own.
int try_elsewhere(Kind kind, Mode mode, Range range) {
  return tests::end_of(tests::start([&] { return try_lock(open(conflict_path(), O_RDWR), kind, mode, range); }));
}

}  // namespace

TEST("shared locks live side by side, exclusive ones alone, between processes") {
  for (const Kind kind : kKinds) {
    const int file = tests::open_file(conflict_path());
    CHECK_EQUAL(try_elsewhere(kind, Mode::exclusive, {}), 0);
    CHECK_EQUAL(try_lock(file, kind, Mode::shared, {}), 0);
    CHECK_EQUAL(try_elsewhere(kind, Mode::shared, {}), 0);
    CHECK_EQUAL(try_elsewhere(kind, Mode::exclusive, {}), EAGAIN);
    CHECK_EQUAL(try_lock(file, kind, Mode::exclusive, {}), 0);  // converts it
    CHECK_EQUAL(try_elsewhere(kind, Mode::shared, {}), EAGAIN);
    CHECK_EQUAL(try_elsewhere(kind, Mode::exclusive, {}), EAGAIN);
    CHECK_EQUAL(try_lock(file, kind, Mode::shared, {}), 0);  // and back
    CHECK_EQUAL(try_elsewhere(kind, Mode::shared, {}), 0);
    CHECK_EQUAL(unlock(file, kind, {}), 0);
    CHECK_EQUAL(try_elsewhere(kind, Mode::exclusive, {}), 0);
    close(file);
  }
}

TEST("locks belong to the open file description: two of one process are strangers, duplicates are one") {
  for (const Kind kind : kKinds) {
    const int file = tests::open_file(conflict_path());
    const int other = tests::open_file(conflict_path());
    const int duplicate = dup(file);
    CHECK_EQUAL(try_lock(file, kind, Mode::exclusive, {}), 0);
    CHECK_EQUAL(try_lock(other, kind, Mode::exclusive, {}), EAGAIN);
    CHECK_EQUAL(try_lock(other, kind, Mode::shared, {}), EAGAIN);
    CHECK_EQUAL(try_lock(duplicate, kind, Mode::exclusive, {}), 0);
    // Closing a descriptor that isn't the last, or another one of the same file, ends nothing (POSIX locks would).
    close(duplicate);
    close(tests::open_file(conflict_path()));
    CHECK_EQUAL(try_lock(other, kind, Mode::shared, {}), EAGAIN);
    close(file);
    CHECK_EQUAL(try_lock(other, kind, Mode::exclusive, {}), 0);
    close(other);
  }
}

TEST("OFD locks are about bytes, also beyond the file's end") {
  const int file = tests::open_file(conflict_path());
  CHECK_EQUAL(try_lock(file, Kind::ofd, Mode::exclusive, {10, 5}), 0);
  CHECK_EQUAL(try_elsewhere(Kind::ofd, Mode::exclusive, {0, 10}), 0);
  CHECK_EQUAL(try_elsewhere(Kind::ofd, Mode::exclusive, {15, 1}), 0);
  CHECK_EQUAL(try_elsewhere(Kind::ofd, Mode::exclusive, {14, 1}), EAGAIN);
  CHECK_EQUAL(try_elsewhere(Kind::ofd, Mode::shared, {0, 11}), EAGAIN);
  CHECK_EQUAL(try_elsewhere(Kind::ofd, Mode::exclusive, {0, 0}), EAGAIN);  // to the end of all offsets
  CHECK_EQUAL(try_elsewhere(Kind::ofd, Mode::exclusive, {15, 0}), 0);
  CHECK_EQUAL(unlock(file, Kind::ofd, {12, 1}), 0);
  CHECK_EQUAL(try_elsewhere(Kind::ofd, Mode::exclusive, {12, 1}), 0);
  CHECK_EQUAL(try_elsewhere(Kind::ofd, Mode::exclusive, {11, 1}), EAGAIN);
  constexpr int64_t kFar = int64_t{1} << 60;
  CHECK_EQUAL(try_lock(file, Kind::ofd, Mode::exclusive, {kFar, 1}), 0);
  CHECK_EQUAL(try_elsewhere(Kind::ofd, Mode::exclusive, {kFar, 1}), EAGAIN);
}

TEST("flock and OFD locks don't see each other") {
  const int file = tests::open_file(conflict_path());
  CHECK_EQUAL(try_lock(file, Kind::flock, Mode::exclusive, {}), 0);
  CHECK_EQUAL(try_elsewhere(Kind::ofd, Mode::exclusive, {}), 0);
  CHECK_EQUAL(try_lock(file, Kind::ofd, Mode::exclusive, {}), 0);
  CHECK_EQUAL(unlock(file, Kind::flock, {}), 0);
  CHECK_EQUAL(try_elsewhere(Kind::flock, Mode::exclusive, {}), 0);
  CHECK_EQUAL(try_elsewhere(Kind::ofd, Mode::exclusive, {}), EAGAIN);
}

TEST("what isn't possible is an error of its own, not a lock in the way") {
  CHECK_EQUAL(try_lock(-1, Kind::flock, Mode::shared, {}), EBADF);
  CHECK_EQUAL(try_lock(-1, Kind::ofd, Mode::shared, {}), EBADF);
  CHECK_EQUAL(unlock(-1, Kind::ofd, {}), EBADF);
  const int file = tests::open_file(conflict_path());
  CHECK_EQUAL(try_lock(file, Kind::ofd, Mode::shared, {-5, 1}), EINVAL);
  const int readable = open(conflict_path(), O_RDONLY);
  CHECK_EQUAL(try_lock(readable, Kind::ofd, Mode::shared, {}), 0);
  CHECK_EQUAL(try_lock(readable, Kind::ofd, Mode::exclusive, {}), EBADF);
  CHECK_EQUAL(try_lock(readable, Kind::flock, Mode::exclusive, {}), 0);
}
