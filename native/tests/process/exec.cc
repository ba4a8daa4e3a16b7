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
  const int file = open(getenv("TESTS_REPORT"), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  return write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1;
}

// Becomes `report`; its own last arguments are the report's.
PROGRAM(become_report) {
  const auto given = tests::program_arguments("report", {"first"});
  return -process::exec(tests::own_path(), given, static_cast<size_t>(count), {});
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
