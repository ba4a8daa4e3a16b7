// Slots in a wait queue are given out in order, and come back when their waiters end.
#include "locks/wait_queue.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <vector>

#include "locks/files.h"
#include "locks/locks.h"
#include "support/directory.h"
#include "test.h"

using namespace gpu_owner::locks;

namespace {

const char* queue_path() {
  static const std::string path = tests::path_of("line");
  return path.c_str();
}

std::vector<int64_t> taken(int64_t from = 0, int64_t to = 0) {
  const int file = open(queue_path(), O_RDONLY);
  std::vector<int64_t> slots;
  CHECK_EQUAL(taken_slots(file, from, to, slots), 0);
  close(file);
  return slots;
}

}  // namespace

TEST("slots are given out in order, and are behind all that are taken") {
  std::vector<int> files;
  for (int i = 0; i < 5; i++) {
    files.push_back(tests::open_file(queue_path()));
    CHECK_EQUAL(join_queue(files.back()), i);
  }
  CHECK(taken() == (std::vector<int64_t>{0, 1, 2, 3, 4}));
  CHECK(taken(0, 3) == (std::vector<int64_t>{0, 1, 2}));
  CHECK(taken(2, 4) == (std::vector<int64_t>{2, 3}));
  CHECK(taken(4, 4).empty());
  close(files[1]);
  close(files[3]);
  CHECK(taken() == (std::vector<int64_t>{0, 2, 4}));
  CHECK_EQUAL(join_queue(tests::open_file(queue_path())), 5);
}

TEST("a lock behind all numbers that a slot can have is no slot, and one over the last of them leaves none") {
  const int64_t end = INT64_MAX, last = (int64_t{1} << 53) - 2;
  for (const Range range : {Range{last + 1, 1}, Range{end - 1, 1}, Range{end, 1}, Range{last, 2}, Range{last, 0}}) {
    const int stranger = tests::open_file(queue_path()), waiter = tests::open_file(queue_path());
    REQUIRE_EQUAL(try_lock(stranger, Kind::ofd, Mode::exclusive, range), 0);
    CHECK_EQUAL(join_queue(waiter), range.start > last ? 0 : -ENOLCK);
    for (const int file : {waiter, stranger}) close(file);
    CHECK(taken().empty());
  }
}

TEST("a killed waiter leaves the queue") {
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    join_queue(tests::open_file(queue_path()));
    if (write(ready[1], "r", 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char byte;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  CHECK_EQUAL(taken().size(), size_t{1});
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK(taken().empty());
}

TEST("who waits for the end of a slot doesn't make it look taken, and nobody gets it meanwhile") {
  const int first = tests::open_file(queue_path());
  CHECK_EQUAL(join_queue(first), 0);
  close(first);
  const int waiting = open(queue_path(), O_RDONLY);
  CHECK_EQUAL(try_lock(waiting, Kind::ofd, Mode::shared, {0, 1}), 0);
  CHECK(taken().empty());
  CHECK_EQUAL(join_queue(tests::open_file(queue_path())), 1);
}

TEST("many who join at once get slots of their own") {
  constexpr int kProcesses = 8, kEach = 25;
  int results[2];
  REQUIRE(pipe(results) == 0);
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; i++) {
    const pid_t child = fork();
    if (child == 0) {
      for (int k = 0; k < kEach; k++) {
        const int64_t slot = join_queue(tests::open_file(queue_path()));
        if (write(results[1], &slot, sizeof slot) != sizeof slot) _exit(1);
      }
      pause();
      _exit(0);
    }
    children.push_back(child);
  }
  std::set<int64_t> slots;
  for (int i = 0; i < kProcesses * kEach; i++) {
    int64_t slot = -1;
    REQUIRE(read(results[0], &slot, sizeof slot) == sizeof slot);
    CHECK(slot >= 0);
    slots.insert(slot);
  }
  CHECK_EQUAL(slots.size(), size_t{kProcesses * kEach});
  CHECK(taken() == std::vector<int64_t>(slots.begin(), slots.end()));
  for (const pid_t child : children) kill(child, SIGKILL);
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  CHECK(taken().empty());
}

TEST("strangers' longer locks are nobody's slot") {
  const int stranger = tests::open_file(queue_path());
  CHECK_EQUAL(try_lock(stranger, Kind::ofd, Mode::exclusive, {3, 10}), 0);
  CHECK(taken().empty());
  CHECK_EQUAL(join_queue(tests::open_file(queue_path())), 13);
  CHECK(taken(0, 5).empty());
  CHECK(taken(5).size() == 1);
}

TEST("a stranger's lock to the end of the file leaves no slot") {
  const int stranger = tests::open_file(queue_path());
  CHECK_EQUAL(try_lock(stranger, Kind::ofd, Mode::exclusive, {0, 0}), 0);
  CHECK_EQUAL(join_queue(tests::open_file(queue_path())), -ENOLCK);
  CHECK(taken().empty());
}

TEST("a descriptor that can't be written to joins no line") {
  tests::open_file(queue_path());
  CHECK_EQUAL(join_queue(open(queue_path(), O_RDONLY)), -EBADF);
}

namespace {

// So many bytes are locked, none beside another: the kernel would make one lock of them.
void lock_places(int file, int64_t count) {
  for (int64_t i = count - 1; i >= 0; i--) REQUIRE_EQUAL(try_lock(file, Kind::ofd, Mode::exclusive, {2 * i, 1}), 0);
}

int count_places() {
  const int file = open(queue_path(), O_RDONLY);
  std::vector<int64_t> slots;
  const int error = taken_slots(file, 0, 0, slots);
  close(file);
  return error == 0 ? static_cast<int>(slots.size()) : -error;
}

}  // namespace

TEST("a queue of a thousand is read, and more than 4096 slots are no wait queue") {
  const int stranger = tests::open_file(queue_path());
  lock_places(stranger, 1000);
  CHECK_EQUAL(count_places(), 1000);
  CHECK_EQUAL(join_queue(tests::open_file(queue_path())), 1999);
  close(stranger);
  const int many = tests::open_file(queue_path());
  lock_places(many, kMaxSlots + 200);
  CHECK_EQUAL(count_places(), -E2BIG);
}

TEST("strangers that have locked the first slots, one by one, keep others from joining only for a bounded time") {
  const int many = tests::open_file(queue_path());
  lock_places(many, 10'000);
  const int64_t slot = join_queue(tests::open_file(queue_path()));
  CHECK(slot == -E2BIG || slot == 19'999);
  CHECK_EQUAL(count_places(), -E2BIG);
}
