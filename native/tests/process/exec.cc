// Becoming another program, and starting one.
#include "process/exec.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "locks/locks.h"
#include "support/directory.h"
#include "support/processes.h"
#include "test.h"

using namespace gpu_owner;

namespace {

constexpr int kTracedSignals = 64;

// Tells what a program finds at its start, as one line each, in the file that TESTS_REPORT names.
PROGRAM(report) {
  std::string text;
  for (int i = 0; i < count; i++) {
    text += "argument ";
    char hex[4];
    for (const char* at = arguments[i]; *at != 0; at++) {
      snprintf(hex, sizeof hex, "%02x", static_cast<unsigned char>(*at));
      text += hex;
    }
    text += "\n";
  }
  sigset_t mask;
  sigprocmask(SIG_SETMASK, nullptr, &mask);
  for (int number = 1; number <= kTracedSignals; number++) {
    struct sigaction action = {};
    if (sigaction(number, nullptr, &action) != 0) continue;
    if (action.sa_handler == SIG_IGN) text += "ignored " + std::to_string(number) + "\n";
    if (sigismember(&mask, number) == 1) text += "blocked " + std::to_string(number) + "\n";
  }
  for (int descriptor = 0; descriptor < 1000; descriptor++) {
    if (fcntl(descriptor, F_GETFD) >= 0) text += "open " + std::to_string(descriptor) + "\n";
  }
  const char* greeting = getenv("TESTS_GREETING");
  if (greeting != nullptr) text += std::string("greeting ") + greeting + "\n";
  if (waitpid(-1, nullptr, __WALL | WNOHANG) < 0 && errno == ECHILD) text += "no child\n";
  if (getsid(0) == getpid()) text += "own session\n";
  const int file = open(getenv("TESTS_REPORT"), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  return write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1;
}

// Becomes `report`; its own last arguments are the report's.
PROGRAM(become_report) {
  const auto given = tests::program_arguments("report", {"first"});
  return -process::exec(tests::own_path(), given, static_cast<size_t>(count), {});
}

// Starts `report` so that it outlives this process, with the lock in a file as its number 201 and everything else that
// this process can have against it.
PROGRAM(detach_report) {
  const int lock = open(arguments[0], O_RDWR | O_CREAT, 0600);
  locks::try_lock(lock, locks::Kind::ofd, locks::Mode::exclusive, {7, 1});
  const int output = open(arguments[1], O_WRONLY | O_CREAT | O_APPEND, 0600);
  for (const int descriptor : {100, 200, 202, 300}) dup2(output, descriptor);
  for (const int number : {SIGPIPE, SIGINT, SIGTERM, SIGRTMAX - 1}) signal(number, SIG_IGN);
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  const auto given = tests::program_arguments("report", {arguments + 2, arguments + count});
  const auto variables = process::environment(0, {"TESTS_GREETING=hello"});
  const auto started = process::start_detached(tests::own_path(), given, variables, output, 200, {output, lock});
  return started.error != 0 || started.pid <= 0;
}

std::string hex(const std::string& text) {
  std::string digits;
  char two[4];
  for (const char byte : text) {
    snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(byte));
    digits += two;
  }
  return digits;
}

std::string report_path() {
  const std::string path = tests::path_of("report");
  setenv("TESTS_REPORT", path.c_str(), 1);
  return path;
}

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

// Becomes `report` in a forked process that `prepare` has made what it shall be.
template <typename Prepare>
std::string report_after(Prepare prepare) {
  const std::string path = report_path();
  const pid_t process = tests::start([&] {
    const std::vector<int> inherited = prepare();
    return -process::exec(tests::own_path(), tests::program_arguments("report", {}), 0, inherited);
  });
  CHECK_EQUAL(tests::end_of(process), 0);
  return tests::contents_of(path);
}

}  // namespace

TEST("own arguments are handed on byte for byte, whatever they are") {
  std::string all_bytes;
  for (int byte = 1; byte < 256; byte++) all_bytes += static_cast<char>(byte);
  const std::vector<std::string> arguments = {
      "", "\xff\xfe", all_bytes, "two words", "$HOME `x` \"'\\\n", std::string(100'000, 'x'), "--", "-n", ""};
  const std::string path = report_path();
  REQUIRE_EQUAL(tests::run_program("become_report", arguments), 0);
  std::string expected = "argument " + hex("first") + "\n";
  for (const std::string& one : arguments) expected += "argument " + hex(one) + "\n";
  CHECK(tests::contents_of(path).compare(0, expected.size(), expected) == 0);
}

TEST("more own arguments than there are is refused") {
  CHECK_EQUAL(process::exec(tests::own_path(), {"x"}, 10'000, {}), -EINVAL);
}

TEST("ignored and handled signals are default again, and none is blocked") {
  const std::string text = report_after([] {
    signal(SIGPIPE, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGUSR1, [](int) {});
    signal(SIGRTMIN + 3, SIG_IGN);
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, nullptr);
    return std::vector<int>();
  });
  CHECK(text.find("ignored") == std::string::npos);
  CHECK(text.find("blocked") == std::string::npos);
}

TEST("standard streams and chosen descriptors stay open, also if marked close-on-exec; others don't") {
  const std::string text = report_after([] {
    for (int descriptor = 0; descriptor <= 2; descriptor++) fcntl(descriptor, F_SETFD, FD_CLOEXEC);
    const int chosen = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 210);
    fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 220);
    fcntl(STDERR_FILENO, F_DUPFD, 230);
    return std::vector<int>{chosen};
  });
  for (const char* line : {"open 0", "open 1", "open 2", "open 210", "open 230"}) CHECK(has_line(text, line));
  CHECK(!has_line(text, "open 220"));
}

TEST("the new program has no child that it didn't start") {
  CHECK(has_line(report_after([] { return std::vector<int>(); }), "no child"));
}

TEST("a program that can't be executed leaves no process behind, and signals as they were") {
  sigset_t mask;
  CHECK_EQUAL(process::exec("/nonexistent", {"x"}, 0, {}), -ENOENT);
  CHECK_EQUAL(waitpid(-1, nullptr, __WALL), -1);
  CHECK_EQUAL(errno, ECHILD);
  sigprocmask(SIG_SETMASK, nullptr, &mask);
  CHECK_EQUAL(sigismember(&mask, SIGTERM), 0);
}

TEST("the environment is the process's own at that moment") {
  const std::string text = report_after([] {
    setenv("TESTS_GREETING", "hello", 1);
    return std::vector<int>();
  });
  CHECK(has_line(text, "greeting hello"));
}

TEST("a program that can't be started: the reason, and everything as before") {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGRTMIN + 1, SIG_IGN);
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGUSR1);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  CHECK_EQUAL(process::exec("/nonexistent", {"x"}, 0, {}), -ENOENT);
  CHECK_EQUAL(process::exec(tests::directory(), {"x"}, 0, {}), -EACCES);
  tests::write_file(tests::path_of("text"), "text");
  CHECK_EQUAL(process::exec(tests::path_of("text"), {"x"}, 0, {}), -EACCES);
  CHECK(signal(SIGPIPE, SIG_DFL) == SIG_IGN);
  CHECK(signal(SIGRTMIN + 1, SIG_DFL) == SIG_IGN);
  sigprocmask(SIG_SETMASK, nullptr, &mask);
  CHECK_EQUAL(sigismember(&mask, SIGUSR1), 1);
  CHECK_EQUAL(sigismember(&mask, SIGUSR2), 0);
}

TEST("a program that is started detached has what it is given, and nothing else") {
  const std::string path = report_path();
  const std::string locked = tests::path_of("lock");
  const std::vector<std::string> own = {"\xff\xfe", "", "two words"};
  REQUIRE_EQUAL(tests::run_program("detach_report", {locked, tests::path_of("output"), own[0], own[1], own[2]}), 0);
  // The process that has started it has ended.
  REQUIRE(tests::eventually([&] { return has_line(tests::contents_of(path), "own session"); }));
  const std::string text = tests::contents_of(path);
  std::string expected;
  for (const std::string& one : own) expected += "argument " + hex(one) + "\n";
  CHECK_EQUAL(text.substr(0, expected.size()), expected);
  std::string open_ones;
  for (int descriptor = 0; descriptor < 1000; descriptor++) {
    if (has_line(text, ("open " + std::to_string(descriptor)).c_str())) open_ones += std::to_string(descriptor) + " ";
  }
  CHECK_EQUAL(open_ones, "0 1 2 200 201 ");
  CHECK(has_line(text, "greeting hello"));
  CHECK(has_line(text, "no child"));
  CHECK(text.find("ignored") == std::string::npos);
  CHECK(text.find("blocked") == std::string::npos);
}

PROGRAM(detach_sleep) {
  const int lock = open(arguments[0], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  locks::try_lock(lock, locks::Kind::ofd, locks::Mode::exclusive, {7, 1});
  const auto started =
      process::start_detached("/bin/sh", {"sh", "-c", "cat; echo said; echo $$ >\"$0\"; exec sleep 600", arguments[1]},
                              process::environment(0), lock, 200, {lock});
  return started.error;
}

TEST("a lock lives on with the detached program that has it") {
  const std::string locked = tests::path_of("lock");
  REQUIRE_EQUAL(tests::run_program("detach_sleep", {locked, tests::path_of("pid")}), 0);
  REQUIRE(tests::eventually([] { return !tests::contents_of(tests::path_of("pid")).empty(); }));
  const pid_t pid = atoi(tests::contents_of(tests::path_of("pid")).c_str());
  CHECK_EQUAL(tests::contents_of(locked), "said\n");
  const int other = tests::open_file(locked);
  CHECK_EQUAL(locks::try_lock(other, locks::Kind::ofd, locks::Mode::exclusive, {7, 1}), EAGAIN);
  REQUIRE(pid > 0);
  kill(pid, SIGKILL);
  CHECK(
      tests::eventually([&] { return locks::try_lock(other, locks::Kind::ofd, locks::Mode::exclusive, {7, 1}) == 0; }));
}

TEST("a detached program that can't be started: the reason, and no descriptor left") {
  if (tests::under_valgrind()) tests::skip("under valgrind posix_spawn doesn't learn of a failed exec");
  const int before = tests::open_descriptors();
  const auto environment = process::environment(0);
  CHECK_EQUAL(process::start_detached("/nonexistent", {"x"}, environment, 1, 200, {}).error, ENOENT);
  CHECK_EQUAL(tests::open_descriptors(), before);
}
