// gpu-owner-keeper run with a time limit. This test is the caller.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/directory.h"
#include "support/processes.h"
#include "test.h"

namespace {

// Stays as what SIGTERM doesn't end: itself, a process in a session of its own, and one that is stopped.
PROGRAM(stubborn) {
  signal(SIGTERM, SIG_IGN);
  if (fork() == 0) {
    setsid();
    tests::write_file(arguments[0], std::to_string(getpid()));
    for (;;) pause();
  }
  if (fork() == 0) {
    tests::write_file(arguments[1], std::to_string(getpid()));
    raise(SIGSTOP);
    for (;;) pause();
  }
  for (int i = 0; i < 2; i++) {
    while (access(arguments[i], F_OK) != 0) tests::sleep_milliseconds(1);
  }
  if (count > 2) return atoi(arguments[2]);
  for (;;) pause();
}

// Notes each signal before the limit, and ends on SIGTERM with the code 3.
PROGRAM(noting) {
  sigset_t awaited;
  sigemptyset(&awaited);
  sigaddset(&awaited, SIGUSR1);
  sigaddset(&awaited, SIGTERM);
  sigprocmask(SIG_BLOCK, &awaited, nullptr);
  std::string notices;
  int number = 0;
  while (sigwait(&awaited, &number) == 0 && number != SIGTERM) tests::write_file(arguments[0], notices += "notice ");
  return 3;
}

// Long enough for what must have begun by then.
std::string time_limit() { return std::to_string(2000 * tests::slowness()) + ":2s"; }

pid_t run(const std::vector<std::string>& options, const char* program, const std::vector<std::string>& arguments) {
  // A process that loses its keepers becomes our child, and can be seen to end.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::vector<std::string> all = {"gpu-owner-keeper", "run"};
  for (const std::string& one : options) all.push_back(one);
  all.push_back("--");
  for (const std::string& one : tests::program_arguments(program, arguments)) all.push_back(one);
  return tests::start([&all] {
    std::vector<char*> words;
    for (std::string& one : all) words.push_back(one.data());
    words.push_back(nullptr);
    // Messages are for people.
    dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
    execv((std::string(BUILD_DIRECTORY) + "/gpu-owner-keeper").c_str(), words.data());
    return 1;
  });
}

pid_t pid_in(const std::string& name) {
  const std::string path = tests::path_of(name);
  REQUIRE(tests::eventually([&] { return !tests::contents_of(path).empty(); }));
  return atoi(tests::contents_of(path).c_str());
}

bool has_ended(pid_t process) {
  return tests::eventually([process] {
    waitpid(process, nullptr, WNOHANG);
    return kill(process, 0) != 0;
  });
}

}  // namespace

TEST("a time limit ends the command and everything that it has started") {
  const pid_t front = run({"--time-limit", time_limit(), "--grace", "50"}, "stubborn",
                          {tests::path_of("session"), tests::path_of("stopped")});
  const pid_t session = pid_in("session");
  const pid_t stopped = pid_in("stopped");
  CHECK_EQUAL(tests::end_of(front), 124);
  CHECK(has_ended(session));
  CHECK(has_ended(stopped));
}

TEST("what a command has left behind is ended at its time limit") {
  const pid_t front = run({"--time-limit", time_limit(), "--grace", "50"}, "stubborn",
                          {tests::path_of("session"), tests::path_of("stopped"), "5"});
  const pid_t session = pid_in("session");
  const pid_t stopped = pid_in("stopped");
  CHECK_EQUAL(tests::end_of(front), 5);
  CHECK(has_ended(session));
  CHECK(has_ended(stopped));
}

TEST("a command gets a signal before its time limit, once, and ends with the limit's code") {
  const pid_t front = run({"--time-limit", time_limit(), "--notice", "10:500"}, "noting", {tests::path_of("notices")});
  CHECK_EQUAL(tests::end_of(front), 124);
  CHECK_EQUAL(tests::contents_of(tests::path_of("notices")), "notice ");
}
