// Signals for a process that is known by a lock which it holds.
#include "process/holder.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "locks/locks.h"
#include "support/directory.h"
#include "support/mount.h"
#include "support/processes.h"
#include "test.h"

using namespace gpu_owner;
using locks::Kind;
using locks::Mode;

namespace {

constexpr int64_t kByte = 7;

int open_lock() { return open(tests::path_of("lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666); }

// A process that does what the function says, and then waits to be told to end.
struct Other {
  template <typename Function>
  explicit Other(Function prepare) {
    process = tests::start([&] {
      prepare();
      ready.say();
      for (;;) pause();
      return 0;
    });
    REQUIRE(ready.hear() != 0);
  }
  ~Other() { tests::kill_and_wait(process); }

  tests::Channel ready;
  pid_t process;
};

process::LockedByte byte_of(const char* name, int64_t offset = kByte) {
  struct stat file = {};
  REQUIRE_EQUAL(stat(tests::path_of(name).c_str(), &file), 0);
  return {static_cast<double>(file.st_dev), static_cast<double>(file.st_ino), offset};
}

int prove(const Other& other, int64_t offset = kByte) {
  return process::signal_holder(other.process, byte_of("lock", offset), 0, 0);
}

void skip_without_pidfd() {
  if (process::signal_holder(getpid(), {0, 0, 0}, 0, 0) == -ENOSYS) tests::skip("the kernel has no pidfd_open");
}

int lock(int file, int64_t start, int64_t length, Mode mode = Mode::exclusive) {
  return locks::try_lock(file, Kind::ofd, mode, {start, length});
}

}  // namespace

TEST("a process is known by the byte that it has locked") {
  skip_without_pidfd();
  const Other other([] { lock(open_lock(), kByte, 1); });
  CHECK_EQUAL(prove(other), 0);
  CHECK_EQUAL(prove(other, kByte + 1), -ESRCH);
  CHECK_EQUAL(prove(other, 0), -ESRCH);
  tests::write_file(tests::path_of("another"), "");
  CHECK_EQUAL(process::signal_holder(other.process, byte_of("another"), 0, 0), -ESRCH);
  CHECK_EQUAL(process::signal_holder(getpid(), byte_of("lock"), 0, 0), -ESRCH);
}

TEST("a process that is held is meant until it has ended, and no other one is then") {
  skip_without_pidfd();
  int handle = -1;
  {
    const Other other([] {});
    handle = process::hold_process(other.process);
    REQUIRE(handle >= 0);
    CHECK_EQUAL(process::signal_held(handle, 0), 0);
  }
  CHECK_EQUAL(process::signal_held(handle, 0), -ESRCH);
  close(handle);
  CHECK_EQUAL(process::hold_process(-1), -ESRCH);
}

TEST("locks of other kinds, and of others, prove nothing") {
  skip_without_pidfd();
  const Other open_only([] { open_lock(); });
  const int ours = open_lock();
  REQUIRE_EQUAL(lock(ours, kByte, 1), 0);
  CHECK_EQUAL(prove(open_only), -ESRCH);
  REQUIRE_EQUAL(locks::unlock(ours, Kind::ofd, {0, 0}), 0);
  const Other shared([] { lock(open_lock(), kByte, 1, Mode::shared); });
  CHECK_EQUAL(prove(shared), -ESRCH);
  const Other flocked([] { flock(open_lock(), LOCK_EX); });
  CHECK_EQUAL(prove(flocked), -ESRCH);
}

TEST("a lock on more than the byte proves nothing") {
  skip_without_pidfd();
  const Other wide([] { lock(open_lock(), kByte - 1, 2); });
  CHECK_EQUAL(prove(wide), -ESRCH);
  CHECK_EQUAL(prove(wide, kByte - 1), -ESRCH);
}

TEST("a lock on the whole file proves nothing") {
  skip_without_pidfd();
  const Other whole([] { lock(open_lock(), 0, 0); });
  CHECK_EQUAL(prove(whole, 0), -ESRCH);
}

TEST("a lock of the process, not of its open file, proves nothing") {
  skip_without_pidfd();
  const Other other([] {
    struct flock range = {};
    range.l_type = F_WRLCK;
    range.l_start = kByte;
    range.l_len = 1;
    fcntl(open_lock(), F_SETLK, &range);
  });
  CHECK_EQUAL(prove(other), -ESRCH);
}

TEST("one of many locks and descriptors is found") {
  skip_without_pidfd();
  const Other other([] {
    for (int i = 0; i < 100; i++) open("/dev/null", O_RDONLY);
    const int file = open_lock();
    for (int i = 0; i < 300; i++) lock(file, 1000 + 2 * i, 1);
    lock(file, kByte, 1);
  });
  CHECK_EQUAL(prove(other), 0);
  CHECK_EQUAL(prove(other, 1598), 0);
  CHECK_EQUAL(prove(other, 1599), -ESRCH);
}

TEST("the signal is queued with its value") {
  skip_without_pidfd();
  tests::Channel heard;
  const pid_t process = tests::start([&] {
    sigset_t awaited;
    sigemptyset(&awaited);
    sigaddset(&awaited, SIGRTMAX - 1);
    sigprocmask(SIG_BLOCK, &awaited, nullptr);
    lock(open_lock(), kByte, 1);
    heard.say();
    siginfo_t info;
    if (sigwaitinfo(&awaited, &info) < 0) return 1;
    const bool as_sent = info.si_code == SI_QUEUE && info.si_pid == getppid() && info.si_uid == getuid();
    return as_sent && info.si_value.sival_int == 123'456 ? 42 : 1;
  });
  REQUIRE(heard.hear() != 0);
  CHECK_EQUAL(process::signal_holder(process, byte_of("lock", kByte + 1), SIGRTMAX - 1, 1), -ESRCH);
  CHECK_EQUAL(process::signal_holder(process, byte_of("lock"), SIGRTMAX - 1, 123'456), 0);
  CHECK_EQUAL(tests::end_of(process), 42);
}

TEST("a process that has ended is none, whether collected or not") {
  skip_without_pidfd();
  tests::Channel ready;
  const pid_t process = tests::start([&] {
    lock(open_lock(), kByte, 1);
    ready.say();
    for (;;) pause();
    return 0;
  });
  REQUIRE(ready.hear() != 0);
  kill(process, SIGKILL);
  siginfo_t info;
  REQUIRE_EQUAL(waitid(P_PID, static_cast<id_t>(process), &info, WEXITED | WNOWAIT), 0);
  CHECK_EQUAL(process::signal_holder(process, byte_of("lock"), SIGTERM, 0), -ESRCH);
  tests::end_of(process);
  CHECK_EQUAL(process::signal_holder(process, byte_of("lock"), SIGTERM, 0), -ESRCH);
  for (const pid_t none : {0, -1, 0x7fffffff}) {
    CHECK_EQUAL(process::signal_holder(none, byte_of("lock"), SIGTERM, 0), -ESRCH);
  }
}

TEST("another user's process gets no signal") {
  skip_without_pidfd();
  const Other other([] { lock(open_lock(), kByte, 1); });
  const auto locked = byte_of("lock");
  const pid_t nobody = tests::start([&] {
    tests::become_nobody();
    const int error = -process::signal_holder(other.process, locked, SIGTERM, 0);
    return error == EACCES || error == EPERM || error == ESRCH ? 0 : 1;
  });
  CHECK_EQUAL(tests::end_of(nobody), 0);
  CHECK_EQUAL(kill(other.process, 0), 0);
}

TEST("nothing stays open") {
  skip_without_pidfd();
  const Other other([] { lock(open_lock(), kByte, 1); });
  const int before = tests::open_descriptors();
  for (const int64_t offset : {kByte, kByte + 1}) prove(other, offset);
  CHECK_EQUAL(tests::open_descriptors(), before);
}
