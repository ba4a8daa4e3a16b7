#pragma once

#include <stdint.h>
#include <sys/types.h>

namespace keeper {

struct Options;

// How far a job has come. The front makes it in memory that the keeper shares: each may be killed at any moment, and
// the other goes on from here.
struct JobState {
  pid_t keeper = 0;
  pid_t front = 0;
  pid_t command = 0;           // 0: it never ran
  int exit_code = -1;          // the exit code that the front returns; -1: unknown
  int signal = 0;              // that ended the command, or 0
  int64_t command_ended = -1;  // ms since 1970, or -1; so is `ended`
  int64_t ended = -1;
  int64_t limit = 0;        // how long it may run, in ms; 0: for ever
  bool time_limit = false;  // the limit was over before the command had ended
  bool cancelled = false;
  int64_t requeued = -1;         // when its GPUs were given back for a new start, in ms since 1970, or -1
  int64_t gives_way_since = -1;  // boot time, or -1
  bool preempted = false;        // the command is ended by that
  long preemptions = 0;          // before, and now where `requeued` says so
  long failures = 0;             // the same, of failures
  bool failed = false;           // whether it restarts because of that
  int64_t ran = 0;               // ms, of earlier starts
  bool then_started = false;     // what `--then` names
};

// Whether this descriptor can only be one of a job's files: a regular file that may be written to at any place.
bool is_job_file(int fd);
// The same, but writing may be at the end.
bool is_job_output(int fd);

// Writes the state into its block of the job's file (`--job`), in place: the block is there, so that a full disk loses
// no job's end. Failures are ignored.
void write_job_state(const Options& options, const JobState& state);

// Frees the middle of the job's output (`--log`) on disk where that takes more than it may: the beginning and half of
// what it may take stay. Where the file system can't, everything does.
void trim_job_output(const Options& options);

// Trims the job's output while it grows. An output that rests causes no wake-up.
class OutputWatch {
 public:
  explicit OutputWatch(const Options& options);

  // For poll: readable when an output that rested has grown; -1: nothing tells.
  int fd() const { return watch_; }
  int64_t next_look() const { return look_at_; }  // on the clock of now_ms()
  void react();

 private:
  bool rest();

  const Options& options_;
  int watch_ = -1;
  int64_t look_at_;
  off_t size_ = -1;
};

}  // namespace keeper
