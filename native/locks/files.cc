#include "locks/files.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "locks/ownership.h"
#include "process/unique_fd.h"

namespace gpu_owner::locks {

int open_regular(int directory, const char* path, int access, bool to_lock) {
  // Without O_CREAT: fs.protected_regular makes it fail on other people's files in sticky directories, even for root.
  process::UniqueFd file(openat(directory, path, access | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (!file) return errno == EISDIR ? -ENXIO : -errno;
  struct stat status;
  // Looking whether a file is locked is harmless, whichever user owns it.
  const bool is_right = fstat(file.get(), &status) == 0 && (to_lock ? may_lock(status) : S_ISREG(status.st_mode));
  return is_right ? file.release() : -ENXIO;
}

int open_for_probe(const char* path) { return open_regular(AT_FDCWD, path, O_RDONLY, false); }

int names_same_file(int descriptor, const char* path) {
  struct stat ours, named;
  if (fstat(descriptor, &ours) != 0 || lstat(path, &named) != 0) return 0;
  return ours.st_dev == named.st_dev && ours.st_ino == named.st_ino ? 1 : 0;
}

int64_t file_system_type(const char* path) {
  struct statfs status;
  return statfs(path, &status) == 0 ? static_cast<int64_t>(static_cast<uint32_t>(status.f_type)) : -errno;
}

int write_block(int descriptor, const char* data, int64_t size, int64_t offset) {
  if (!may_write(descriptor)) return -EMLINK;
  const ssize_t written = pwrite(descriptor, data, size, offset);
  if (written == size) return 0;
  return written < 0 ? -errno : -ENOSPC;
}

int64_t append(int descriptor, const char* data, int64_t size) {
  const int flags = fcntl(descriptor, F_GETFL);
  if (flags < 0 || fcntl(descriptor, F_SETFL, flags | O_APPEND) != 0) return -errno;
  const ssize_t written = write(descriptor, data, static_cast<size_t>(size));
  const int error = errno;
  const off_t end = lseek(descriptor, 0, SEEK_CUR);
  fcntl(descriptor, F_SETFL, flags);
  if (written == size) return end - size;
  return written < 0 ? -error : -ENOSPC;
}

}  // namespace gpu_owner::locks
