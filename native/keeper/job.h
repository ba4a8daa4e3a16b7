#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "keeper/clock.h"
#include "keeper/descendants.h"
#include "keeper/idle.h"
#include "keeper/job_file.h"
#include "keeper/meter.h"
#include "keeper/preemption.h"
#include "keeper/usage.h"

namespace keeper {

struct Options;

// Where events go, as lines of JSON: over the socket to the foreground process or the worker, or straight to a
// foreground process that took over. `dispensable` ones may be dropped when the receiver doesn't read.
struct Events {
  void (*receive)(void* receiver, const char* line, bool dispensable);
  void* receiver;

  void send(const char* line, bool dispensable = false) const { receive(receiver, line, dispensable); }
};

// The command and all that descends from it: follows its life, and releases the leases when no process is left. The
// process that has a Job must be subreaper and be the command's parent. The owner's loop drives it: react() whenever
// something has happened or timeout() has passed.
class Job {
 public:
  // A time limit is counted from here.
  Job(const Options& options, Events events);

  // The process that stops when the command stops, and goes on with it.
  void set_foreground(pid_t foreground) { foreground_ = foreground; }
  // A child of ours that isn't the command's.
  void set_helper(pid_t helper) { helper_ = helper; }
  // The owner of the leases: it keeps them for its next task, and nothing of this one may be left then. 0: they end
  // with the job.
  void set_worker(pid_t worker) { worker_ = worker; }
  // Where to keep what a process that takes over has to know; default: none does.
  void set_state(JobState* state);
  // Where to note the command's process before it runs.
  void set_shared_command(pid_t* command) { shared_command_ = command; }

  void begin(pid_t command);
  // Takes over a command of which it is known that it ended, or not.
  void adopt(pid_t command, bool ended);
  void started();
  // The command never ran; `exit_code` is what that is worth to the caller.
  void failed(int error, const char* text, int exit_code);

  // Ends the command at a time of boot_time_ms(), unless it is set again before. Once it has passed, it stays passed.
  void set_deadline(int64_t at);
  bool has_expired() const { return deadline_at_ >= 0 && boot_time_ms() >= deadline_at_; }

  void react();
  int timeout() const;  // ms, for poll
  // For poll: react() has something to do when it is readable; -1: there is none.
  int output_watch() const { return output_.fd(); }
  int preemption_watch() const { return preemption_.fd(); }
  int meter_watch() const { return meter_.fd(); }
  bool released() const { return phase_ == Phase::released; }

  void signal_command(int signal);
  // SIGTERM to all, SIGKILL after `grace` ms. A second call can only make that sooner.
  void terminate(int64_t grace);
  // Moves the end by the time limit, unless that is over. `duration` counts from the start.
  void extend(int64_t duration);
  // As terminate() for a job that its user doesn't want any more.
  void cancel(int64_t grace);

 private:
  enum class SignalScope { none, command, all };
  enum class Phase { running, settling, surviving, released };

  void terminate(int64_t grace, SignalScope scope);
  void record(pid_t pid, int survivors, bool ended);
  void note_end(int exit_code, int signal);
  void set_limit(int64_t duration);
  bool reap();
  void command_changed(int status);
  void follow(int signal);
  void report_survivors();
  void report(const Descendants& descendants);
  void keep_time_limit();
  void keep_deadline();
  void give_way();
  void note_cut_off();
  void judge_idle();
  void judge_share();
  void end_idle();
  bool is_to_be_retried() const;
  void set_back();
  void kill_on();
  void look_after_files();
  void release();

  const Options& options_;
  const Events events_;
  pid_t foreground_ = 0;
  pid_t helper_ = 0;
  pid_t worker_ = 0;
  pid_t* shared_command_ = nullptr;
  OutputWatch output_;
  PreemptionWatch preemption_;
  UsageLine usage_;
  Meter meter_;
  IdleJudge idle_judge_;
  bool is_over_share_ = false;  // in the last reading
  int64_t idle_ends_ = -1;      // ms since 1970, once the user is warned; 0: never
  JobState own_state_;
  JobState* state_ = &own_state_;
  pid_t command_ = 0;
  Phase phase_ = Phase::running;
  int64_t settled_at_ = 0;
  int looks_ = 0;
  int64_t recheck_at_ = 0;
  int64_t started_at_;        // boot time
  int64_t notice_at_ = -1;    // boot time of the signal before the limit, or -1
  int64_t limit_at_ = -1;     // boot time, or -1
  int64_t until_ = -1;        // the same in ms since 1970
  int64_t deadline_at_ = -1;  // boot time, or -1
  bool expired_ = false;
  int64_t kill_at_ = -1;                      // next round of killing, or -1
  SignalScope signaled_ = SignalScope::none;  // which processes have had SIGTERM
  int kill_rounds_ = 0;
  bool removal_reported_ = false;
  int survivors_ = -1;
  pid_t survivor_ = 0;
};

}  // namespace keeper
