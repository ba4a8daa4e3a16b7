#include "waiter/wait.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <initializer_list>

#include "waiter/watch.h"

namespace waiter {
namespace {

constexpr int kLastSignal = 64;

void on_alarm(int) {}

void set_disposition(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigaction(signal, &action, nullptr);
}

void close_on_exec(int descriptor) { fcntl(descriptor, F_SETFD, FD_CLOEXEC); }

}  // namespace

const char* wait_for_turn(const Options& options, uint64_t ignored_signals, char** program) {
  prctl(PR_SET_NAME, "gpu-owner-wait");  // it may have been started by a descriptor's number
  for (const Lock& lock : options.locks) close_on_exec(lock.descriptor);
  for (const int lease : options.leases) close_on_exec(lease);
  const auto is_ignored = [&](int signal) { return (ignored_signals >> (signal - 1) & 1) != 0; };
  for (int signal = 1; signal <= kLastSignal; signal++) {
    if (is_ignored(signal)) set_disposition(signal, SIG_IGN);
  }
  set_disposition(SIGALRM, on_alarm);
  set_disposition(SIGCONT, note_continued);
  sigset_t alarm, mask;
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  sigprocmask(SIG_UNBLOCK, &alarm, &mask);

  wait_for_news(options);
  const char* missing = wait_for_files(options);

  for (const int signal : {SIGALRM, SIGCONT}) set_disposition(signal, is_ignored(signal) ? SIG_IGN : SIG_DFL);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  if (missing != nullptr) return missing;
  execv(program[0], program);
  return program[0];
}

}  // namespace waiter
