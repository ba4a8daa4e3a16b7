#include "keeper/submit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "keeper/command.h"
#include "keeper/exit_codes.h"
#include "keeper/messages.h"
#include "keeper/text.h"
#include "process/unique_fd.h"

namespace keeper {

namespace {

[[noreturn]] void become(char** program, int pipe, pid_t parent) {
  // The parent prints the job's number at its end, so without a parent there is no job.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kExitInternal);
  Buffer<16> number;
  number.add("%d", pipe);
  fcntl(pipe, F_SETFD, 0);
  setenv("GPU_OWNER_SUBMITTER", number.c_str(), 1);
  execvp(program[0], program);
  const int error = errno;
  say("%s can't be started: %s", program[0], execution_error(program[0], error));
  _exit(execution_exit_code(error));
}

int end_as(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return kExitInternal;
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  signal(WTERMSIG(status), SIG_DFL);
  raise(WTERMSIG(status));
  return kExitSignalBase + WTERMSIG(status);
}

}  // namespace

int submit(char** program) {
  gpu_owner::process::FdPair pipe = gpu_owner::process::FdPair::pipe();
  const pid_t self = getpid();
  // Ignored children can't be waited for. The program ignores its own as this process's caller had it.
  const auto before = signal(SIGCHLD, SIG_DFL);
  const pid_t child = pipe ? fork() : -1;
  if (child == 0) {
    signal(SIGCHLD, before);
    become(program, pipe.second.get(), self);
  }
  if (child < 0) {
    say("no process can be started: %s", strerror(errno));
    return kExitSystem;
  }
  pipe.second.reset();
  char letter = 0;
  ssize_t got = 0;
  while ((got = read(pipe.first.get(), &letter, 1)) < 0 && errno == EINTR) {
  }
  return got == 1 ? 0 : end_as(child);
}

}  // namespace keeper
