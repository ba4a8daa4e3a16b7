// Threads with a descriptor table of their own: what they are stuck with doesn't keep the process's descriptors open.
#include "process/thread_family.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "locks/locks.h"
#include "process/descriptors.h"
#include "support/directory.h"
#include "support/processes.h"
#include "support/refuse.h"
#include "test.h"

using namespace gpu_owner;
using process::ThreadFamily;

namespace {

// Never destroyed: its threads don't end.
ThreadFamily& family() {
  static auto* family = new ThreadFamily;
  return *family;
}

// Runs the function on a thread of the family, and waits for its result.
template <typename Result>
Result ask(Result (*function)()) {
  struct Question {
    Result (*function)();
    Result answer;
    std::atomic<bool> done{false};
  };
  auto* question = new Question{function, {}};
  REQUIRE(family().run(
      [](void* pointer) {
        auto* asked = static_cast<Question*>(pointer);
        asked->answer = asked->function();
        asked->done = true;
      },
      question));
  REQUIRE(tests::eventually([&] { return question->done.load(); }));
  const Result answer = question->answer;
  delete question;
  return answer;
}

// A thread of the family that has begun and never comes back.
void start_stuck_thread() {
  static std::atomic<bool> begun{false};
  REQUIRE(family().run(
      [](void*) {
        begun = true;
        for (;;) pause();
      },
      nullptr));
  REQUIRE(tests::eventually([] { return begun.load(); }));
}

bool is_locked(const char* name, locks::Kind kind) {
  const int file = tests::open_file(tests::path_of(name));
  const int error = locks::try_lock(file, kind, locks::Mode::exclusive, {0, 1});
  close(file);
  return error == EAGAIN;
}

void check_locks_end_when_closed() {
  const int before = tests::open_file(tests::path_of("before"));
  const int flocked = tests::open_file(tests::path_of("flocked"));
  CHECK_EQUAL(locks::try_lock(before, locks::Kind::ofd, locks::Mode::exclusive, {0, 1}), 0);
  CHECK_EQUAL(locks::try_lock(flocked, locks::Kind::flock, locks::Mode::exclusive, {}), 0);
  start_stuck_thread();
  const int after = tests::open_file(tests::path_of("after"));
  CHECK_EQUAL(locks::try_lock(after, locks::Kind::ofd, locks::Mode::exclusive, {0, 1}), 0);
  CHECK(is_locked("before", locks::Kind::ofd));
  CHECK(is_locked("flocked", locks::Kind::flock));
  CHECK(is_locked("after", locks::Kind::ofd));
  close(before);
  close(flocked);
  close(after);
  CHECK(!is_locked("before", locks::Kind::ofd));
  CHECK(!is_locked("flocked", locks::Kind::flock));
  CHECK(!is_locked("after", locks::Kind::ofd));
}

bool descriptors_are_its_own() {
  int high;
  return ask<bool>([] { return fcntl(500, F_GETFD) == -1 && errno == EBADF; }) && (high = fcntl(500, F_GETFD)) >= 0;
}

int handled_by = 0;
void note_thread(int) { handled_by = gettid(); }

}  // namespace

TEST("locks end when the process closes them, though a thread of the family is stuck") { check_locks_end_when_closed(); }

TEST("the same where close_range doesn't exist or is forbidden") {
  for (const int error : {ENOSYS, EPERM}) {
    const int code = tests::end_of(tests::start([error] {
      tests::refuse(SYS_close_range, error);
      check_locks_end_when_closed();
      tests::end_test();
      return 0;
    }));
    if (code == 77) tests::skip("no system call filters here");
    CHECK_EQUAL(code, 0);
  }
}

TEST("the other end of a pipe sees its end, though the family was started while it was open") {
  int ends[2];
  REQUIRE_EQUAL(pipe(ends), 0);
  start_stuck_thread();
  close(ends[1]);
  CHECK_EQUAL(tests::read_all(ends[0]), "");
}

TEST("the family sees none of the process's descriptors, and the process none of the family's") {
  REQUIRE(dup2(STDERR_FILENO, 500) == 500);
  CHECK(descriptors_are_its_own());
  const int before = tests::open_descriptors();
  const int opened = ask<int>([] { return open("/dev/zero", O_RDONLY); });
  CHECK(opened > STDERR_FILENO);
  CHECK_EQUAL(tests::open_descriptors(), before);
  // But all of the family share it, as NVML needs.
  CHECK_EQUAL(ask<int>([] {
                char byte = 1;
                return read(3, &byte, 1) == 1 && byte == 0 ? 0 : 1;
              }),
              0);
  CHECK_EQUAL(opened, 3);
}

TEST("the family's standard input and output are /dev/null, standard error is the process's") {
  int ends[2];
  REQUIRE_EQUAL(pipe(ends), 0);
  const int output = dup(STDOUT_FILENO);
  dup2(ends[1], STDOUT_FILENO);
  const auto wrote = ask<ssize_t>([] { return write(STDOUT_FILENO, "noise", 5); });
  dup2(output, STDOUT_FILENO);
  close(ends[1]);
  CHECK_EQUAL(wrote, 5);
  CHECK_EQUAL(tests::read_all(ends[0]), "");
  CHECK_EQUAL(ask<ssize_t>([] {
                char byte;
                return read(STDIN_FILENO, &byte, 1);
              }),
              0);
  CHECK_EQUAL(ask<int>([] { return fcntl(STDERR_FILENO, F_GETFD) >= 0 ? 0 : 1; }), 0);
}

TEST("a process without standard streams has a family as well") {
  close(STDIN_FILENO);
  close(STDOUT_FILENO);
  CHECK_EQUAL(ask<ssize_t>([] { return write(STDOUT_FILENO, "noise", 5); }), 5);
  CHECK_EQUAL(fcntl(STDOUT_FILENO, F_GETFD), -1);
}

TEST("where no descriptor table of its own can be had, the family works in the process's") {
  tests::refuse(SYS_close_range, EPERM);
  tests::refuse(SYS_unshare, EPERM);
  REQUIRE(dup2(STDERR_FILENO, 500) == 500);
  CHECK_EQUAL(ask<int>([] { return fcntl(500, F_GETFD) >= 0 ? 0 : 1; }), 0);
  CHECK(!process::leave_descriptor_table());
  CHECK(fcntl(500, F_GETFD) >= 0);  // and nothing was closed
}

TEST("the process's signals are for its other threads") {
  struct sigaction action = {};
  action.sa_handler = note_thread;
  sigaction(SIGUSR1, &action, nullptr);
  start_stuck_thread();
  for (int i = 0; i < 20; i++) {
    handled_by = 0;
    kill(getpid(), SIGUSR1);
    CHECK(tests::eventually([] { return handled_by != 0; }));
    CHECK_EQUAL(handled_by, getpid());
  }
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  CHECK_EQUAL(sigismember(&mask, SIGUSR1), 0);
}

TEST("every order is carried out once, also those given at the same time and beside stuck threads") {
  constexpr int kOrders = 300;
  static std::atomic<int> done{0};
  start_stuck_thread();
  for (int i = 0; i < kOrders; i++) {
    REQUIRE(family().run([](void*) { done.fetch_add(1); }, nullptr));
  }
  CHECK(tests::eventually([] { return done.load() == kOrders; }));
  tests::sleep_milliseconds(20);
  CHECK_EQUAL(done.load(), kOrders);
  CHECK(tests::eventually([] { return tests::has_threads(3); }));  // this one, the parent, the stuck one
}

TEST("a duplicate for another program is numbered 200 or higher and survives exec") {
  const int file = tests::open_file(tests::path_of("file"));
  const int first = process::inheritable_duplicate(file);
  const int second = process::inheritable_duplicate(file);
  CHECK(first >= 200);
  CHECK(second > first);
  CHECK_EQUAL(fcntl(first, F_GETFD) & FD_CLOEXEC, 0);
  CHECK_EQUAL(process::inheritable_duplicate(-1), -EBADF);
}
