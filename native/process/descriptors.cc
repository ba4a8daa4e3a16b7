#include "process/descriptors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

namespace gpu_owner::process {
namespace {

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
constexpr unsigned kCloseRangeUnshare = 2;  // CLOSE_RANGE_UNSHARE, since Linux 5.9

void close_all_listed() {
  std::vector<int> open_ones;
  DIR* directory = opendir("/proc/thread-self/fd");
  if (directory == nullptr) return;
  while (const dirent* entry = readdir(directory)) {
    if (entry->d_name[0] != '.' && atoi(entry->d_name) > STDERR_FILENO) open_ones.push_back(atoi(entry->d_name));
  }
  closedir(directory);
  for (const int descriptor : open_ones) close(descriptor);
}

}  // namespace

bool leave_descriptor_table() {
  // One call does both and passes the system call filters of containers, which often forbid unshare().
  if (syscall(SYS_close_range, 3u, ~0u, kCloseRangeUnshare) != 0) {
    if (unshare(CLONE_FILES) != 0) return false;
    close_all_listed();
  }
  // A library that prints must not hit a descriptor of the driver; its complaints are let through.
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nothing >= 0) {
    dup2(nothing, STDIN_FILENO);
    dup2(nothing, STDOUT_FILENO);
    if (nothing > STDERR_FILENO) close(nothing);
  }
  return true;
}

int inheritable_duplicate(int descriptor) {
  const int duplicate = fcntl(descriptor, F_DUPFD, 200);
  return duplicate >= 0 ? duplicate : -errno;
}

}  // namespace gpu_owner::process
