// gpu-owner-keeper task: keeper and watchdog of a worker's task. This test is the worker.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "keeper/clock.h"
#include "locks/locks.h"
#include "process/exec.h"
#include "support/directory.h"
#include "support/processes.h"
#include "test.h"

using namespace gpu_owner;

namespace {

// Leaves a process behind that ignores SIGTERM and has none of our descriptors; then stays, or ends.
PROGRAM(family) {
  if (fork() == 0) {
    signal(SIGTERM, SIG_IGN);
    for (int descriptor = 3; descriptor < 1024; descriptor++) close(descriptor);
    setsid();
    tests::write_file(arguments[0], std::to_string(getpid()));
    for (;;) pause();
  }
  while (access(arguments[0], F_OK) != 0) tests::sleep_milliseconds(1);
  if (count > 1) return 5;
  for (;;) pause();
}

PROGRAM(descriptors) {
  std::string open;
  for (int descriptor = 3; descriptor < 1024; descriptor++) {
    if (fcntl(descriptor, F_GETFD) >= 0) open += std::to_string(descriptor) + " ";
  }
  tests::write_file(arguments[0], open);
  return 0;
}

struct Task {
  process::Started started;
  int lease = -1;
  std::string told;

  pid_t number(const char* key) {
    const std::string pattern = std::string(key);
    REQUIRE(eventually(pattern.c_str()));
    return static_cast<pid_t>(atoi(told.c_str() + told.find(pattern) + pattern.size()));
  }
  bool eventually(const char* text) {
    return tests::eventually([&] {
      pollfd readable = {started.control, POLLIN, 0};
      char buffer[1024];
      if (poll(&readable, 1, 0) > 0) {
        const ssize_t got = read(started.control, buffer, sizeof buffer);
        if (got > 0) told.append(buffer, static_cast<size_t>(got));
      }
      return told.find(text) != std::string::npos;
    });
  }
  pid_t keeper() { return number("{\"event\":\"keeper\",\"pid\":"); }
  pid_t command() { return number("{\"event\":\"started\",\"pid\":"); }
  void say(const std::string& line) {
    const std::string text = line + "\n";
    CHECK_EQUAL(write(started.control, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  bool is_leased() const {
    const int other = tests::open_file(tests::path_of("lease"));
    const bool taken = locks::try_lock(other, locks::Kind::ofd, locks::Mode::exclusive, {0, 1}) == 0;
    close(other);
    return !taken;
  }
};

// A time so many ms from now, as a deadline has it.
std::string in(int64_t milliseconds) { return std::to_string(keeper::boot_time_ms() + milliseconds); }

Task start(const char* program, const std::vector<std::string>& arguments,
           const std::vector<std::string>& options = {}) {
  // A process that loses both of its keepers becomes our child, and can be seen to end.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  Task task;
  task.lease = open(tests::path_of("lease").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  REQUIRE_EQUAL(locks::try_lock(task.lease, locks::Kind::ofd, locks::Mode::exclusive, {0, 1}), 0);
  const int output = tests::open_file(tests::path_of("log"));
  std::vector<std::string> all = {"gpu-owner-keeper", "task",       "--control", "300", "--leases", "301",
                                  "--record",         "{\"a\": 1}", "--grace",   "50"};
  for (const std::string& one : options) all.push_back(one);
  all.push_back("--");
  for (const std::string& one : tests::program_arguments(program, arguments)) all.push_back(one);
  task.started = process::start(std::string(BUILD_DIRECTORY) + "/gpu-owner-keeper", all, {"PATH=/usr/bin:/bin"}, output,
                                300, {task.lease});
  REQUIRE_EQUAL(task.started.error, 0);
  return task;
}

pid_t child() {
  const std::string path = tests::path_of("child");
  REQUIRE(tests::eventually([&] { return !tests::contents_of(path).empty(); }));
  return atoi(tests::contents_of(path).c_str());
}

bool is_gone(pid_t process) {
  return tests::eventually([process] {
    waitpid(process, nullptr, WNOHANG);  // the process may be our child by now
    return kill(process, 0) != 0;
  });
}

}  // namespace

TEST("nothing is left of a task that ends, and the worker keeps its lease") {
  Task task = start("family", {tests::path_of("child"), "and end"});
  const pid_t left = child();
  CHECK(task.eventually("{\"event\":\"ended\",\"code\":5}"));
  CHECK(task.eventually("{\"event\":\"survivors\",\"count\":1"));
  CHECK(task.eventually("{\"event\":\"released\"}"));
  CHECK_EQUAL(tests::end_of(task.started.pid), 0);
  CHECK(is_gone(left));
  CHECK(task.is_leased());
  const std::string record = tests::contents_of(tests::path_of("lease"));
  CHECK(record.find("\"pid\": " + std::to_string(getpid()) + ",") != std::string::npos);
  CHECK(record.find("\"ended\": null}") != std::string::npos);
  close(task.lease);
  CHECK(!task.is_leased());
}

TEST("the worker is gone: everything ends, and then the lease") {
  Task task = start("family", {tests::path_of("child")});
  const pid_t left = child();
  const pid_t command = task.command();
  close(task.started.control);
  CHECK(tests::eventually([&] { return !task.is_leased(); }));  // though this process has its descriptor open
  CHECK(is_gone(left));
  CHECK(is_gone(command));
  CHECK(tests::contents_of(tests::path_of("lease")).find("\"ended\": null}") == std::string::npos);
  CHECK_EQUAL(tests::end_of(task.started.pid), 0);
}

TEST("the keeper is killed: the watchdog ends everything and says so") {
  Task task = start("family", {tests::path_of("child")});
  const pid_t left = child();
  const pid_t command = task.command();
  kill(task.keeper(), SIGKILL);
  CHECK(task.eventually("{\"event\":\"keeper-lost\"}"));
  CHECK(task.eventually("{\"event\":\"released\"}"));
  CHECK_EQUAL(tests::end_of(task.started.pid), 0);
  CHECK(is_gone(left));
  CHECK(is_gone(command));
  CHECK(task.is_leased());
}

TEST("the watchdog is killed: the keeper goes on, and ends with the worker") {
  Task task = start("family", {tests::path_of("child")});
  const pid_t left = child();
  const pid_t command = task.command();
  tests::kill_and_wait(task.started.pid);
  tests::sleep_milliseconds(30);
  CHECK_EQUAL(kill(left, 0), 0);
  CHECK_EQUAL(kill(command, 0), 0);
  close(task.started.control);
  CHECK(is_gone(task.keeper()));
  CHECK(is_gone(left));
  CHECK(!task.is_leased());
}

TEST("a keeper that is stopped goes on") {
  Task task = start("family", {tests::path_of("child")});
  child();
  kill(task.keeper(), SIGSTOP);
  const char line[] = "{\"terminate\":0}\n";
  CHECK_EQUAL(write(task.started.control, line, sizeof line - 1), static_cast<ssize_t>(sizeof line - 1));
  CHECK(task.eventually("{\"event\":\"released\"}"));
  CHECK_EQUAL(tests::end_of(task.started.pid), 0);
}

TEST("everything of a task ends when its deadline passes") {
  Task task = start("family", {tests::path_of("child")}, {"--deadline", in(600'000) + ":30"});
  const pid_t left = child();
  const pid_t command = task.command();
  task.say("{\"deadline\":" + in(1) + "}");
  CHECK(task.eventually("{\"event\":\"expired\"}"));
  const std::string late = "{\"deadline\":" + in(600'000) + "}\n";
  send(task.started.control, late.data(), late.size(), MSG_NOSIGNAL);  // the keeper may have ended
  CHECK(is_gone(left));
  CHECK(is_gone(command));
  CHECK(task.eventually("{\"event\":\"released\"}"));
  CHECK_EQUAL(tests::end_of(task.started.pid), 0);
  CHECK(task.is_leased());
}

TEST("a task goes on while its deadline is moved, and ends when that stops") {
  const int64_t first = keeper::boot_time_ms() + 2000 * tests::slowness();
  Task task = start("family", {tests::path_of("child")}, {"--deadline", std::to_string(first) + ":30"});
  task.say("{\"deadline\":" + std::to_string(first + 1000) + "}");
  const pid_t command = task.command();
  tests::sleep_milliseconds(static_cast<int>(first + 100 - keeper::boot_time_ms()));
  CHECK_EQUAL(kill(command, 0), 0);
  CHECK(task.eventually("{\"event\":\"expired\"}"));
  CHECK(is_gone(command));
  CHECK(task.eventually("{\"event\":\"released\"}"));
  CHECK_EQUAL(tests::end_of(task.started.pid), 0);
}

TEST("a command whose deadline has passed before it starts never runs") {
  Task task = start("descriptors", {tests::path_of("open")}, {"--deadline", in(0) + ":30"});
  CHECK(task.eventually("{\"event\":\"expired\"}\n{\"event\":\"failed\""));
  CHECK(task.eventually("{\"event\":\"released\"}"));
  CHECK_EQUAL(tests::end_of(task.started.pid), 0);
  CHECK(access(tests::path_of("open").c_str(), F_OK) != 0);
  CHECK(task.is_leased());
}

TEST("the keeper is killed at any moment of its start") {
  for (int i = 0; i < 40; i++) {
    unlink(tests::path_of("child").c_str());
    Task task = start("family", {tests::path_of("child")});
    const pid_t keeper = task.keeper();
    if (i > 0) usleep(static_cast<useconds_t>(i * 100));
    kill(keeper, SIGKILL);
    CHECK(task.eventually("{\"event\":\"released\"}"));
    CHECK_EQUAL(tests::end_of(task.started.pid), 0);
    const std::string left = tests::contents_of(tests::path_of("child"));
    if (!left.empty()) CHECK(is_gone(atoi(left.c_str())));
    close(task.started.control);
    close(task.lease);
  }
}

TEST("the command inherits the lease under its number, and nothing else") {
  Task task = start("descriptors", {tests::path_of("open")});
  CHECK(task.eventually("{\"event\":\"released\"}"));
  CHECK_EQUAL(tests::contents_of(tests::path_of("open")), "301 ");
  tests::end_of(task.started.pid);
}

TEST("a started program's number for its socket may be the one that the socket has here") {
  // With those of lease and log, all below 299 are taken, and the pair is 299 and 300.
  int last = 0;
  while ((last = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 296) continue;
  Task task = start("descriptors", {tests::path_of("open")});
  CHECK(task.eventually("{\"event\":\"released\"}"));
  tests::end_of(task.started.pid);
}
