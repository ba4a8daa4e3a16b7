// gpu-owner-waiter: what a process is while it waits for GPUs. It has one thread and needs no Node.js, so hundreds can
// wait. Its end, however it comes, gives back its slot in the wait queue.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "waiter/options.h"
#include "waiter/watch.h"

namespace {

using waiter::Options;

constexpr int kLastSignal = 64;

void nothing(int) {}

void set_disposition(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigaction(signal, &action, nullptr);
}

void close_on_exec(int descriptor) { fcntl(descriptor, F_SETFD, FD_CLOEXEC); }

// The wait is over, but whoever waited may be gone with its package.
int cannot_go_on(const char* path) {
  const int error = errno;
  waiter::say(
      "the wait for GPUs can't go on: %s can't be started: %s. If gpu-owner or Node.js was removed or replaced "
      "meanwhile, start the command again.",
      path, strerror(error));
  return waiter::kExitSystem;
}

}  // namespace

int main(int count, char** arguments) {
  static Options options;
  if (const int code = waiter::parse_options(count, arguments, &options)) return code;
  if (options.program == nullptr) {
    waiter::print_help();
    return 0;
  }
  prctl(PR_SET_NAME, "gpu-owner-wait");  // it may have been started by a descriptor's number
  for (const waiter::Lock& lock : options.locks) close_on_exec(lock.descriptor);
  for (const int lease : options.leases) close_on_exec(lease);
  const auto is_ignored = [&](int signal) { return (options.ignored_signals >> (signal - 1) & 1) != 0; };
  for (int signal = 1; signal <= kLastSignal; signal++) {
    if (is_ignored(signal)) set_disposition(signal, SIG_IGN);
  }
  set_disposition(SIGALRM, nothing);
  sigset_t alarm, mask;
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  sigprocmask(SIG_UNBLOCK, &alarm, &mask);

  waiter::wait_for_news(options);
  const char* missing = waiter::wait_for_files(options);

  set_disposition(SIGALRM, is_ignored(SIGALRM) ? SIG_IGN : SIG_DFL);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  if (missing != nullptr) return cannot_go_on(missing);
  execv(options.program[0], options.program);
  return cannot_go_on(options.program[0]);
}
