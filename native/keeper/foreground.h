#pragma once

#include <stdint.h>
#include <sys/types.h>
#include <unistd.h>

#include "keeper/channel.h"
#include "keeper/group_signal_monitor.h"
#include "keeper/job.h"

struct signalfd_siginfo;

namespace keeper {

// The process that the caller waits for. The foreground process ends with the command's exit code when the command
// ends; the keeper, its child, stays for the command's descendants. Should the keeper be killed, the foreground
// process takes its place.
class Foreground {
 public:
  explicit Foreground(const Options& options) : options_(options), channel_(-1), job_(options, {receive_event, this}) {}

  int run();

 private:
  bool share_state();
  bool start_keeper();
  int fail_to_start();
  int loop(int signals);
  void on_signal(const signalfd_siginfo& info);
  void forward(int signal);
  void cancel(int64_t grace);
  bool is_forwarded(const signalfd_siginfo& info);
  bool is_from_parents_end(const signalfd_siginfo& info) const;
  void hang_up();
  void read_events();
  static void receive_event(void* foreground, const char* line, bool dispensable);
  void on_event(const char* line);
  void report_failure(const char* line);
  void report_time_limit();
  void report_preemption();
  void report_cancellation();
  // Whether the job is being ended: at the end of this process, nothing is left of the job then.
  bool is_ending() const { return time_is_over_ || cancel_grace_ >= 0 || state_->gives_way_since >= 0; }
  void report_survivors(const char* line);
  void describe_end(class Text* text) const;
  void on_child();
  void take_over();
  int exit_code();

  const Options& options_;
  const pid_t parent_ = getppid();
  Channel channel_;
  Job job_;  // for the foreground process that took over
  GroupSignalMonitor group_signals_;
  pid_t keeper_ = 0;
  pid_t placeholder_ = 0;
  bool taken_over_ = false;
  JobState* state_ = nullptr;
  bool complete_ = false;  // the keeper has said all that we wait for
  bool survivors_reported_ = false;
  bool time_is_over_ = false;
  int64_t cancel_grace_ = -1;  // ms, once the job is cancelled
  bool cancellation_reported_ = false;
  bool overuse_reported_ = false;
  bool interrupted_by_terminal_ = false;
};

}  // namespace keeper
