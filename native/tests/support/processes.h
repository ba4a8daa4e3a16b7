// Processes that a test starts, and words between them.
#pragma once

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "test.h"

namespace tests {

// Runs the function in a forked process; what it returns is the exit code.
template <typename Function>
pid_t start(Function function) {
  fflush(nullptr);
  const pid_t process = fork();
  if (process == 0) _exit(function());
  return process;
}

// Waits for its end: the exit code, or 128 + the signal.
int end_of(pid_t process);

void kill_and_wait(pid_t process);

// Starts a PROGRAM: another process that has no more than what survives exec.
pid_t start_program(const char* name, const std::vector<std::string>& arguments);

// The tests' executable, and the arguments that make it a PROGRAM.
const std::string& own_path();
std::vector<std::string> program_arguments(const char* name, const std::vector<std::string>& arguments);

// Starts it and waits.
int run_program(const char* name, const std::vector<std::string>& arguments);

// For one word at a time between a process and those forked from it.
class Channel {
 public:
  Channel();
  void say(char word = '.') const;
  // Returns what was said, or 0 when no process is left to say anything or the time is up.
  char hear(int milliseconds = 10'000 * slowness()) const;
  // The process that calls it will only hear, or only say.
  void close_for_saying();
  void close_for_hearing();
  int hearing() const { return ends_[0]; }
  int saying() const { return ends_[1]; }

 private:
  int ends_[2];
};

// Everything until the other ends are closed.
std::string read_all(int descriptor);
std::string contents_of(const std::string& path);

void sleep_milliseconds(int milliseconds);

// Whether the condition comes true in time.
template <typename Condition>
bool eventually(Condition condition, int milliseconds = 5000) {
  for (int waited = 0; waited < milliseconds * slowness(); waited++) {
    if (condition()) return true;
    sleep_milliseconds(1);
  }
  return condition();
}

// How many descriptors and threads this process has.
int open_descriptors();
int threads();
// Whether it has so many threads, not counting those of ThreadSanitizer.
bool has_threads(int number);

}  // namespace tests
