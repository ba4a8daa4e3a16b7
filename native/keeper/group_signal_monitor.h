#pragma once

#include <sys/types.h>

namespace keeper {

// A signal sent to the whole process group (`kill %1` in a shell, a batch system's stop) reaches the command by itself;
// one sent to the foreground process alone must be passed on. The signal doesn't say which it was. A tiny third process
// of the group that only notes what it gets does: what reached it as well, reached the group.
class GroupSignalMonitor {
 public:
  void start();
  void stop();

  // Once for each that it has seen; `passed_on`: and once more, as a process that stands for us gets the group's
  // signals, too.
  bool has_seen(int signal, pid_t sender, bool passed_on);
  pid_t pid() const { return pid_; }

 private:
  struct Note;
  bool is_running() const;

  pid_t pid_ = 0;
  Note* notes_ = nullptr;
  unsigned counted_[2][65] = {};
};

}  // namespace keeper
