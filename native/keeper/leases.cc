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

bool any_removed(const DescriptorList &list) {
  for (int i = 0; i < list.count; ++i) {
    // The system call itself: of the functions for it, newer C libraries have new versions, and older ones not all.
    struct statx file;
    if (syscall(SYS_statx, list.fds[i], "", AT_EMPTY_PATH, STATX_NLINK, &file) == 0 && file.stx_nlink == 0) return true;
  }
  return false;
}

}  // namespace

void unlock(const Options &options) {
  remove_markers(options);
  unlock_all(options.held);
  unlock_all(options.leases);
  unlock_all(options.shared);
  unlock_all(options.inherited);
}

bool lease_file_removed(const Options &options) {
  return any_removed(options.leases) || any_removed(options.shared);
}

}  // namespace keeper
