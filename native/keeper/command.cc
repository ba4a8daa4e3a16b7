#include "keeper/command.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <initializer_list>
#include <utility>

#include "keeper/arguments.h"
#include "keeper/clock.h"
#include "keeper/descriptors.h"
#include "keeper/exit_codes.h"
#include "keeper/job_file.h"
#include "keeper/leases.h"
#include "keeper/messages.h"
#include "keeper/signals.h"
#include "keeper/text.h"

namespace keeper {

namespace {

using gpu_owner::process::FdPair;

void restore_open_files_limit(const Options& options) {
  rlimit limit;
  if (options.open_files < 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = static_cast<rlim_t>(options.open_files);
  limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Binds this process to those of the processors that it may use at all; where it may use none, it stays as it is.
void bind_to_cpus(const Options& options) {
  constexpr size_t kWords = 64, kBits = 64;  // 4,096 processors, as many as Linux can have
  uint64_t allowed[kWords] = {}, near[kWords] = {};
  const char* text = options.cpus;
  if (!text || syscall(SYS_sched_getaffinity, 0, sizeof allowed, allowed) < 0) return;
  while (*text) {
    char* rest = nullptr;
    const unsigned long first = strtoul(text, &rest, 10);
    const unsigned long last = *rest == '-' ? strtoul(rest + 1, &rest, 10) : first;
    for (unsigned long cpu = first; cpu <= last && cpu < kWords * kBits; ++cpu)
      near[cpu / kBits] |= uint64_t{1} << cpu % kBits;
    text = *rest ? rest + 1 : rest;
  }
  bool are_any = false;
  for (size_t i = 0; i < kWords; ++i) {
    near[i] &= allowed[i];
    are_any = are_any || near[i] != 0;
  }
  if (are_any && syscall(SYS_sched_setaffinity, 0, sizeof near, near) == 0) return;
  say("--cpu-bind: the processors near %s (%s) aren't among those that the command may use, so it uses all of these",
      options.gpus, options.cpus);
}

[[noreturn]] void become(const Options& options, bool own_session, int go, int report) {
  // No PR_SET_PDEATHSIG: were keeper, watchdog and worker all killed, it would take the command, which holds the lease
  // then, from under those of its children that hold none.
  if (own_session) setsid();
  for (int i = 0; i < options.leases.count; ++i) fcntl(options.leases.fds[i], F_SETFD, 0);
  for (int i = 0; i < options.shared.count; ++i) fcntl(options.shared.fds[i], F_SETFD, 0);
  for (int i = 0; i < options.inherited.count; ++i) fcntl(options.inherited.fds[i], F_SETFD, 0);
  restore_open_files_limit(options);
  bind_to_cpus(options);
  // Nothing comes if the keeper is gone: the command must not start without one.
  char letter = 0;
  if (read(go, &letter, 1) != 1) _exit(kExitInternal);
  restore_signals(options.ignored_signals);
  execvp(options.command[0], options.command);
  const int error = errno;
  if (write(report, &error, sizeof error) < 0) _exit(kExitInternal);
  _exit(kExitNotFound);
}

}  // namespace

bool Command::fork(const Options& options, bool own_session) {
  FdPair go = FdPair::pipe();
  if (!go) return false;
  FdPair report = FdPair::pipe();
  if (!report) return false;
  pid_ = ::fork();
  if (pid_ == 0) {
    go.second.reset();
    report.first.reset();
    become(options, own_session, go.first.get(), report.second.get());
  }
  if (pid_ < 0) {
    pid_ = 0;
    return false;
  }
  go_ = std::move(go.second);
  report_ = std::move(report.first);
  return true;
}

int Command::let_go() {
  int error = 0;
  if (write(go_.get(), "g", 1) == 1) {
    // The end of the pipe comes with the execution, which closes it.
    if (read(report_.get(), &error, sizeof error) != static_cast<ssize_t>(sizeof error)) error = 0;
  }
  go_.reset();
  report_.reset();
  return error;
}

void start_then(const Options& options, JobState* state) {
  if (!state->then_started) state->then_started = start_program(options, options.then);
}

bool start_program(const Options& options, const WordList& program) {
  if (program.count == 0) return false;
  const pid_t pid = fork();
  if (pid != 0) return pid > 0;
  setsid();
  redirect_to_null(STDIN_FILENO, STDERR_FILENO);
  close_others(options, Keep::standard, -1);
  restore_open_files_limit(options);
  restore_signals(0);
  execvp(program.words[0], const_cast<char**>(program.words));
  _exit(kExitNotFound);
}

int start_again(const Options& options, JobState* state) {
  const Requeue& requeue = options.requeue;
  if (state->failed) {
    Buffer<40> how;
    if (requeue.retried_code < 0) {
      how.add("has failed");
    } else {
      how.add("has ended with exit code %ld", requeue.retried_code);
    }
    say("%s %s, and waits for GPUs to restart (retry %ld of %ld)", options.command_name(), how.c_str(), state->failures,
        requeue.retries);
  }
  close_others(options, Keep::standard, requeue.kept, options.job);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO, requeue.kept, options.job}) {
    if (fd >= 0) fcntl(fd, F_SETFD, 0);
  }
  for (int i = 0; i < requeue.environment.count; ++i) {
    char* change = const_cast<char*>(requeue.environment.words[i]);
    if (strchr(change, '=')) {
      putenv(change);
    } else {
      unsetenv(change);
    }
  }
  Buffer<96> requeued;
  requeued.add("%ld:%" PRId64 ":%ld:%d", state->preemptions, state->ran, state->failures, state->failed ? 1 : 0);
  setenv("GPU_OWNER_REQUEUED", requeued.c_str(), 1);
  prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
  restore_open_files_limit(options);
  restore_signals(options.ignored_signals);
  execvp(requeue.program[0], requeue.program);
  say("%s can't be restarted: %s: %s", options.command_name(), requeue.program[0],
      execution_error(requeue.program[0], errno));
  state->requeued = -1;
  state->exit_code = kExitSystem;
  state->ended = calendar_time_ms();
  write_job_state(options, *state);
  unlock(options);
  return kExitSystem;
}

const char* execution_error(const char* command, int error) {
  const bool is_path = strchr(command, '/') != nullptr;
  const bool exists = is_path && access(command, F_OK) == 0;
  switch (error) {
    case ENOENT: return exists ? "the interpreter that its first line names was not found" : "not found";
    case ENOTDIR: return "not found";
    case EACCES:
      return exists && access(command, X_OK) == 0 ? "it is a directory, or on a file system without execution"
                                                  : "not executable (permission denied)";
    case E2BIG: return "its arguments and environment are too long";
    case ENOEXEC: return "not a program for this machine";
    default: return strerror(error);
  }
}

int execution_exit_code(int error) { return error == ENOENT || error == ENOTDIR ? kExitNotFound : kExitNotExecutable; }

}  // namespace keeper
