#include "locks/directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "locks/files.h"
#include "locks/locks.h"
#include "process/make_directory.h"
#include "process/unique_fd.h"

namespace gpu_owner::locks {
namespace {

constexpr unsigned kNoReplace = 1;  // RENAME_NOREPLACE
constexpr int kTries = 16;          // against others that make and remove the same file
constexpr int kMaxLinks = 40;       // as the kernel

// Without reading: a directory that may only be searched will do.
constexpr int kOpen = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

// Whether files of this user count as root's. In a user namespace (rootless containers) the host's root shows as the
// overflow user.
bool is_root(uid_t user) {
  if (user == 0) return true;
  constexpr uid_t kOverflow = 65534;
  if (user != kOverflow) return false;
  static const bool in_namespace = [] {
    unsigned long long inside = 0, outside = 0, count = 0;
    FILE* map = fopen("/proc/self/uid_map", "re");
    if (map == nullptr) return false;
    const bool all = fscanf(map, "%llu %llu %llu", &inside, &outside, &count) == 3 && count == 4294967295;
    fclose(map);
    return !all;
  }();
  return in_namespace;
}

bool is_trusted(const struct stat& status) { return is_root(status.st_uid) || status.st_uid == geteuid(); }

// Whether only root and this user can have put an entry there that belongs to one of them.
bool is_guarded(const struct stat& directory) {
  return is_trusted(directory) && ((directory.st_mode & 0022) == 0 || (directory.st_mode & S_ISVTX) != 0);
}

// Where a link leads, if it is one that may be followed. 0 or -errno.
int read_link(int directory, int link, std::string& target) {
  struct stat around, status;
  if (fstat(directory, &around) != 0 || fstat(link, &status) != 0) return -errno;
  if (!S_ISLNK(status.st_mode)) return -ENOTDIR;
  if (!is_guarded(around) || !is_trusted(status)) return -ELOOP;
  char text[PATH_MAX];
  const ssize_t length = readlinkat(link, "", text, sizeof text);
  if (length <= 0 || static_cast<size_t>(length) == sizeof text) return length < 0 ? -errno : -ENAMETOOLONG;
  target.assign(text, static_cast<size_t>(length));
  return 0;
}

// One part after the other, each by the descriptor of the one before. The descriptor or -errno.
int open_directory(std::string rest, bool follow_last) {
  if (rest.empty() || rest[0] != '/' || rest.find('\0') != std::string::npos) return -EINVAL;
  process::UniqueFd at(::open("/", kOpen));
  int links = 0;
  for (;;) {
    const size_t start = rest.find_first_not_of('/');
    if (!at) return -errno;
    if (start == std::string::npos) return at.release();
    const size_t end = std::min(rest.find('/', start), rest.size());
    const std::string part = rest.substr(start, end - start);
    rest.erase(0, end);
    process::UniqueFd next(openat(at.get(), part.c_str(), kOpen));
    if (next) {
      at = std::move(next);
      continue;
    }
    const int error = errno;
    const process::UniqueFd link(
        error == ENOTDIR || error == ELOOP ? openat(at.get(), part.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC) : -1);
    const bool is_last = rest.find_first_not_of('/') == std::string::npos;
    std::string target;
    int result = link ? read_link(at.get(), link.get(), target) : -error;
    if (result == 0 && ((is_last && !follow_last) || ++links > kMaxLinks)) result = -ELOOP;
    if (result != 0) return result;
    rest = target + '/' + rest;
    if (target[0] == '/') at.reset(::open("/", kOpen));
  }
}

bool is_entry(const char* name) { return *name != '\0' && strchr(name, '/') == nullptr && strcmp(name, "..") != 0; }

int open_entry(int directory, const char* name, int access, bool to_lock) {
  return is_entry(name) ? open_regular(directory, name, access, to_lock) : -EINVAL;
}

int reserve(int descriptor, int64_t size) { return size > 0 ? -posix_fallocate(descriptor, 0, size) : 0; }

// Not linkat(): for a moment the file would have two names, which others take for an attack.
int rename_without_replacing(int directory, const char* from, const char* to) {
  const long renamed = syscall(SYS_renameat2, directory, from, directory, to, kNoReplace);
  if (renamed == 0 || (errno != EINVAL && errno != ENOSYS)) return static_cast<int>(renamed);
  return linkat(directory, from, directory, to, 0);
}

// A file without a name gets one. The other way, for file systems that lack O_TMPFILE, can leave a stray file if
// the process is killed between two lines.
template <typename Prepare>
int create_linked(int directory, const char* name, mode_t mode, Prepare prepare) {
  if (!is_entry(name)) return -EINVAL;
  process::UniqueFd file(openat(directory, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  std::string temporary;
  if (!file) {
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) return -errno;
    std::string path = "/proc/thread-self/fd/" + std::to_string(directory) + '/' + name + ".XXXXXX";
    file.reset(mkostemp(&path[0], O_CLOEXEC));
    if (!file) return -errno;
    temporary = path.substr(path.rfind('/') + 1);
  }
  int result = fchmod(file.get(), mode) == 0 ? prepare(file.get()) : -errno;
  if (result == 0) {
    char source[64];
    snprintf(source, sizeof source, "/proc/thread-self/fd/%d", file.get());
    const int linked = temporary.empty() ? linkat(AT_FDCWD, source, directory, name, AT_SYMLINK_FOLLOW)
                                         : rename_without_replacing(directory, temporary.c_str(), name);
    if (linked != 0) result = -errno;
  }
  if (!temporary.empty()) unlinkat(directory, temporary.c_str(), 0);
  return result == 0 ? file.release() : result;
}

}  // namespace

int Directory::open(const std::string& path) {
  const int opened = open_directory(path, false);
  if (opened < 0) return opened;
  descriptor_.reset(opened);
  return 0;
}

int Directory::make(const std::string& path, unsigned mode) {
  for (int i = 0; i < kTries; i++) {
    const int error = open(path);
    if (error != -ENOENT) return error;
    const std::string clean = path.substr(0, path.find_last_not_of('/') + 1);
    const size_t slash = clean.rfind('/');
    const std::string name = clean.substr(slash + 1);
    if (!is_entry(name.c_str()) || name == ".") return -EINVAL;
    const int found = open_directory(slash == 0 ? "/" : clean.substr(0, slash), true);
    if (found < 0) return found;
    const process::UniqueFd parent(found);
    const int made = process::make_directory(parent.get(), name.c_str(), static_cast<mode_t>(mode));
    if (made != 0 && made != -EEXIST) return made;
    process::UniqueFd opened(openat(parent.get(), name.c_str(), kOpen));
    if (!opened) continue;  // the directory is gone again, or something else has the name: the next try tells
    descriptor_ = std::move(opened);
    return 0;
  }
  return -EAGAIN;
}

int Directory::open_shared(const char* name, int64_t size, unsigned mode) const {
  for (int i = 0; i < kTries; i++) {
    int descriptor = open_entry(descriptor_.get(), name, O_RDWR, true);
    if (descriptor != -ENOENT) return descriptor;
    const auto prepare = [size](int file) { return reserve(file, size); };
    descriptor = create_linked(descriptor_.get(), name, static_cast<mode_t>(mode), prepare);
    if (descriptor != -EEXIST) return descriptor;
  }
  return -EAGAIN;
}

int Directory::open_for_probe(const char* name) const { return open_entry(descriptor_.get(), name, O_RDONLY, false); }

int Directory::open_to_share(const char* name) const { return open_entry(descriptor_.get(), name, O_RDONLY, true); }

int Directory::open_itself() const {
  const int descriptor = openat(descriptor_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return descriptor < 0 ? -errno : descriptor;
}

int Directory::itself() const {
  if (!readable_) {
    const int descriptor = open_itself();
    if (descriptor < 0) return descriptor;
    readable_.reset(descriptor);
  }
  return readable_.get();
}

int Directory::create(const char* name, const char* data, int64_t size, unsigned mode, bool locked) const {
  const auto prepare = [data, size, locked](int file) {
    if (locked) {
      if (const int error = try_lock(file, Kind::ofd, Mode::exclusive, {0, 1})) return -error;
      // systemd's cleaner of temporary files leaves alone what is locked in this way, and only that.
      try_lock(file, Kind::flock, Mode::shared, {});
    }
    const ssize_t written = pwrite(file, data, static_cast<size_t>(size), 0);
    return written == size ? 0 : written < 0 ? -errno : -ENOSPC;
  };
  return create_linked(descriptor_.get(), name, static_cast<mode_t>(mode), prepare);
}

int Directory::remove(const char* name, int descriptor) const {
  if (!is_entry(name)) return -EINVAL;
  struct stat ours, named;
  if (fstat(descriptor, &ours) != 0) return -errno;
  if (fstatat(descriptor_.get(), name, &named, AT_SYMLINK_NOFOLLOW) != 0) return -errno;
  if (ours.st_dev != named.st_dev || ours.st_ino != named.st_ino) return -ESTALE;
  return unlinkat(descriptor_.get(), name, 0) == 0 ? 0 : -errno;
}

int Directory::access(const char* name, int mode) const {
  if (!is_entry(name)) return -EINVAL;
  return faccessat(descriptor_.get(), name, mode, 0) == 0 ? 0 : -errno;
}

std::vector<std::string> Directory::names() const {
  std::vector<std::string> result;
  process::UniqueFd readable(open_itself());
  DIR* list = readable ? fdopendir(readable.get()) : nullptr;
  if (list == nullptr) return result;
  readable.release();  // the list's now
  while (const dirent* entry = readdir(list)) {
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) result.emplace_back(entry->d_name);
  }
  closedir(list);
  return result;
}

}  // namespace gpu_owner::locks
