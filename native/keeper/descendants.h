#pragma once

#include <sys/types.h>

namespace keeper {

struct Process {
  pid_t pid;
  bool running;
  char name[16];  // as the kernel has it; printable, without quotes and backslashes
};

// Orphans below this process become its children, so waitpid tells whether a process is left. False with errno where
// the system forbids that.
bool adopt_descendants();
bool adopts_descendants();

// For messages and for killing. waitpid alone decides whether a process is left.
class Descendants {
 public:
  static constexpr int kListed = 5;

  // Looks up the living descendants of `root`, but not `excluded` and `excluded2`.
  void look_up(pid_t root, pid_t excluded = 0, pid_t excluded2 = 0);

  // Whether none of them waits for anything: just woken by the end of their parent, perhaps, and about to follow.
  bool all_running() const { return all_running_; }
  int count() const { return count_; }
  const Process& at(int i) const { return first_[i]; }  // i < min(count(), kListed)

 private:
  int count_ = 0;
  bool all_running_ = false;
  Process first_[kListed];
};

// A letter, as in /proc/PID/stat; '\0': the process has gone.
char process_state(pid_t pid);

// Sends a signal to every living descendant of `root`; returns how many there were.
int signal_descendants(pid_t root, int signal);

// Kills a child and collects it, so that no other process has to; 0 is none. Doesn't wait for ever: one that hangs in
// the driver doesn't end.
void end_child(pid_t child);

}  // namespace keeper
