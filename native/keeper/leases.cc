#include "keeper/leases.h"

#include <fcntl.h>
#include <linux/stat.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "keeper/arguments.h"
#include "keeper/markers.h"

namespace keeper {

namespace {

void unlock_all(const DescriptorList &list) {
  for (int i = 0; i < list.count; ++i) {
    struct flock whole;
    memset(&whole, 0, sizeof whole);
    whole.l_type = F_UNLCK;
    whole.l_whence = SEEK_SET;
    fcntl(list.fds[i], F_OFD_SETLK, &whole);
    flock(list.fds[i], LOCK_UN);
  }
}

}  // namespace

void unlock(const Options &options) {
  remove_markers(options);
  unlock_all(options.held);
  unlock_all(options.leases);
}

bool lease_file_removed(const Options &options) {
  for (int i = 0; i < options.leases.count; ++i) {
    // The system call itself: of the functions for it, newer C libraries have new versions, and older ones not all.
    struct statx file;
    const int fd = options.leases.fds[i];
    if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_NLINK, &file) == 0 && file.stx_nlink == 0) return true;
  }
  return false;
}

}  // namespace keeper
