// Signals for a process that is known by more than its number: by a lock which it holds, or by a descriptor.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace gpu_owner::process {

// A descriptor that means this process and, when it has ended, no other one of the same number. -ESRCH: there is no
// such process, -ENOSYS: the kernel is too old.
int hold_process(pid_t process);
// Sends a signal to it; 0: none. 0 or -errno, -ESRCH if it has ended.
int signal_held(int handle, int signal);

// The user who has made the outermost user namespace that a process is in and this process isn't, so that the users in
// it are that user's. -ENOENT: there is none, else another -errno.
int64_t namespace_maker(pid_t process);

// Device and inode are as JavaScript has them, which rounds the largest.
struct LockedByte {
  double device;
  double inode;
  int64_t offset;
};

// Queues a signal with a value (sigqueue(3)) for the process if it has a file open through which exactly this byte is
// locked, by an open-file-description lock for writing: a number by itself may be that of another process by now.
// Signal 0 is not sent. Returns 0, or -errno: -ESRCH if there is no such process or it has no such lock, -ENOSYS if the
// kernel can't rule out that another process gets the signal.
int signal_holder(pid_t process, const LockedByte& lock, int signal, int value);

}  // namespace gpu_owner::process
