#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "waiter/wait.h"

namespace keeper {

struct DescriptorList {
  static constexpr int kCapacity = 256;
  int fds[kCapacity];
  int count = 0;

  bool contains(int fd) const;
};

// A file that shows users of another locking convention that the GPU is taken. `name` is ours as long as it names, in
// the open directory, the file of `fd` and that contains `token`.
struct Marker {
  int fd;
  int directory;
  const char* name;
  char token[24];
  bool
      is_shared;  // other leases keep it, too: each has a lock on the byte of a PID of its own, and the last removes it
  bool is_pid;    // the token is a PID, and all that is in the file: it is to be that of who keeps the lease
};

struct MarkerList {
  static constexpr int kCapacity = 256;
  Marker markers[kCapacity];
  int count = 0;
};

struct PathList {
  static constexpr int kCapacity = 2 * DescriptorList::kCapacity;
  const char* paths[kCapacity];
  int count = 0;
};

// A program and its arguments, as execvp wants them.
struct WordList {
  static constexpr int kCapacity = 31;
  const char* words[kCapacity + 1] = {};
  int count = 0;
};

// How long a command may run. The end is counted from the start of this program, on a clock that goes on while the
// machine sleeps.
struct TimeLimit {
  long duration = 0;      // ms; 0: none
  const char* text = "";  // the duration as its user wrote it
  int signal = 0;         // the signal that the command gets before, or 0
  long notice = 0;        // how long before, in ms
};

// When the worker's task may be given to another worker, unless the worker moves it (by `deadline` on the control
// socket): the command must have ended by then. On a clock that goes on while the machine sleeps.
struct Deadline {
  long at = 0;     // ms since boot; 0: none
  long grace = 0;  // ms between SIGTERM and SIGKILL then
};

// How a preemptible lease gives way to a request that needs its GPUs.
struct GiveWay {
  const char* queue = nullptr;   // the wait queue's file; null: the lease isn't preemptible
  const char* notice = nullptr;  // the file that tells of such a request
  long grace = 0;                // ms between the signal and SIGKILL
  int signal = 0;                // for the command; 0: SIGTERM for all its processes
};

// How the command restarts after its lease gave way: by a program that waits for GPUs, of whose words the
// command is a part.
struct Requeue {
  char** program = nullptr;  // null-terminated; null: the command isn't
  long command = 0;          // where the command begins there
  WordList environment;      // changes to the environment: NAME=VALUE, or NAME, which is unset
  int kept = -1;             // a lock of `inherited` that goes with it
  long times = 0;            // how often it restarted before
  long ran = 0;              // ms that it ran in all before
  long failures = 0;         // how often it restarted after a failure
  long retries = 0;          // how often that may be
  long retried_code = -1;    // the exit code that is such a failure; -1: each but 0
};

// The end of the lease's line in the ledger of usage, in an open file.
struct Usage {
  int fd = -1;        // -1: there is none
  long offset = 0;    // where the end is in the file
  long since = 0;     // when the lease began, in ms since boot
  long interval = 0;  // ms between two notes that it lasts
};

// The program that reads the GPUs.
struct MeterProgram {
  int program = -1;            // an open file; -1: there is none
  long interval = 0;           // ms
  const char* nvml = nullptr;  // the library; null: the usual one
};

// How a command is warned and ended whose GPUs do nothing.
struct Idle {
  long warning = 0;          // ms until its user is warned; 0: never
  long end = 0;              // ms until it is ended; 0: never
  long min_utilization = 1;  // percent
  const char* warned = "";   // messages
  const char* ended = "";
  WordList then;  // a program that is started at the warning
};

// The share of a GPU's memory that the command has, of several the smallest.
struct Share {
  long bytes = 0;                // 0: all of it
  const char* warned = nullptr;  // words that tell that it uses more
  const char* ended = nullptr;   // words that tell that it is ended for that; null: it isn't
};

enum class Mode { run, hold, task, wait, submit };

struct Options {
  Mode mode = Mode::run;
  DescriptorList leases;         // lease files; the command inherits them
  DescriptorList shared;         // lease files that others hold a part of, too; the command inherits them
  PathList lease_files;          // of `leases`, then of `shared`: the names under which others look for them
  DescriptorList inherited;      // locks of other things, which the command inherits as well
  DescriptorList held;           // other locks, for the keeper alone
  MarkerList markers;            // removed before the leases end; their descriptors and directories are among `held`
  const char* record = nullptr;  // a JSON object, written into the lease files
  int placeholder = -1;          // closing it ends the placeholder process
  pid_t placeholder_pid = 0;
  uint64_t ignored_signals = 0;     // bit n - 1: the command starts with signal n ignored
  const char* cpus = nullptr;       // the processors of the command, "0-31,64-95"; null: all
  long open_files = -1;             // soft RLIMIT_NOFILE of the command
  const char* gpus = "the GPUs";    // words for messages; empty: there are none
  int control = -1;                 // socket of the worker (task)
  int signals = -1;                 // open_signals(), for each process of this program: who reads gets its own
  const char* directory = nullptr;  // where the command starts (task); default: here
  const char* answer = nullptr;     // the line that tells that all is held (hold)
  TimeLimit time_limit;             // the command's limit, or that of a hold
  Deadline deadline;                // the command's deadline (task)
  int job = -1;                     // the file of a job in the background (run)
  int log = -1;                     // the output of that job (run)
  long log_size = 0;                // bytes that it may have on disk
  WordList then;                    // the program that is started when all GPUs are released (run)
  GiveWay give_way;                 // (run)
  Requeue requeue;                  // (run)
  Usage usage;                      // (run, hold)
  MeterProgram meter;               // (run, hold)
  Idle idle;                        // (run)
  Share share;                      // (run)
  bool cancels_command = false;     // SIGTERM of a cancellation is for the command alone (run)
  long grace = 10'000;              // ms between SIGTERM and SIGKILL (task, time limit)
  long recheck = 60'000;            // ms between two looks at the lease files
  char** command = nullptr;         // null-terminated, as execvp wants it
  waiter::Options wait;             // (wait)

  const char* command_name() const;
};

// Returns 0, or the exit code after having said what is wrong.
int parse_arguments(int argc, char** argv, Options* options);

}  // namespace keeper
