// gpu-owner-keeper submit, where children are ignored. This test is the caller.
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include "support/directory.h"
#include "support/processes.h"
#include "test.h"

namespace {

// Ends with 3 where it ignores its children, as the caller does.
PROGRAM(ignoring) {
  struct sigaction action;
  return sigaction(SIGCHLD, nullptr, &action) == 0 && action.sa_handler == SIG_IGN ? 3 : 4;
}

int submit(const std::vector<std::string>& words) {
  return tests::end_of(tests::start([&words] {
    signal(SIGCHLD, SIG_IGN);
    // On one processor, the child often ends before its parent goes on.
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(sched_getcpu()), &one);
    sched_setaffinity(0, sizeof one, &one);
    dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
    std::vector<char*> list;
    for (const std::string& word : words) list.push_back(const_cast<char*>(word.c_str()));
    list.push_back(nullptr);
    execv((std::string(BUILD_DIRECTORY) + "/gpu-owner-keeper").c_str(), list.data());
    return 1;
  }));
}

}  // namespace

TEST("the exit code of a submission is told also where children are ignored") {
  for (int i = 0; i < 30; i++)
    REQUIRE_EQUAL(submit({"gpu-owner-keeper", "submit", "--", tests::path_of("missing")}), 127);
  std::vector<std::string> words = {"gpu-owner-keeper", "submit", "--"};
  for (const std::string& word : tests::program_arguments("ignoring", {})) words.push_back(word);
  CHECK_EQUAL(submit(words), 3);
}
