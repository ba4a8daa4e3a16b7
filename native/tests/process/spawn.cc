// Starting a helper: we have the ends of its input and output, and it has nothing else of ours.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "locks/locks.h"
#include "process/exec.h"
#include "support/directory.h"
#include "support/processes.h"
#include "test.h"

using namespace gpu_owner;

namespace {

// Repeats its input, then tells its descriptors and blocked signals.
PROGRAM(helper) {
  const std::string input = tests::read_all(STDIN_FILENO);
  printf("%s", input.c_str());
  for (int descriptor = 0; descriptor < 1000; descriptor++) {
    if (fcntl(descriptor, F_GETFD) >= 0) printf(" open %d", descriptor);
  }
  sigset_t mask;
  sigprocmask(SIG_SETMASK, nullptr, &mask);
  for (int number = 1; number < 32; number++) {
    if (sigismember(&mask, number) == 1) printf(" blocked %d", number);
  }
  return 0;
}

process::Spawned spawn_helper() { return process::spawn(tests::own_path(), tests::program_arguments("helper", {})); }

// Says something to the helper, ends its input and returns what it says.
std::string talk(const process::Spawned& helper) {
  CHECK_EQUAL(write(helper.input, "hello", 5), 5);
  close(helper.input);
  const std::string said = tests::read_all(helper.output);
  close(helper.output);
  CHECK_EQUAL(tests::end_of(helper.pid), 0);
  return said;
}

}  // namespace

TEST("input and output are connected; the helper ends with its input") {
  const process::Spawned helper = spawn_helper();
  REQUIRE_EQUAL(helper.error, 0);
  CHECK(helper.pid > 0);
  CHECK_EQUAL(fcntl(helper.input, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  CHECK_EQUAL(fcntl(helper.output, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  CHECK_EQUAL(talk(helper), "hello open 0 open 1 open 2");
}

TEST("the helper has no other descriptor of this process, and holds no lock of it") {
  const int file = open(tests::path_of("lock").c_str(), O_RDWR | O_CREAT, 0600);  // not close-on-exec
  CHECK_EQUAL(locks::try_lock(file, locks::Kind::ofd, locks::Mode::exclusive, {0, 1}), 0);
  const int duplicate = process::inheritable_duplicate(file);
  const process::Spawned helper = spawn_helper();
  REQUIRE_EQUAL(helper.error, 0);
  close(file);
  close(duplicate);
  const int other = tests::open_file(tests::path_of("lock"));
  CHECK_EQUAL(locks::try_lock(other, locks::Kind::ofd, locks::Mode::exclusive, {0, 1}), 0);
  CHECK_EQUAL(talk(helper), "hello open 0 open 1 open 2");
}

TEST("the helper's signals are not blocked") {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  CHECK_EQUAL(talk(spawn_helper()), "hello open 0 open 1 open 2");
}

TEST("a process without standard input and output can start one") {
  close(STDIN_FILENO);
  close(STDOUT_FILENO);
  CHECK_EQUAL(talk(spawn_helper()), "hello open 0 open 1 open 2");
}

TEST("one of two helpers doesn't keep the other's input open") {
  const process::Spawned first = spawn_helper(), second = spawn_helper();
  CHECK_EQUAL(talk(first), "hello open 0 open 1 open 2");
  CHECK_EQUAL(talk(second), "hello open 0 open 1 open 2");
}

TEST("a helper that can't be started: the reason, and no descriptor left") {
  if (tests::under_valgrind()) tests::skip("valgrind's vfork can't tell that exec failed");
  if (tests::under_valgrind()) tests::skip("under valgrind posix_spawn doesn't learn of a failed exec");
  const int before = tests::open_descriptors();
  const process::Spawned helper = process::spawn("/nonexistent", {"x"});
  CHECK_EQUAL(helper.error, ENOENT);
  CHECK_EQUAL(helper.pid, -1);
  CHECK_EQUAL(helper.input, -1);
  CHECK_EQUAL(helper.output, -1);
  CHECK_EQUAL(tests::open_descriptors(), before);
}

TEST("a helper with an environment of its own") {
  setenv("OURS", "1", 1);
  const std::vector<std::string> environment = {"THEIRS=2"};
  const process::Spawned helper = process::spawn("/usr/bin/env", {"env"}, &environment);
  REQUIRE_EQUAL(helper.error, 0);
  CHECK_EQUAL(tests::read_all(helper.output), "THEIRS=2\n");
  CHECK_EQUAL(tests::end_of(helper.pid), 0);
}
