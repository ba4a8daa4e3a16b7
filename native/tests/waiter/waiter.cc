// `gpu-owner-keeper wait` waits for locks, and becomes the program after that. This test is its caller.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "locks/heartbeat_file.h"
#include "locks/locks.h"
#include "locks/queue_slots.h"
#include "locks/wait_queue.h"
#include "process/futex.h"
#include "support/directory.h"
#include "support/processes.h"
#include "test.h"

using namespace gpu_owner::locks;

namespace {

constexpr int kSoon = 700;  // milliseconds in which a wait could have ended

// Says that it was started, and whether descriptors are open.
PROGRAM(after) {
  std::string found = "started";
  for (int i = 1; i < count; i++) found += fcntl(atoi(arguments[i]), F_GETFD) == 0 ? " open" : " closed";
  tests::write_file(arguments[0], found);
  return 7;
}

std::string result() { return tests::contents_of(tests::path_of("result")); }

pid_t run_waiter(std::vector<std::string> words) {
  words.insert(words.begin(), {"gpu-owner-keeper", "wait"});
  return tests::start([&words] {
    std::vector<char*> list;
    for (std::string& word : words) list.push_back(word.data());
    list.push_back(nullptr);
    for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) dup2(open("/dev/null", O_WRONLY), stream);
    execv((std::string(BUILD_DIRECTORY) + "/gpu-owner-keeper").c_str(), list.data());
    return 1;
  });
}

// With a program behind it that looks at these descriptors.
pid_t start_waiter(std::vector<std::string> words, std::vector<std::string> descriptors = {}) {
  words.push_back("--");
  descriptors.insert(descriptors.begin(), tests::path_of("result"));
  for (const std::string& word : tests::program_arguments("after", descriptors)) words.push_back(word);
  return run_waiter(words);
}

bool still_waits(pid_t waiter) {
  tests::sleep_milliseconds(kSoon);
  return waitpid(waiter, nullptr, WNOHANG) == 0 && result().empty();
}

// A descriptor with a description of its own, which survives exec.
int open_to_inherit(const std::string& path) {
  const int file = tests::open_file(path);
  fcntl(file, F_SETFD, 0);
  return file;
}

struct Holder {
  int file;
  int64_t byte;

  Holder(const std::string& path, int64_t byte) : file(tests::open_file(path)), byte(byte) {
    fcntl(file, F_SETFD, FD_CLOEXEC);
    REQUIRE_EQUAL(try_lock(file, Kind::ofd, Mode::exclusive, {byte, 1}), 0);
  }
  void release() const { unlock(file, Kind::ofd, {byte, 1}); }
};

std::string pair(int descriptor, int64_t number) { return std::to_string(descriptor) + ":" + std::to_string(number); }

// A wait queue of which the waiter has the third slot, and tests hold the first two.
struct Queue {
  std::string path = tests::path_of("queue");
  Holder first{path, 0};
  Holder second{path, 1};
  int own = open_to_inherit(path);

  Queue() {
    REQUIRE_EQUAL(join_queue(own), 2);
    REQUIRE_EQUAL(ftruncate(own, 3 * kBlockSize), 0);
    beat();
  }
  void beat() const {
    for (const Holder& holder : {first, second}) write_heartbeat(holder.file, heartbeat_offset(holder.byte));
  }
  // Keeps those ahead alive for so long.
  void beat_for(int milliseconds) const {
    for (int passed = 0; passed < milliseconds; passed += 100) {
      beat();
      tests::sleep_milliseconds(100);
    }
  }
  bool has_begun() const {
    return tests::eventually([this] {
      beat();
      return is_alive(first.file, heartbeat_offset(2), kHeartbeatTimeoutMs);
    });
  }
  // As still_waits(), also on a machine that is too busy for those ahead to stay alive by themselves.
  bool keeps(pid_t waiter) const {
    beat_for(kSoon);
    return waitpid(waiter, nullptr, WNOHANG) == 0 && result().empty();
  }
};

}  // namespace

TEST("waits for one lock, takes nothing, and becomes the program with the code that it ends with") {
  const std::string path = tests::path_of("lock");
  const Holder holder(path, 5);
  const int lock = open_to_inherit(path);
  const pid_t waiter = start_waiter({"--lock", pair(lock, 5)}, {std::to_string(lock)});
  CHECK(still_waits(waiter));
  holder.release();
  CHECK_EQUAL(tests::end_of(waiter), 7);
  CHECK_EQUAL(result(), "started closed");
  CHECK_EQUAL(try_lock(holder.file, Kind::ofd, Mode::exclusive, {5, 1}), 0);
}

TEST("of several locks, one that is free is enough; with --all, each must have been free") {
  const std::string path = tests::path_of("lock");
  const Holder one(path, 1), two(path, 2);
  const std::vector<std::string> locks = {"--lock", pair(open_to_inherit(path), 1), "--lock",
                                          pair(open_to_inherit(path), 2)};
  const pid_t any = start_waiter(locks);
  CHECK(still_waits(any));
  two.release();
  CHECK_EQUAL(tests::end_of(any), 7);
  unlink(tests::path_of("result").c_str());
  std::vector<std::string> all = locks;
  all.insert(all.end(), {"--locks", "all"});
  const pid_t waiter = start_waiter(all);
  CHECK(still_waits(waiter));
  one.release();
  CHECK_EQUAL(tests::end_of(waiter), 7);
}

TEST("keeps a slot and its heartbeat, and leaves both to the program") {
  const Queue queue;
  const pid_t waiter = start_waiter({"--queue", pair(queue.own, 2), "--ahead", "1"}, {std::to_string(queue.own)});
  close(queue.own);
  const int file = tests::open_file(queue.path);
  CHECK(queue.has_begun());
  queue.beat_for(3 * static_cast<int>(kHeartbeatTimeoutMs) / 2);
  CHECK(is_alive(file, heartbeat_offset(2), kHeartbeatTimeoutMs));
  CHECK(result().empty());
  CHECK_EQUAL(try_lock(file, Kind::ofd, Mode::exclusive, {2, 1}), EAGAIN);
  queue.second.release();
  CHECK_EQUAL(tests::end_of(waiter), 7);
  CHECK_EQUAL(result(), "started open");
}

TEST("a waiter that is killed gives its slot back") {
  for (const int number : {SIGKILL, SIGTERM, SIGINT, SIGHUP}) {
    const Queue queue;
    const pid_t waiter = start_waiter({"--queue", pair(queue.own, 2), "--ahead", "1"});
    close(queue.own);
    CHECK(queue.keeps(waiter));
    kill(waiter, number);
    CHECK_EQUAL(tests::end_of(waiter), 128 + number);
    const int newcomer = tests::open_file(queue.path);
    CHECK_EQUAL(join_queue(newcomer), 2);
    CHECK(result().empty());
    for (const int file : {newcomer, queue.first.file, queue.second.file}) close(file);
  }
}

TEST("a hangup that was ignored before is ignored") {
  const Queue queue;
  const pid_t waiter = start_waiter({"--queue", pair(queue.own, 2), "--ahead", "1", "--ignore-signals", "1"});
  CHECK(queue.has_begun());
  kill(waiter, SIGHUP);
  CHECK(queue.keeps(waiter));
  tests::kill_and_wait(waiter);
}

TEST("wakes when the heartbeat of somebody ahead stops, or the queue's file is another one") {
  const Queue queue;
  const pid_t behind = start_waiter({"--queue", pair(queue.own, 2), "--ahead", "0", "--ahead", "1"});
  queue.beat_for(2'000);
  CHECK(result().empty());
  CHECK_EQUAL(tests::end_of(behind), 7);
  CHECK(is_waking(queue.first.file, heartbeat_offset(2)));
  unlink(tests::path_of("result").c_str());
  const pid_t waiter = start_waiter({"--queue", pair(queue.own, 2), "--queue-path", queue.path});
  CHECK(still_waits(waiter));
  unlink(queue.path.c_str());
  CHECK_EQUAL(tests::end_of(waiter), 7);
}

TEST("waits for the next one ahead while the heartbeat of the one before it is late") {
  const Queue queue;
  const pid_t waiter = start_waiter({"--queue", pair(queue.own, 2), "--ahead", "1", "--suspended", "next"});
  const auto beat_for = [&](int milliseconds) {
    for (int passed = 0; passed < milliseconds; passed += 100) {
      write_heartbeat(queue.first.file, heartbeat_offset(0));
      tests::sleep_milliseconds(100);
    }
  };
  beat_for(2 * static_cast<int>(kHeartbeatTimeoutMs));
  CHECK(result().empty());
  queue.first.release();
  CHECK_EQUAL(tests::end_of(waiter), 7);
}

TEST("after it was stopped, it gives others time to show a heartbeat") {
  const Queue queue;
  const pid_t waiter = start_waiter({"--queue", pair(queue.own, 2), "--ahead", "1", "--suspended", "next"});
  REQUIRE(queue.has_begun());
  kill(waiter, SIGSTOP);
  tests::sleep_milliseconds(static_cast<int>(kHeartbeatTimeoutMs) + 500);
  CHECK(!is_alive(queue.first.file, heartbeat_offset(2), kHeartbeatTimeoutMs));
  kill(waiter, SIGCONT);
  const int64_t continued = gpu_owner::process::monotonic_milliseconds();
  CHECK(tests::eventually([&] { return is_alive(queue.first.file, heartbeat_offset(2), kHeartbeatTimeoutMs); }));
  CHECK_EQUAL(tests::end_of(waiter), 7);
  CHECK(gpu_owner::process::monotonic_milliseconds() - continued >= 4'000);
}

TEST("only a few start the program at a time, and none waits for its turn for ever") {
  const Queue queue;
  const int others = tests::open_file(queue.path);
  for (int64_t byte = kFirstStart; byte < kFirstStart + kStarts; byte++)
    REQUIRE_EQUAL(try_lock(others, Kind::ofd, Mode::exclusive, {byte, 1}), 0);
  const std::vector<std::string> words = {"--queue", pair(queue.own, 2), "--until", "0"};
  const pid_t waiter = start_waiter(words);
  CHECK(queue.keeps(waiter));
  unlock(others, Kind::ofd, {kFirstStart, 1});
  CHECK_EQUAL(tests::end_of(waiter), 7);
  // The program has it, on the description of the slot.
  CHECK(!begin_start(queue.first.file));
  end_start(queue.own);
  CHECK(begin_start(queue.first.file));
  unlink(tests::path_of("result").c_str());
  const int64_t began = gpu_owner::process::monotonic_milliseconds();
  const pid_t behind = start_waiter(words);
  queue.beat_for(11'000);
  CHECK(result().empty());
  queue.first.release();
  queue.second.release();
  CHECK_EQUAL(tests::end_of(behind), 7);
  CHECK(gpu_owner::process::monotonic_milliseconds() - began >= 10'000);
}

TEST("of several locks, the end of a process that held one is noticed at once") {
  const std::string path = tests::path_of("lock");
  const Holder one(path, 1);
  const int ready = tests::open_file(tests::path_of("ready"));
  const pid_t holder = tests::start([&] {
    const Holder two(path, 2);
    if (pwrite(ready, "x", 1, 0) != 1) return 1;
    pause();
    return 0;
  });
  REQUIRE(tests::eventually([&] { return !tests::contents_of(tests::path_of("ready")).empty(); }));
  const pid_t waiter =
      start_waiter({"--lock", pair(open_to_inherit(path), 1), "--lock", pair(open_to_inherit(path), 2)});
  CHECK(still_waits(waiter));
  tests::kill_and_wait(holder);
  CHECK_EQUAL(tests::end_of(waiter), 7);
}

TEST("wakes when a lease stays free, the later the more are ahead") {
  const Queue queue;
  const std::string path = tests::path_of("lease");
  const Holder lease(path, 0);
  const int64_t began = gpu_owner::process::monotonic_nanoseconds();
  const pid_t waiter = start_waiter({"--queue", pair(queue.own, 2), "--lease", std::to_string(open_to_inherit(path))});
  tests::sleep_milliseconds(1'500);
  CHECK(result().empty());
  lease.release();
  CHECK_EQUAL(tests::end_of(waiter), 7);
  CHECK((gpu_owner::process::monotonic_nanoseconds() - began) / 1'000'000 >= 2'500);
}

TEST("wakes at a time, also while it waits for a lock") {
  const std::string path = tests::path_of("lock");
  const Holder holder(path, 0);
  const int64_t until = gpu_owner::process::monotonic_nanoseconds() / 1'000'000 + 1'200;
  const pid_t waiter = start_waiter({"--lock", pair(open_to_inherit(path), 0), "--until", std::to_string(until)});
  CHECK_EQUAL(tests::end_of(waiter), 7);
  CHECK(gpu_owner::process::monotonic_nanoseconds() / 1'000'000 >= until);
}

TEST("wakes when a booking was made or cancelled after it knew them; what else stands there is no news") {
  const Queue queue;
  const auto stamp = [&](int64_t after) {
    const int64_t time = gpu_owner::process::monotonic_nanoseconds() / 1'000'000 + after;
    const std::string text = "\n" + std::to_string(time) + std::string(kHeartbeatSize, ' ');
    REQUIRE_EQUAL(pwrite(queue.own, text.data(), kHeartbeatSize, kBookingsOffset), kHeartbeatSize);
    return std::to_string(time);
  };
  const std::string known = stamp(0);
  const pid_t waiter = start_waiter({"--queue", pair(queue.own, 2), "--ahead", "1", "--bookings", known});
  REQUIRE(queue.has_begun());
  CHECK(queue.keeps(waiter));
  stamp(3'600'000);
  queue.beat_for(500);
  CHECK(queue.keeps(waiter));
  const int64_t began = std::stoll(stamp(0));
  CHECK(tests::eventually([&] {
    queue.beat();
    return !result().empty();
  }));
  CHECK_EQUAL(tests::end_of(waiter), 7);
  // Two waiters ahead look first.
  CHECK(gpu_owner::process::monotonic_nanoseconds() / 1'000'000 - began >= 500);
}

TEST("goes on after it was stopped") {
  const std::string path = tests::path_of("lock");
  const Holder holder(path, 0);
  const pid_t waiter = start_waiter({"--lock", pair(open_to_inherit(path), 0)});
  CHECK(still_waits(waiter));
  kill(waiter, SIGSTOP);
  kill(waiter, SIGCONT);
  CHECK(still_waits(waiter));
  holder.release();
  CHECK_EQUAL(tests::end_of(waiter), 7);
}

TEST("a program that is gone is said so, with exit code 71; a file that it needs is waited for") {
  CHECK_EQUAL(tests::end_of(run_waiter({"--until", "0", "--", tests::path_of("gone")})), 71);
  const std::string path = tests::path_of("needed");
  const pid_t waiter = start_waiter({"--until", "0", "--needs", path, "--needs-timeout", "20000"});
  CHECK(still_waits(waiter));
  tests::write_file(path, "");
  CHECK_EQUAL(tests::end_of(waiter), 7);
}

TEST("what it doesn't understand is refused with exit code 64") {
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"--"},
      {"--lock"},
      {"--until", "1"},
      {"--until", "", "--", "x"},
      {"--until", "-1", "--", "x"},
      {"--until", "99999999999999999999", "--", "x"},
      {"--lock", "1:1", "--", "x"},
      {"--lock", "999:1", "--", "x"},
      {"--lock", "3", "--", "x"},
      {"--lock", "3:1x", "--", "x"},
      {"--lease", "3:1", "--", "x"},
      {"--ahead", "1", "--", "x"},
      {"--bookings", "x", "--", "x"},
      {"--needs-timeout", "-1", "--", "x"},
      {"--queue-path", "/", "--", "x"},
      {"--locks", "all", "--", "x"},
      {"--suspended", "x", "--", "x"},
      {"--ignore-signals", "0123456789abcdef0", "--", "x"},
      {"--ignore-signals", "G", "--", "x"},
      {"--nothing", "x", "--", "x"},
  };
  for (const auto& words : wrong) CHECK_EQUAL(tests::end_of(run_waiter(words)), 64);
}
