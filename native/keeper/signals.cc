#include "keeper/signals.h"

#include <string.h>
#include <unistd.h>

namespace keeper {

namespace {

void set_disposition(int signal, void (*handler)(int)) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = handler;
  sigaction(signal, &action, nullptr);
}

constexpr const char* kNames[] = {
    nullptr,     "SIGHUP",  "SIGINT",    "SIGQUIT", "SIGILL",   "SIGTRAP", "SIGABRT", "SIGBUS",
    "SIGFPE",    "SIGKILL", "SIGUSR1",   "SIGSEGV", "SIGUSR2",  "SIGPIPE", "SIGALRM", "SIGTERM",
    "SIGSTKFLT", "SIGCHLD", "SIGCONT",   "SIGSTOP", "SIGTSTP",  "SIGTTIN", "SIGTTOU", "SIGURG",
    "SIGXCPU",   "SIGXFSZ", "SIGVTALRM", "SIGPROF", "SIGWINCH", "SIGIO",   "SIGPWR",  "SIGSYS",
};

// The number that this user, or root, has queued with a signal; -1: it is another signal.
int64_t queued_number(const signalfd_siginfo& info, int signal) {
  if (static_cast<int>(info.ssi_signo) != signal || info.ssi_code != SI_QUEUE) return -1;
  return info.ssi_uid == 0 || info.ssi_uid == getuid() ? info.ssi_int : -1;
}

}  // namespace

void take_signals() {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  for (int signal = 1; signal <= kLastSignal; ++signal) set_disposition(signal, SIG_DFL);
}

int open_signals() {
  sigset_t all;
  sigfillset(&all);
  return signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
}

bool next_signal(int fd, signalfd_siginfo* info) {
  if (read(fd, info, sizeof *info) != sizeof *info) return false;
  const bool is_from_parent = info->ssi_code == SI_QUEUE && static_cast<pid_t>(info->ssi_pid) == getppid();
  if (info->ssi_signo != kLastSignal || !is_from_parent) return true;
  info->ssi_signo = static_cast<uint32_t>(info->ssi_int & 0xff);
  info->ssi_pid = static_cast<uint32_t>(info->ssi_int >> 8);
  info->ssi_code = kPassedOnCode;
  return true;
}

int64_t cancel_grace(const signalfd_siginfo& info) {
  const int64_t grace = queued_number(info, kCancelSignal);
  return grace <= kMaxCancelGraceMs ? grace : -1;
}

int64_t extended_limit(const signalfd_siginfo& info) {
  const int64_t seconds = queued_number(info, kExtendSignal);
  return seconds > 0 ? seconds * 1000 : -1;
}

void restore_signals(uint64_t ignored) {
  for (int signal = 1; signal <= kLastSignal; ++signal) {
    set_disposition(signal, ignored >> (signal - 1) & 1 ? SIG_IGN : SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

void die_by(int signal) {
  set_disposition(signal, SIG_DFL);
  kill(getpid(), signal);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, signal);
  sigprocmask(SIG_UNBLOCK, &only, nullptr);
}

const char* signal_name(int signal) {
  constexpr int kCount = sizeof kNames / sizeof *kNames;
  return signal > 0 && signal < kCount ? kNames[signal] : "a real-time signal";
}

}  // namespace keeper
