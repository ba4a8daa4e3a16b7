#include "keeper/job.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <initializer_list>

#include "keeper/arguments.h"
#include "keeper/clock.h"
#include "keeper/descriptors.h"
#include "keeper/exit_codes.h"
#include "keeper/leases.h"
#include "keeper/record.h"
#include "keeper/text.h"

namespace keeper {

namespace {

// Children of a program that ends normally (multiprocessing's trackers, data loaders) end a moment after it.
constexpr int64_t kSettleMs = 25;
// On a busy machine that takes them longer: wait for those that are about to end, but not for ever.
constexpr int kMaxSettleLooks = 12;
// Processes can be born while we kill: look again this soon.
constexpr int64_t kKillRoundMs = 5;
constexpr int64_t kSlowKillRoundMs = 500;
// Orphans of a task got their signal with it: the next task waits for the GPU.
constexpr int64_t kLeftoverGraceMs = 2000;

}  // namespace

Job::Job(const Options& options, Events events)
    : options_(options),
      events_(events),
      output_(options),
      preemption_(options),
      usage_(options),
      meter_(options),
      idle_judge_(options.idle.min_utilization),
      started_at_(boot_time_ms()) {
  if (options.time_limit.duration > 0) set_limit(options.time_limit.duration);
}

void Job::set_limit(int64_t duration) {
  limit_at_ = started_at_ + duration;
  until_ = calendar_time_ms() + limit_at_ - boot_time_ms();
  if (options_.time_limit.signal) notice_at_ = limit_at_ - options_.time_limit.notice;
}

void Job::set_state(JobState* state) {
  state_ = state;
  state_->preemptions = options_.requeue.times;
  state_->failures = options_.requeue.failures;
  state_->ran = options_.requeue.ran;
  state_->limit = options_.time_limit.duration;
}

void Job::begin(pid_t command) {
  command_ = command;
  if (shared_command_) __atomic_store_n(shared_command_, command, __ATOMIC_RELEASE);
  recheck_at_ = now_ms() + options_.recheck;
  record(command, 0, false);
  state_->command = command;
  write_job_state(options_, *state_);
}

void Job::adopt(pid_t command, bool ended) {
  command_ = command;
  recheck_at_ = now_ms() + options_.recheck;
  if (notice_at_ <= boot_time_ms()) notice_at_ = -1;  // the process that had the command before has sent it
  write_job_state(options_, *state_);
  if (ended) {
    phase_ = Phase::settling;
    settled_at_ = now_ms() + kSettleMs;
  } else {
    record(command, 0, false);
  }
  if (state_->gives_way_since < 0) return;
  // The job's processes have had their signal.
  preemption_.stop();
  const int64_t left = state_->gives_way_since + options_.give_way.grace - boot_time_ms();
  kill_at_ = now_ms() + (left > 0 ? left : 0);
  signaled_ = SignalScope::all;
}

void Job::started() {
  Buffer<64> line;
  line.add("{\"event\":\"started\",\"pid\":%d}", command_);
  events_.send(line.c_str());
}

void Job::failed(int error, const char* text, int exit_code) {
  state_->command = 0;
  state_->exit_code = exit_code;
  Buffer<512> line;
  line.add("{\"event\":\"failed\",\"errno\":%d,\"code\":%d,\"text\":\"%s\"}", error, exit_code, text);
  events_.send(line.c_str());
  release();
}

void Job::record(pid_t pid, int survivors, bool ended) {
  write_record(options_, {pid, getpid(), survivors, ended ? boot_time_ms() : -1, state_->gives_way_since >= 0,
                          idle_ends_, until_});
}

void Job::react() {
  // Also where a keeper that was killed had seen the command's end and couldn't tell.
  if (!reap()) {
    release();
    return;
  }
  keep_time_limit();
  keep_deadline();
  if (preemption_.is_needed()) give_way();
  const int64_t now = now_ms();
  if (kill_at_ >= 0 && now >= kill_at_) kill_on();
  if (phase_ == Phase::settling && now >= settled_at_) phase_ = Phase::surviving;
  if (phase_ == Phase::surviving) report_survivors();
  output_.react();
  if (meter_.react()) judge_idle();
  usage_.react();
  if (now >= recheck_at_) look_after_files();
}

int Job::timeout() const {
  int64_t next = recheck_at_;
  if (phase_ == Phase::settling && settled_at_ < next) next = settled_at_;
  if (kill_at_ >= 0 && kill_at_ < next) next = kill_at_;
  if (output_.next_look() < next) next = output_.next_look();
  if (preemption_.next_look() < next) next = preemption_.next_look();
  if (usage_.next_note() < next) next = usage_.next_note();
  if (meter_.next_look() < next) next = meter_.next_look();
  int64_t left = next - now_ms();
  const int64_t limit = notice_at_ >= 0 ? notice_at_ : limit_at_;
  // After a sleep of the machine, which this wait doesn't notice, it is the next look at the lease files that does.
  if (limit >= 0 && limit - boot_time_ms() < left) left = limit - boot_time_ms();
  if (deadline_at_ >= 0 && deadline_at_ - boot_time_ms() < left) left = deadline_at_ - boot_time_ms();
  return left < 0 ? 0 : static_cast<int>(left);
}

// False when no child is left.
bool Job::reap() {
  while (true) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED);
    if (pid == 0) return true;
    if (pid < 0) return errno != ECHILD;
    if (pid == command_ && phase_ == Phase::running) command_changed(status);
    if (!WIFEXITED(status) && !WIFSIGNALED(status)) continue;
    if (pid == helper_) helper_ = 0;
    meter_.collected(pid);
  }
}

void Job::command_changed(int status) {
  Buffer<96> line;
  if (WIFSTOPPED(status)) {
    line.add("{\"event\":\"stopped\",\"signal\":%d}", WSTOPSIG(status));
    events_.send(line.c_str(), true);
    follow(SIGSTOP);
    return;
  }
  follow(SIGCONT);
  if (WIFCONTINUED(status)) {
    events_.send("{\"event\":\"continued\"}", true);
    return;
  }
  note_end(WEXITSTATUS(status), WIFSIGNALED(status) ? WTERMSIG(status) : 0);
  if (WIFSIGNALED(status)) {
    line.add("{\"event\":\"ended\",\"signal\":%d}", WTERMSIG(status));
  } else {
    line.add("{\"event\":\"ended\",\"code\":%d}", WEXITSTATUS(status));
  }
  events_.send(line.c_str());
  phase_ = Phase::settling;
  settled_at_ = now_ms() + kSettleMs;
  if (helper_) {
    // Our own child couldn't be told from the job's when waiting for the last one.
    kill(helper_, SIGKILL);
  }
  meter_.interrupt();
}

// Noted before it is reported: if this process is killed now, the one that takes over knows.
void Job::note_end(int exit_code, int signal) {
  state_->signal = signal;
  state_->command_ended = calendar_time_ms();
  if (signal) exit_code = kExitSignalBase + signal;
  if (state_->time_limit) exit_code = kExitTimeLimit;
  if (state_->cancelled || (exit_code == 0 && !signal)) state_->preempted = false;
  if (state_->preempted) exit_code = kExitSignalBase + SIGTERM;
  __atomic_store_n(&state_->exit_code, exit_code, __ATOMIC_RELEASE);
  write_job_state(options_, *state_);
}

// The foreground process stops and goes on with the command, so that the shell has its prompt back. The keeper does
// that, because it learns of the changes in their order: a foreground process that looked and then stopped itself
// could miss the continuation between.
void Job::follow(int signal) {
  if (foreground_ && getppid() == foreground_) kill(foreground_, signal);
}

void Job::signal_command(int signal) {
  if (phase_ == Phase::running && command_) kill(command_, signal);
}

void Job::terminate(int64_t grace) { terminate(grace, SignalScope::all); }

void Job::terminate(int64_t grace, SignalScope scope) {
  const int64_t at = now_ms() + grace;
  if (kill_at_ < 0 || at < kill_at_) kill_at_ = at;
  if (scope <= signaled_) return;
  signaled_ = scope;
  if (grace == 0) return;  // the first round of killing does it
  // A process that is stopped gets it only when it goes on.
  for (const int signal : {SIGTERM, SIGCONT}) {
    if (scope == SignalScope::command) {
      signal_command(signal);
    } else {
      signal_descendants(getpid(), signal);
    }
  }
}

void Job::cancel(int64_t grace) {
  state_->cancelled = true;
  write_job_state(options_, *state_);
  const bool command_alone = options_.cancels_command && phase_ == Phase::running;
  Buffer<64> line;
  line.add("{\"event\":\"cancelled\",\"grace\":%ld}", static_cast<long>(grace));
  events_.send(line.c_str());
  terminate(grace, command_alone ? SignalScope::command : SignalScope::all);
}

void Job::extend(int64_t duration) {
  if (limit_at_ < 0) return;
  set_limit(duration);
  state_->limit = duration;
  if (command_ == 0) return;  // the front of a keeper, which writes it
  write_job_state(options_, *state_);
  record(phase_ == Phase::running ? command_ : survivor_, survivors_ > 0 ? survivors_ : 0, false);
}

void Job::give_way() {
  preemption_.stop();
  const GiveWay& how = options_.give_way;
  const bool runs = phase_ == Phase::running && !state_->time_limit && !state_->cancelled;
  if (how.signal && runs) {
    signaled_ = SignalScope::all;
    for (const int signal : {how.signal, SIGCONT}) signal_command(signal);
  }
  terminate(how.grace);
  // Written after the signal: should this process be killed between, the signal is sent once more.
  state_->gives_way_since = boot_time_ms();
  state_->preempted = runs;
  if (!runs) note_cut_off();
  record(command_, survivors_ > 0 ? survivors_ : 0, false);
  Buffer<64> line;
  line.add("{\"event\":\"preempted\",\"grace\":%ld}", how.grace);
  if (state_->preempted) events_.send(line.c_str());
}

// A command that has ended may have left its work to processes in the background: ended with it, that is preempted,
// too.
void Job::note_cut_off() {
  if (phase_ == Phase::running || state_->preempted || state_->time_limit || state_->cancelled) return;
  Descendants descendants;
  descendants.look_up(getpid(), helper_, meter_.pid());
  if (descendants.count() == 0) return;
  state_->preempted = true;
  __atomic_store_n(&state_->exit_code, kExitSignalBase + SIGTERM, __ATOMIC_RELEASE);
  write_job_state(options_, *state_);
}

// Also for descendants that are left of the command: they keep the GPUs, too.
void Job::judge_idle() {
  if (options_.share.bytes > 0) return judge_share();
  const Idle& limits = options_.idle;
  const int64_t since = idle_judge_.judge(meter_.readings());
  usage_.add(meter_.readings(), since >= 0);
  const int64_t idle = since < 0 ? -1 : boot_time_ms() - since;
  if (limits.warning == 0 || kill_at_ >= 0) return;
  if (limits.end > 0 && idle >= limits.end && idle_ends_ >= 0) return end_idle();
  const bool is_warned = idle >= limits.warning;
  if (is_warned == (idle_ends_ >= 0)) return;
  idle_ends_ = !is_warned ? -1 : limits.end == 0 ? 0 : calendar_time_ms() + (idle < limits.end ? limits.end - idle : 0);
  record(phase_ == Phase::running ? command_ : survivor_, survivors_ > 0 ? survivors_ : 0, false);
  events_.send(is_warned ? "{\"event\":\"idle\"}" : "{\"event\":\"used\"}");
}

// The readings of a share have the memory that the job's own processes use.
void Job::judge_share() {
  if (kill_at_ >= 0) return;
  const Readings& readings = meter_.readings();
  int64_t most = -1;
  for (int i = 0; i < readings.count; ++i) most = readings.gpus[i].memory > most ? readings.gpus[i].memory : most;
  const bool was_over = is_over_share_;
  is_over_share_ = most > options_.share.bytes;
  if (is_over_share_ && !was_over && options_.share.warned) {
    Buffer<64> line;
    line.add("{\"event\":\"overuse\",\"bytes\":%" PRId64 "}", most);
    events_.send(line.c_str());
  } else if (is_over_share_ && was_over && options_.share.ended) {
    events_.send("{\"event\":\"overuse-end\"}");
    terminate(options_.grace);
  }
}

void Job::end_idle() {
  if (phase_ == Phase::running && !state_->cancelled) {
    state_->time_limit = true;
    write_job_state(options_, *state_);
  }
  events_.send("{\"event\":\"idle-end\"}");
  terminate(options_.grace);
}

// Another start follows: it has waited for this, and nothing of this one is left.
void Job::set_back() {
  ++(state_->failed ? state_->failures : state_->preemptions);
  state_->ran += boot_time_ms() - started_at_;
  state_->command = 0;
  state_->signal = 0;
  state_->exit_code = -1;
  state_->command_ended = -1;
  state_->requeued = calendar_time_ms();
}

void Job::keep_time_limit() {
  const int64_t now = boot_time_ms();
  if (notice_at_ >= 0 && now >= notice_at_) {
    notice_at_ = -1;
    signal_command(options_.time_limit.signal);
  }
  if (limit_at_ < 0 || now < limit_at_) return;
  limit_at_ = -1;
  // If only descendants are left, they are ended as well, but the caller has the command's own exit code by then.
  if (phase_ == Phase::running && !state_->cancelled) {
    state_->time_limit = true;
    write_job_state(options_, *state_);
    events_.send("{\"event\":\"time-limit\"}");
  }
  terminate(options_.grace);
}

void Job::set_deadline(int64_t at) {
  // The worker may have sent it just before.
  if (!expired_ && !has_expired()) deadline_at_ = at;
}

void Job::keep_deadline() {
  if (!has_expired()) return;
  deadline_at_ = -1;
  expired_ = true;
  if (phase_ == Phase::running) events_.send("{\"event\":\"expired\"}");
  terminate(options_.deadline.grace);
}

void Job::kill_on() {
  if (state_->gives_way_since >= 0) note_cut_off();
  signal_descendants(getpid(), SIGKILL);
  // Processes that are stuck in a driver's call end when they end; don't spin meanwhile.
  ++kill_rounds_;
  kill_at_ = now_ms() + (kill_rounds_ < 200 ? kKillRoundMs : kSlowKillRoundMs);
}

void Job::report_survivors() {
  Descendants descendants;
  descendants.look_up(getpid(), helper_, meter_.pid());
  // Only the meter is waited for, which lasts if the driver hangs.
  if (descendants.count() == 0) meter_.interrupt();
  const bool is_first = survivors_ < 0;
  const bool may_be_ending = descendants.count() == 0 || (is_first && descendants.all_running());
  if (may_be_ending && looks_++ < kMaxSettleLooks) {
    phase_ = Phase::settling;
    settled_at_ = now_ms() + kSettleMs;
    return;
  }
  report(descendants);
}

void Job::report(const Descendants& descendants) {
  // A child to wait for that isn't visible: a process that its debugger holds.
  const int count = descendants.count() > 0 ? descendants.count() : 1;
  const pid_t first = descendants.count() > 0 ? descendants.at(0).pid : 0;
  const bool changed = count != survivors_;
  if (changed || first != survivor_) record(first, count, false);
  survivor_ = first;
  survivors_ = count;
  if (!changed) return;

  Buffer<512> line;
  line.add("{\"event\":\"survivors\",\"count\":%d,\"processes\":[", count);
  for (int i = 0; i < descendants.count() && i < Descendants::kListed; ++i) {
    const Process& process = descendants.at(i);
    line.add("%s{\"pid\":%d,\"name\":\"%s\"}", i ? "," : "", process.pid, process.name);
  }
  line.add("]}");
  events_.send(line.c_str());
  if (worker_) terminate(options_.grace < kLeftoverGraceMs ? options_.grace : kLeftoverGraceMs);
}

void Job::look_after_files() {
  recheck_at_ = now_ms() + options_.recheck;
  if (removal_reported_ || !lease_file_removed(options_)) return;
  removal_reported_ = true;
  events_.send("{\"event\":\"removed\"}");
}

// A command that can't be run would fail again, and one whose time limit is over has had its time.
bool Job::is_to_be_retried() const {
  const Requeue& requeue = options_.requeue;
  return state_->command && state_->exit_code > 0 && !state_->preempted && !state_->time_limit &&
         (requeue.retried_code < 0 || state_->exit_code == requeue.retried_code) && state_->failures < requeue.retries;
}

void Job::release() {
  if (worker_) {
    write_record(options_, {worker_, worker_, 0, -1});
  } else {
    if (options_.placeholder >= 0) close(options_.placeholder);
    if (state_->time_limit && state_->exit_code < 0) state_->exit_code = kExitTimeLimit;
    usage_.end(state_->exit_code, state_->preempted);
    state_->failed = is_to_be_retried();
    const bool is_requeued =
        (state_->preempted || state_->failed) && !state_->cancelled && options_.requeue.program && adopts_descendants();
    if (is_requeued) {
      set_back();
    } else {
      state_->ended = calendar_time_ms();
    }
    trim_job_output(options_);  // `wait` and `logs` read it next
    if (adopts_descendants()) {
      record(command_, 0, true);
      write_job_state(options_, *state_);
      if (is_requeued) {
        unlock_gpus(options_);
      } else {
        unlock(options_);
      }
    } else {
      write_job_state(options_, *state_);
      // A process may be left that only inherited descriptors show: to unlock would end the lease for it, too.
      unlock_own(options_);
    }
  }
  phase_ = Phase::released;
  events_.send("{\"event\":\"released\"}");
}

}  // namespace keeper
