#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "keeper/channel.h"
#include "keeper/group_signal_monitor.h"
#include "keeper/job.h"

struct signalfd_siginfo;

namespace keeper {

// The process that the caller waits for. It ends with the command's exit code when the command ends; the keeper, its
// child, stays for the command's descendants. Should the keeper be killed, the foreground process takes its place.
class Foreground {
 public:
  explicit Foreground(const Options& options) : options_(options), channel_(-1), job_(options, {receive_event, this}) {}

  int run();

 private:
  bool start_keeper();
  int loop(int signals);
  void on_signal(const signalfd_siginfo& info);
  void forward(int signal);
  bool is_forwarded(const signalfd_siginfo& info);
  void read_events();
  static void receive_event(void* foreground, const char* line, bool dispensable);
  void on_event(const char* line);
  void report_failure(const char* line);
  void report_time_limit();
  void report_survivors(const char* line);
  void describe_end(class Text* text) const;
  void on_child();
  void take_over();
  int exit_code();

  const Options& options_;
  Channel channel_;
  Job job_;  // for the foreground process that took over
  GroupSignalMonitor group_signals_;
  pid_t keeper_ = 0;
  pid_t placeholder_ = 0;
  bool taken_over_ = false;
  pid_t command_ = 0;
  bool ended_ = false;
  int end_code_ = -1;
  int end_signal_ = 0;
  int failure_ = 0;        // exit code if the command never ran
  bool complete_ = false;  // the keeper has said all that we wait for
  bool survivors_reported_ = false;
  bool time_is_over_ = false;
  bool interrupted_by_terminal_ = false;
};

}  // namespace keeper
