#include "keeper/leases.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "keeper/arguments.h"
#include "keeper/markers.h"

namespace keeper {

namespace {

void unlock_file(int fd) {
  struct flock whole;
  memset(&whole, 0, sizeof whole);
  whole.l_type = F_UNLCK;
  whole.l_whence = SEEK_SET;
  fcntl(fd, F_OFD_SETLK, &whole);
  flock(fd, LOCK_UN);
}

void unlock_all(const DescriptorList& list, int kept = -1) {
  for (int i = 0; i < list.count; ++i)
    if (list.fds[i] != kept) unlock_file(list.fds[i]);
}

bool is_directory(int fd) {
  struct stat status;
  return fstat(fd, &status) == 0 && S_ISDIR(status.st_mode);
}

// By the name, where it is known: a removed file may have another one somewhere, which isn't locked.
bool is_removed(int fd, const char* path) {
  struct stat ours, named;
  if (fstat(fd, &ours) != 0) return false;
  if (!path || ours.st_nlink == 0) return ours.st_nlink == 0;
  if (lstat(path, &named) != 0) return errno == ENOENT;
  return ours.st_dev != named.st_dev || ours.st_ino != named.st_ino;
}

void unlock_but(const Options& options, int kept) {
  remove_markers(options);
  // First the names of the leases, in the lock directory: others wait for the end of a lease, and then look there.
  for (int i = 0; i < options.shared.count; ++i)
    if (is_directory(options.shared.fds[i])) unlock_file(options.shared.fds[i]);
  unlock_all(options.leases);
  unlock_all(options.shared);
  unlock_all(options.inherited, kept);
  unlock_all(options.held);  // last: whoever waits for the job's end finds its GPUs free
}

}  // namespace

void unlock_own(const Options& options) {
  remove_markers(options);
  unlock_all(options.held);
}

void unlock(const Options& options) { unlock_but(options, -1); }

void unlock_gpus(const Options& options) { unlock_but(options, options.requeue.kept); }

bool lease_file_removed(const Options& options) {
  const int leases = options.leases.count;
  for (int i = 0; i < leases + options.shared.count; ++i) {
    const int fd = i < leases ? options.leases.fds[i] : options.shared.fds[i - leases];
    if (is_removed(fd, i < options.lease_files.count ? options.lease_files.paths[i] : nullptr)) return true;
  }
  return false;
}

}  // namespace keeper
