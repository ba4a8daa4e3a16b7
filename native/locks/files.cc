#include "locks/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "locks/locks.h"
#include "locks/ownership.h"

namespace gpu_owner::locks {
namespace {

constexpr unsigned kNoReplace = 1;  // RENAME_NOREPLACE
constexpr int kTries = 16;          // against others that make and remove the same file

std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

int open_existing(const char* path, int access, bool to_lock, mode_t* mode = nullptr) {
  // Without O_CREAT: fs.protected_regular makes it fail on other people's files in sticky directories, even for root.
  const int descriptor = open(path, access | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) return errno == EISDIR ? -ENXIO : -errno;
  struct stat status;
  // Looking whether it is locked harms nobody, whosever it is.
  if (fstat(descriptor, &status) == 0 && (to_lock ? may_lock(status) : S_ISREG(status.st_mode))) {
    if (mode != nullptr) *mode = status.st_mode;
    return descriptor;
  }
  close(descriptor);
  return -ENXIO;
}

int write_zeros(int descriptor, int64_t size) {
  const char zeros[4096] = {};
  for (int64_t at = 0; at < size;) {
    const auto length = static_cast<size_t>(std::min(size - at, int64_t{sizeof zeros}));
    const ssize_t written = pwrite(descriptor, zeros, length, at);
    if (written <= 0) return written < 0 ? -errno : -ENOSPC;
    at += written;
  }
  return 0;
}

int reserve(int descriptor, int64_t size) {
  if (fchmod(descriptor, 0666) != 0) return -errno;
  const int error = size > 0 ? posix_fallocate(descriptor, 0, size) : 0;
  return error == EOPNOTSUPP ? write_zeros(descriptor, size) : -error;  // glibc does that itself, musl doesn't
}

// Not link(): for a moment the file would have two names, and those who open it meanwhile would not write into it.
int rename_without_replacing(const char* from, const char* to) {
  const long renamed = syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, kNoReplace);
  if (renamed == 0 || (errno != EINVAL && errno != ENOSYS)) return static_cast<int>(renamed);
  return link(from, to);
}

int fill(int descriptor, const char* data, int64_t size) {
  if (fchmod(descriptor, 0666) != 0) return -errno;
  return write_block(descriptor, data, size);
}

// A file without a name gets one. The other way, for file systems that lack O_TMPFILE, can leave a stray file behind if the
// process is killed between two lines.
template <typename Prepare>
int create_linked(const std::string& path, Prepare prepare) {
  const std::string directory = directory_of(path);
  int descriptor = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
  std::string temporary;
  if (descriptor < 0) {
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) return -errno;
    temporary = path + ".XXXXXX";
    descriptor = mkostemp(temporary.data(), O_CLOEXEC);
    if (descriptor < 0) return -errno;
  }
  int result = prepare(descriptor);
  if (result == 0) {
    char source[64];
    snprintf(source, sizeof source, "/proc/thread-self/fd/%d", descriptor);
    const int linked = temporary.empty()
                           ? linkat(AT_FDCWD, source, AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW)
                           : rename_without_replacing(temporary.c_str(), path.c_str());
    if (linked != 0) result = -errno;
  }
  if (!temporary.empty()) unlink(temporary.c_str());
  if (result == 0) return descriptor;
  close(descriptor);
  return result;
}

}  // namespace

int ensure_shared_directory(const char* path, unsigned mode) {
  struct stat status;
  if (lstat(path, &status) == 0) return 0;
  if (errno != ENOENT) return -errno;
  std::string temporary = std::string(path) + ".XXXXXX";
  if (mkdtemp(temporary.data()) == nullptr) return -errno;
  int result = 0;
  if (chmod(temporary.c_str(), static_cast<mode_t>(mode)) != 0 ||
      syscall(SYS_renameat2, AT_FDCWD, temporary.c_str(), AT_FDCWD, path, kNoReplace) != 0) {
    result = -errno;
  }
  if (result == -EINVAL || result == -ENOSYS) {
    // A file system without it. Plain rename would replace an empty directory that somebody else has just made, but
    // an empty one holds no locks.
    result = rename(temporary.c_str(), path) == 0 ? 0 : -errno;
  }
  if (result == 0) return 0;
  rmdir(temporary.c_str());
  return result == -EEXIST || result == -ENOTEMPTY ? 0 : result;
}

int open_shared_file(const char* path, int64_t size) {
  for (int i = 0; i < kTries; i++) {
    int descriptor = open_existing(path, O_RDWR, true);
    if (descriptor != -ENOENT) return descriptor;
    descriptor = create_linked(path, [size](int file) { return reserve(file, size); });
    if (descriptor != -EEXIST) return descriptor;
  }
  return -EAGAIN;
}

int create_file(const char* path, const char* data, int64_t size) {
  return create_linked(path, [data, size](int file) { return fill(file, data, size); });
}

int open_for_probe(const char* path) { return open_existing(path, O_RDONLY, false); }

int open_to_share(const char* path) { return open_existing(path, O_RDONLY, true); }

Presence presence_of(const char* path, int64_t byte) {
  mode_t mode = 0;
  const int descriptor = open_existing(path, O_RDONLY, false, &mode);
  if (descriptor < 0) return descriptor == -ENOENT ? Presence::missing : Presence::unclear;
  Conflict conflict;
  const bool free = probe(descriptor, Mode::exclusive, {byte, 1}, conflict) == 0 && !conflict.exists;
  close(descriptor);
  return free && (mode & 0666) == 0666 ? Presence::untouched : Presence::unclear;
}

void keep_untouched(const char* directory, const std::string& names, int64_t byte, uint8_t* untouched, size_t count) {
  std::string path = std::string(directory) + '/';
  const size_t root = path.size();
  size_t at = 0;
  const auto presence_of_next = [&](bool wanted) {
    if (at > names.size()) return Presence::unclear;
    const size_t end = std::min(names.find('\n', at), names.size());
    path.replace(root, std::string::npos, names, at, end - at);
    at = end + 1;
    return wanted ? presence_of(path.c_str(), byte) : Presence::unclear;
  };
  for (size_t i = 0; i < count; i++) {
    const Presence presence = presence_of_next(untouched[i] != 0);
    const Presence nested = presence_of_next(presence == Presence::untouched);
    const bool kept = presence == Presence::missing || nested == Presence::missing;
    if (!kept) untouched[i] = 0;
  }
}

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

}  // namespace gpu_owner::locks
