#include "locks/locks.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>

namespace gpu_owner::locks {
namespace {

struct flock description_of(short type, Range range) {
  struct flock lock = {};  // l_pid must be 0 for OFD locks
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = range.start;
  lock.l_len = range.length;
  return lock;
}

int lock(int descriptor, Kind kind, Mode mode, Range range, bool wait) {
  int result;
  if (kind == Kind::flock) {
    result = ::flock(descriptor, (mode == Mode::exclusive ? LOCK_EX : LOCK_SH) | (wait ? 0 : LOCK_NB));
  } else {
    struct flock lock = description_of(mode == Mode::exclusive ? F_WRLCK : F_RDLCK, range);
    result = fcntl(descriptor, wait ? F_OFD_SETLKW : F_OFD_SETLK, &lock);
  }
  if (result == 0) return 0;
  return errno == EACCES ? EAGAIN : errno;  // POSIX allows either for a lock in the way
}

}  // namespace

int try_lock(int descriptor, Kind kind, Mode mode, Range range) { return lock(descriptor, kind, mode, range, false); }
int wait_lock(int descriptor, Kind kind, Mode mode, Range range) { return lock(descriptor, kind, mode, range, true); }

int unlock(int descriptor, Kind kind, Range range) {
  if (kind == Kind::flock) return ::flock(descriptor, LOCK_UN) == 0 ? 0 : errno;
  struct flock lock = description_of(F_UNLCK, range);
  return fcntl(descriptor, F_OFD_SETLK, &lock) == 0 ? 0 : errno;
}

int probe(int descriptor, Mode mode, Range range, Conflict& conflict) {
  struct flock lock = description_of(mode == Mode::exclusive ? F_WRLCK : F_RDLCK, range);
  if (fcntl(descriptor, F_OFD_GETLK, &lock) != 0) return errno;
  conflict.exists = lock.l_type != F_UNLCK;
  conflict.mode = lock.l_type == F_WRLCK ? Mode::exclusive : Mode::shared;
  conflict.range = {lock.l_start, lock.l_len};
  conflict.pid = lock.l_pid;
  return 0;
}

}  // namespace gpu_owner::locks
