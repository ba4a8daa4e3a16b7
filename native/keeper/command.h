#pragma once

#include <sys/types.h>

#include "process/unique_fd.h"

namespace keeper {

struct JobState;
struct Options;
struct WordList;

// A child that waits until it is let go, and then becomes the command.
class Command {
 public:
  // False with errno when no process can be made.
  bool fork(const Options& options, bool own_session);

  // Returns 0 once the command runs, or the errno of the failed execution.
  int let_go();

  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
  gpu_owner::process::UniqueFd go_, report_;
};

// Starts what `--then` names, once: by itself, in a session of its own and with nothing of the job open. No process
// waits for it. Called by the process that has released the job.
void start_then(const Options& options, JobState* state);
// The same for any program. Whether it could be started.
bool start_program(const Options& options, const WordList& program);

// Becomes the program that restarts the command (`--requeue`). Returns an exit code if that fails: the job ends
// then.
int start_again(const Options& options, JobState* state);

// Words for the errno of a failed execution.
const char* execution_error(const char* command, int error);

int execution_exit_code(int error);

}  // namespace keeper
