#pragma once

#include <signal.h>
#include <stdint.h>
#include <sys/signalfd.h>

namespace keeper {

// Every disposition to its default and every signal blocked, whatever we were started with.
void take_signals();

// A descriptor that delivers the blocked signals; -1 on failure.
int open_signals();

// The next signal that is waiting.
// One that a process that stands for us passes on (native/process/exec.h) is told as what it was, with ssi_code =
// passed_on.
constexpr int passed_on = 1 << 16;
bool next_signal(int fd, signalfd_siginfo* info);

// In the child that becomes the command: defaults, but `ignored` ignored; nothing blocked.
void restore_signals(uint64_t ignored);

// Ends this process by `signal` as if it had never been caught. Returns if that doesn't end it.
void die_by(int signal);

const char* signal_name(int signal);

}  // namespace keeper
