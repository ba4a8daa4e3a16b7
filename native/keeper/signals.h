#pragma once

#include <signal.h>
#include <stdint.h>
#include <sys/signalfd.h>

namespace keeper {

constexpr int kLastSignal = 64;

// Resets every disposition to its default and blocks every signal.
void take_signals();

// A descriptor that delivers the blocked signals; -1 on failure.
int open_signals();

// The next signal that is waiting.
// One that a process that stands for us passes on (native/process/exec.h) is told as what it was, with ssi_code =
// kPassedOnCode.
constexpr int kPassedOnCode = 1 << 16;
bool next_signal(int fd, signalfd_siginfo* info);

// The signal that cancels a job, queued with a number of ms: SIGRTMAX - 1, which is 63 everywhere.
constexpr int kCancelSignal = 63;
constexpr int64_t kMaxCancelGraceMs = 3'600'000;

// The grace in ms with which a user who may do so cancels the job; -1: it is no such signal.
int64_t cancel_grace(const signalfd_siginfo& info);

// The signal that gives a job another time limit, queued with a number of seconds, which count from the job's start.
constexpr int kExtendSignal = 62;

// The new limit in ms, of a user who may do so; -1: it is no such signal.
int64_t extended_limit(const signalfd_siginfo& info);

// In the child that becomes the command: defaults, but `ignored` ignored; nothing blocked.
void restore_signals(uint64_t ignored);

// Ends this process by `signal` as if it had never been caught. Returns if that doesn't end it.
void die_by(int signal);

const char* signal_name(int signal);

}  // namespace keeper
