#include "keeper/keeper.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "keeper/arguments.h"
#include "keeper/clock.h"
#include "keeper/descendants.h"
#include "keeper/descriptors.h"
#include "keeper/exit_codes.h"
#include "keeper/idle.h"
#include "keeper/leases.h"
#include "keeper/markers.h"
#include "keeper/messages.h"
#include "keeper/meter.h"
#include "keeper/record.h"
#include "keeper/signals.h"
#include "keeper/usage.h"

namespace keeper {

namespace {

constexpr int64_t kBackgroundPauseMs = 1000;

enum class Input { open, ended, in_background };

Input read_input(short events) {
  char data[4096];
  const ssize_t n = read(STDIN_FILENO, data, sizeof data);
  if (n > 0) return Input::open;
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return Input::open;
  // A background job may not read its terminal. That is not the terminal's end.
  if (n < 0 && errno == EIO && !(events & (POLLHUP | POLLNVAL)) && isatty(STDIN_FILENO)) return Input::in_background;
  return Input::ended;
}

// The placeholder, for one.
void collect_children() {
  while (waitpid(-1, nullptr, WNOHANG) > 0) continue;
}

// The signal that ends us, or 0.
int ending_signal(int signals, uint64_t ignored) {
  signalfd_siginfo info;
  int ending = 0;
  while (next_signal(signals, &info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    const bool is_ignored = ignored >> (signal - 1) & 1;
    if (signal == SIGCHLD) {
      collect_children();
    } else if (signal == SIGTSTP && !is_ignored) {
      raise(SIGSTOP);
    } else if (!is_ignored && (signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT)) {
      ending = signal;
    }
  }
  return ending;
}

// Returns -1, or the exit code of a hold whose answer can't be told.
int answer(const Options& options, int signals) {
  if (!options.answer) return -1;
  const size_t length = strlen(options.answer) + 1;
  for (size_t done = 0; done < length;) {
    // A caller that doesn't read can end us by a signal.
    pollfd ready[] = {{signals, POLLIN, 0}, {STDOUT_FILENO, POLLOUT, 0}};
    poll(ready, 2, -1);
    if (const int signal = ending_signal(signals, options.ignored_signals)) return kExitSignalBase + signal;
    if (!ready[1].revents) continue;
    const size_t left = length - 1 - done;
    const ssize_t n = left > 0 ? write(STDOUT_FILENO, options.answer + done, left < PIPE_BUF ? left : PIPE_BUF)
                               : write(STDOUT_FILENO, "\n", 1);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (n < 0 && errno != EINTR && errno != EAGAIN) {
      if (errno == EPIPE) return 0;  // the reader is gone
      say("standard output can't be written: %s", strerror(errno));
      return kExitOutput;
    }
  }
  return -1;
}

int wait_for_end(const Options& options, int signals, UsageLine* usage) {
  Meter meter(options);
  IdleJudge judge;
  const TimeLimit& limit = options.time_limit;
  const int64_t limit_at = limit.duration ? boot_time_ms() + limit.duration : -1;
  int64_t recheck_at = now_ms() + options.recheck;
  int64_t input_at = 0;
  bool removal_reported = false;
  while (true) {
    const int64_t now = now_ms();
    const bool reads = now >= input_at;
    int64_t next = !reads && input_at < recheck_at ? input_at : recheck_at;
    next = std::min({next, usage->next_note(), meter.next_look()});
    int64_t pause = next > now ? next - now : 0;
    if (limit_at >= 0) pause = std::min(pause, std::max<int64_t>(0, limit_at - boot_time_ms()));
    pollfd ready[] = {{signals, POLLIN, 0}, {reads ? STDIN_FILENO : -1, POLLIN, 0}, {meter.fd(), POLLIN, 0}};
    poll(ready, 3, static_cast<int>(pause));
    if (const int signal = ending_signal(signals, options.ignored_signals)) return kExitSignalBase + signal;
    if (ready[1].revents) {
      const Input input = read_input(ready[1].revents);
      if (input == Input::ended) return 0;
      if (input == Input::in_background) input_at = now_ms() + kBackgroundPauseMs;
    }
    if (limit_at >= 0 && boot_time_ms() >= limit_at) {
      say("the time limit of %s is over (limits.for in the configuration): %s are released. A program that computes on "
          "them has no claim from now on",
          limit.text, options.gpus);
      return kExitTimeLimit;
    }
    if (meter.pid() && kill(meter.pid(), 0) != 0) meter.collected(meter.pid());
    if (meter.react()) usage->add(meter.readings(), judge.judge(meter.readings()) >= 0);
    usage->react();
    if (now_ms() < recheck_at) continue;
    recheck_at = now_ms() + options.recheck;
    if (removal_reported || !lease_file_removed(options)) continue;
    removal_reported = true;
    say("the lease file of %s was removed while in use: others see that it is leased, but no longer by whom. Keep "
        "cleaners of temporary files away from gpu-owner's lock directory, and don't delete files there",
        options.gpus);
  }
}

}  // namespace

int hold(const Options& options) {
  const int signals = options.signals;
  const int64_t duration = options.time_limit.duration;
  const int64_t until = duration ? calendar_time_ms() + duration : -1;
  write_record(options, {getpid(), getpid(), 0, -1, false, -1, until});
  sign_markers(options);
  collect_children();  // children that have ended before signals were taken
  int code = answer(options, signals);
  UsageLine usage(options);
  if (code < 0) code = wait_for_end(options, signals, &usage);
  int placeholder = options.placeholder;
  close_descriptor(&placeholder);
  write_record(options, {getpid(), getpid(), 0, boot_time_ms(), false, -1, until});
  usage.end(-1, false);
  unlock(options);
  end_child(options.placeholder_pid);
  return code;
}

}  // namespace keeper
