#include "keeper/foreground.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>

#include "keeper/arguments.h"
#include "keeper/command.h"
#include "keeper/descendants.h"
#include "keeper/descriptors.h"
#include "keeper/exit_codes.h"
#include "keeper/keeper.h"
#include "keeper/markers.h"
#include "keeper/messages.h"
#include "keeper/signals.h"
#include "keeper/text.h"

namespace keeper {

namespace {

constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGWINCH, SIGCONT, SIGTSTP};

void report_no_process(int error) {
  say("cannot start a process: %s%s", strerror(error),
      error == EAGAIN ? ". The limit on processes (ulimit -u, or the container's) is reached" : "");
}

}  // namespace

int Foreground::run() {
  prctl(PR_SET_NAME, "gpu-owner");
  if (!adopt_descendants()) {
    const bool has_gpus = *options_.gpus;
    say("this system forbids gpu-owner to adopt orphaned processes (PR_SET_CHILD_SUBREAPER: %s; a seccomp filter may "
        "be the reason). When %s ends, the %s%s lasts only as long as a process has the %s descriptors; "
        "children of Python's subprocess don't inherit them. Let the command wait for all processes that it starts",
        strerror(errno), options_.command_name(), has_gpus ? "claim of " : "job", options_.gpus,
        has_gpus ? "lease's" : "job's");
  }
  placeholder_ = options_.placeholder_pid;
  if (!share_state()) return fail_to_start();
  group_signals_.start();
  if (!start_keeper()) return fail_to_start();
  const int signals = options_.signals;
  // Standard error is for our messages; the rest is the command's alone.
  if (!options_.requeue.program) redirect_to_null(STDIN_FILENO, STDOUT_FILENO);
  close_others(options_, Keep::leases, channel_.fd(), signals);
  on_child();  // children that have ended before signals were taken
  const int code = loop(signals);
  group_signals_.stop();
  if (state_->requeued >= 0) return start_again(options_, state_);
  if (interrupted_by_terminal_ && state_->signal == SIGINT) {
    // A shell ends its loop or script on Ctrl-C only if what it waited for was ended by the signal, too.
    die_by(SIGINT);
  }
  return code;
}

bool Foreground::share_state() {
  void* shared = mmap(nullptr, sizeof *state_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return false;
  state_ = new (shared) JobState;
  state_->front = getpid();
  job_.set_state(state_);
  return true;
}

int Foreground::fail_to_start() {
  report_no_process(errno);
  end_unstarted(options_, kExitSystem);
  group_signals_.stop();
  end_child(placeholder_);
  return kExitSystem;
}

bool Foreground::start_keeper() {
  gpu_owner::process::FdPair ends = gpu_owner::process::FdPair::sockets();
  if (!ends) return false;
  const pid_t foreground = getpid();
  keeper_ = fork();
  if (keeper_ < 0) return false;
  if (keeper_ == 0) {
    ends.first.reset();
    _exit(keep(options_, ends.second.release(), foreground, state_));
  }
  channel_.open(ends.first.release());
  return true;
}

int Foreground::loop(int signals) {
  while (!complete_) {
    pollfd ready[] = {{signals, POLLIN, 0},
                      {channel_.fd(), POLLIN, 0},
                      {job_.output_watch(), POLLIN, 0},
                      {job_.preemption_watch(), POLLIN, 0},
                      {job_.meter_watch(), POLLIN, 0}};
    poll(ready, 5, taken_over_ ? job_.timeout() : -1);
    signalfd_siginfo info;
    while (next_signal(signals, &info)) on_signal(info);
    if (ready[1].revents) read_events();
    if (taken_over_) job_.react();
  }
  return exit_code();
}

void Foreground::on_signal(const signalfd_siginfo& info) {
  const int signal = static_cast<int>(info.ssi_signo);
  if (signal == SIGCHLD) {
    on_child();
  } else if (const int64_t grace = cancel_grace(info); grace >= 0) {
    cancel(grace);
  } else if (const int64_t limit = extended_limit(info); limit > 0) {
    job_.extend(limit);  // as the keeper does
  } else if (is_forwarded(info)) {
    if (is_from_parents_end(info)) {
      hang_up();
    } else {
      forward(signal);
    }
  }
}

// PR_SET_PDEATHSIG: the end of a connection that has no terminal.
bool Foreground::is_from_parents_end(const signalfd_siginfo& info) const {
  return info.ssi_signo == SIGHUP && static_cast<pid_t>(info.ssi_pid) == parent_ && getppid() != parent_;
}

// As a terminal does: the whole group gets the signal, not only its first process.
void Foreground::hang_up() {
  const pid_t command = state_->command;
  if (command && getpgid(command) == getpgrp()) {
    kill(0, SIGHUP);  // as it comes from us, it isn't passed on once more
  } else {
    forward(SIGHUP);
  }
}

bool Foreground::is_forwarded(const signalfd_siginfo& info) {
  const int signal = static_cast<int>(info.ssi_signo);
  const pid_t sender = static_cast<pid_t>(info.ssi_pid);
  bool wanted = false;
  for (const int candidate : kForwarded) wanted = wanted || candidate == signal;
  if (!wanted) return false;
  // The keeper notes it before the command runs; its event may be on its way still.
  const pid_t command = state_->command;
  if (info.ssi_code == SI_KERNEL) {
    // From the terminal: to the whole foreground group, except that its hangup goes to the session's leader alone.
    if (signal == SIGINT) interrupted_by_terminal_ = true;
    return command == 0 || ((signal == SIGHUP || signal == SIGCONT) && getsid(0) == getpid());
  }
  if (signal == SIGCONT) return sender != keeper_ || !keeper_;
  const bool same_group = command && getpgid(command) == getpgrp();
  return !(same_group && group_signals_.has_seen(signal, sender, info.ssi_code == kPassedOnCode));
}

void Foreground::forward(int signal) {
  if (taken_over_) {
    job_.signal_command(signal);
    return;
  }
  // The keeper does it: only the parent knows that the process id is still the command's.
  Buffer<32> line;
  line.add("{\"signal\":%d}", signal);
  channel_.send(line.c_str());
}

void Foreground::cancel(int64_t grace) {
  cancel_grace_ = grace;
  if (taken_over_) {
    job_.cancel(grace);
    return;
  }
  Buffer<48> line;
  line.add("{\"cancel\":%ld}", static_cast<long>(grace));
  channel_.send(line.c_str());
}

void Foreground::read_events() {
  const bool open = channel_.receive();
  while (const char* line = channel_.next_line()) on_event(line);
  if (open) return;
  channel_.close();
  if (!complete_) take_over();
}

void Foreground::receive_event(void* foreground, const char* line, bool) {
  static_cast<Foreground*>(foreground)->on_event(line);
}

void Foreground::on_event(const char* line) {
  long number = 0;
  if (is_event(line, "failed")) {
    report_failure(line);
  } else if (is_event(line, "stopped")) {
    // The keeper stops us; without one, we follow what comes from the terminal, as from there comes the continuation.
    if (taken_over_ && number_in(line, "signal", &number) && number != SIGSTOP) raise(SIGSTOP);
  } else if (is_event(line, "time-limit")) {
    if (!time_is_over_) report_time_limit();
  } else if (is_event(line, "idle")) {
    say("%s", options_.idle.warned);
    // After a takeover, children of this process are the job's.
    if (!taken_over_) start_program(options_, options_.idle.then);
  } else if (is_event(line, "used")) {
    say("%s: used again", options_.gpus);
  } else if (is_event(line, "idle-end")) {
    time_is_over_ = true;
    say("%s", options_.idle.ended);
  } else if (is_event(line, "overuse")) {
    // Once, unless it is going to be ended.
    if (!overuse_reported_ || options_.share.ended) {
      number_in(line, "bytes", &number);
      say("%s uses %.1f GiB: %s", options_.command_name(), static_cast<double>(number) / (1 << 30),
          options_.share.warned);
    }
    overuse_reported_ = true;
  } else if (is_event(line, "overuse-end")) {
    say("%s", options_.share.ended);
  } else if (is_event(line, "preempted")) {
    report_preemption();
  } else if (is_event(line, "cancelled")) {
    if (number_in(line, "grace", &number)) cancel_grace_ = number;
    if (!cancellation_reported_) report_cancellation();
  } else if (is_event(line, "survivors")) {
    if (is_ending()) return;  // they are being ended, too
    if (!survivors_reported_) report_survivors(line);
    complete_ = complete_ || !taken_over_;
  } else if (is_event(line, "removed")) {
    say("the lease file of %s was removed while in use: others see that it is leased, but no longer by whom. Keep "
        "cleaners of temporary files away from gpu-owner's lock directory, and don't delete files there",
        options_.gpus);
  } else if (is_event(line, "released")) {
    complete_ = true;
    // All end now, at the same time: no zombie stays where orphans aren't collected.
    if (group_signals_.pid()) kill(group_signals_.pid(), SIGKILL);
    if (placeholder_) kill(placeholder_, SIGKILL);
    if (state_->requeued >= 0) channel_.send("{\"requeued\":1}");
    if (keeper_) waitpid(keeper_, nullptr, 0);
    if (state_->requeued < 0) start_then(options_, state_);  // if it wasn't the keeper that could
    end_child(placeholder_);
    placeholder_ = 0;
  }
}

void Foreground::report_failure(const char* line) {
  long error = 0;
  long code = kExitInternal;
  number_in(line, "errno", &error);
  number_in(line, "code", &code);
  if (code == kExitSystem) {
    report_no_process(static_cast<int>(error));
    return;
  }
  const char* text = strstr(line, "\"text\":\"");
  text = text ? text + 8 : "";
  say("cannot run '%s': %.*s", options_.command[0], static_cast<int>(strcspn(text, "\"")), text);
}

void Foreground::report_time_limit() {
  time_is_over_ = true;
  const bool is_extended = state_->limit != options_.time_limit.duration;
  say("the time limit of %s%s is over: %s and all its processes get SIGTERM, and after %ld s SIGKILL",
      options_.time_limit.text, is_extended ? ", which was extended," : "", options_.command_name(),
      options_.grace / 1000);
}

void Foreground::report_preemption() {
  const GiveWay& how = options_.give_way;
  const char* again = options_.requeue.program ? ". Then the command waits for GPUs, and restarts" : "";
  Buffer<32> time;
  if (how.grace % 1000 == 0) {
    time.add("%ld s", how.grace / 1000);
  } else {
    time.add("%ld ms", how.grace);
  }
  if (how.signal) {
    say("preempted: another request needs %s. %s gets %s, and after %s all its processes get SIGKILL%s", options_.gpus,
        options_.command_name(), signal_name(how.signal), time.c_str(), again);
  } else {
    say("preempted: another request needs %s. %s and all its processes get SIGTERM, and after %s SIGKILL%s",
        options_.gpus, options_.command_name(), time.c_str(), again);
  }
}

void Foreground::report_cancellation() {
  cancellation_reported_ = true;
  const bool in_seconds = cancel_grace_ % 1000 == 0;
  Buffer<32> time;
  time.add("%ld %s", static_cast<long>(in_seconds ? cancel_grace_ / 1000 : cancel_grace_), in_seconds ? "s" : "ms");
  if (cancel_grace_ == 0) {
    say("cancelled: %s and all its processes get SIGKILL", options_.command_name());
  } else if (options_.cancels_command) {
    say("cancelled: %s gets SIGTERM, and after %s all its processes get SIGKILL", options_.command_name(),
        time.c_str());
  } else {
    say("cancelled: %s and all its processes get SIGTERM, and after %s SIGKILL", options_.command_name(), time.c_str());
  }
}

void Foreground::describe_end(Text* text) const {
  if (state_->signal) {
    text->add("was ended by %s", signal_name(state_->signal));
  } else if (state_->exit_code >= 0) {
    text->add("has ended (exit code %d)", state_->exit_code);
  } else {
    text->add("has ended");
  }
}

void Foreground::report_survivors(const char* line) {
  survivors_reported_ = true;
  long count = 0;
  number_in(line, "count", &count);
  Buffer<512> text;
  text.add("%s ", options_.command_name());
  describe_end(&text);
  const bool one = count == 1;
  text.add(", but %ld of its processes still %s", count, one ? "runs" : "run");
  if (*options_.gpus) text.add(" and %s %s", one ? "keeps" : "keep", options_.gpus);
  int listed = 0;
  for (const char* process = line; (process = strstr(process, "{\"pid\":")); ++process) {
    long pid = 0;
    number_in(process, "pid", &pid);
    const char* name = strstr(process, "\"name\":\"");
    name = name ? name + 8 : "";
    text.add("%s%ld (%.*s)", listed++ ? ", " : ": ", pid, static_cast<int>(strcspn(name, "\"")), name);
  }
  if (listed && count > listed) text.add(", and %ld more", count - listed);
  say("%s", text.c_str());
}

// The placeholder, and strangers that are left to the first process of a container. The keeper isn't collected here,
// nor what comes after it in the kernel's list: with its death the command becomes ours.
void Foreground::on_child() {
  if (taken_over_) return;
  siginfo_t child;
  child.si_pid = 0;
  while (waitid(P_ALL, 0, &child, WEXITED | WNOHANG | WNOWAIT) == 0 && child.si_pid != 0) {
    const pid_t pid = child.si_pid;
    if (pid == keeper_ || pid == group_signals_.pid()) return;
    waitpid(pid, nullptr, WNOHANG);
    if (pid == placeholder_) placeholder_ = 0;
    child.si_pid = 0;
  }
}

void Foreground::take_over() {
  // The socket closes a moment before its process is gone and its children are ours.
  waitpid(keeper_, nullptr, 0);
  taken_over_ = true;
  group_signals_.stop();
  if (placeholder_) {
    // No other process can end it any more. The job collects it.
    kill(placeholder_, SIGKILL);
    job_.set_helper(placeholder_);
    placeholder_ = 0;
  }
  // First of all: until then other tools see the marks of a process that is gone.
  sign_markers(options_, keeper_);
  say("the keeper (process %d) was killed; this process now keeps %s until the last process of %s has ended", keeper_,
      *options_.gpus ? options_.gpus : "the job", options_.command_name());
  keeper_ = 0;
  state_->keeper = getpid();
  job_.adopt(state_->command, state_->exit_code >= 0 || !state_->command);
  if (cancel_grace_ >= 0) job_.cancel(cancel_grace_);
  job_.react();
}

int Foreground::exit_code() {
  if (state_->requeued >= 0) return kExitSignalBase + SIGTERM;
  if (state_->exit_code >= 0) return state_->exit_code;
  say("the keeper was killed before it reported how %s ended", options_.command_name());
  return kExitInternal;
}

}  // namespace keeper
