// A lock ends with the last descriptor of its description, however its holders end.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "locks/locks.h"
#include "support/directory.h"
#include "support/processes.h"
#include "support/stopwatch.h"
#include "test.h"

using namespace gpu_owner::locks;

namespace {

const Kind kKinds[] = {Kind::flock, Kind::ofd};

std::string lifetime_path() { return tests::path_of("lock"); }

bool is_free(Kind kind) {
  const int file = tests::open_file(lifetime_path());
  const int error = try_lock(file, kind, Mode::exclusive, {0, 1});
  close(file);
  return error == 0;
}

// Says that it runs, and lives until its standard input ends.
PROGRAM(hold_inherited) {
  const char word = '.';
  if (count != 1 || write(atoi(arguments[0]), &word, 1) != 1) return 1;
  char ignored;
  return read(STDIN_FILENO, &ignored, 1) == 0 ? 0 : 1;
}

}  // namespace

TEST("a lock survives the process that took it in one that was forked from it") {
  for (const Kind kind : kKinds) {
    tests::Channel ready, end;
    const pid_t parent = tests::start([&] {
      const int file = tests::open_file(lifetime_path());
      if (try_lock(file, kind, Mode::exclusive, {0, 1}) != 0) return 1;
      tests::start([&] {
        end.close_for_saying();
        ready.say();
        end.hear(1'000'000);
        return 0;
      });
      return 0;
    });
    CHECK_EQUAL(tests::end_of(parent), 0);
    CHECK(ready.hear() != 0);
    CHECK(!is_free(kind));
    end.close_for_saying();
    CHECK(tests::eventually([&] { return is_free(kind); }));
  }
}

TEST("a lock survives exec where the descriptor does") {
  for (const Kind kind : kKinds) {
    tests::Channel ready, end;
    const int file = open(lifetime_path().c_str(), O_RDWR | O_CREAT, 0666);  // not close-on-exec
    CHECK_EQUAL(try_lock(file, kind, Mode::exclusive, {0, 1}), 0);
    fcntl(ready.saying(), F_SETFD, 0);
    dup2(end.hearing(), STDIN_FILENO);
    const pid_t other = tests::start_program("hold_inherited", {std::to_string(ready.saying())});
    close(file);
    CHECK(ready.hear() != 0);
    CHECK(!is_free(kind));
    end.close_for_saying();
    CHECK_EQUAL(tests::end_of(other), 0);
    CHECK(is_free(kind));
  }
}

TEST("a lock ends at exec where the descriptor does") {
  for (const Kind kind : kKinds) {
    tests::Channel ready, end;
    const int file = tests::open_file(lifetime_path());
    CHECK_EQUAL(try_lock(file, kind, Mode::exclusive, {0, 1}), 0);
    fcntl(ready.saying(), F_SETFD, 0);
    dup2(end.hearing(), STDIN_FILENO);
    const pid_t other = tests::start_program("hold_inherited", {std::to_string(ready.saying())});
    close(file);
    CHECK(ready.hear() != 0);
    CHECK(is_free(kind));
    end.close_for_saying();
    CHECK_EQUAL(tests::end_of(other), 0);
  }
}

TEST("kill -9 of the holder frees its locks, also before anybody has waited for it") {
  for (const Kind kind : kKinds) {
    tests::Channel ready;
    const pid_t holder = tests::start([&] {
      try_lock(tests::open_file(lifetime_path()), kind, Mode::exclusive, {0, 1});
      ready.say();
      pause();
      return 0;
    });
    CHECK(ready.hear() != 0);
    CHECK(!is_free(kind));
    kill(holder, SIGKILL);
    siginfo_t info;
    CHECK_EQUAL(waitid(P_PID, static_cast<id_t>(holder), &info, WEXITED | WNOWAIT), 0);  // the holder stays a zombie
    CHECK(is_free(kind));
    tests::end_of(holder);
  }
}

TEST("a stopped holder holds") {
  tests::Channel ready;
  const pid_t holder = tests::start([&] {
    try_lock(tests::open_file(lifetime_path()), Kind::ofd, Mode::exclusive, {0, 1});
    ready.say();
    pause();
    return 0;
  });
  CHECK(ready.hear() != 0);
  kill(holder, SIGSTOP);
  CHECK(!is_free(Kind::ofd));
  tests::kill_and_wait(holder);
  CHECK(is_free(Kind::ofd));
}

TEST("an unlock by one who shares the description ends the lock for all") {
  for (const Kind kind : kKinds) {
    const int file = tests::open_file(lifetime_path());
    CHECK_EQUAL(try_lock(file, kind, Mode::exclusive, {0, 1}), 0);
    CHECK_EQUAL(tests::end_of(tests::start([&] {
                  close(file);
                  return 0;
                })),
                0);
    CHECK(!is_free(kind));
    CHECK_EQUAL(tests::end_of(tests::start([&] { return unlock(file, kind, {0, 1}); })), 0);
    CHECK(is_free(kind));
    close(file);
  }
}
