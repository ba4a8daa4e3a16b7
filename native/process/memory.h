// Leaving this process's memory behind quickly.
#pragma once

#include <sys/types.h>

namespace gpu_owner::process {

// When a process becomes another program, the kernel first takes its memory back, which for Node.js lasts a millisecond or
// two. While one of these exists, another process shares the memory, and ends as soon as this one has become another program: so
// it falls to that process, on another processor, to give the memory back. It has no descriptor but the end of a pipe, and
// blocks all signals; this process must block them, too, while it makes one. Where it can't be had, nothing is lost but time.
//
// The new program is its parent, and is to collect it with __WCLONE, which tells it from all other children.
class SharedMemory {
 public:
  SharedMemory();
  // Ends the other process, if this one is still what it was.
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int end_ = -1;  // of the pipe; closed by execution
};

}  // namespace gpu_owner::process
