#include "simulator/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "process/make_directory.h"
#include "process/unique_fd.h"

namespace simulator {

using gpu_owner::process::UniqueFd;

namespace {

constexpr const char* kOtherDirectory = "or choose another directory with GPU_OWNER_SIMULATE_DIR";

void temporary_name(char* out, size_t size, const char* stem) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  snprintf(out, size, "%s.new-%d-%lx", stem, static_cast<int>(getpid()), static_cast<unsigned long>(now.tv_nsec));
}

bool make_shared_directory(const char* path, Error* error) {
  const int reason = -gpu_owner::process::make_directory(AT_FDCWD, path, 01777);
  if (reason == 0 || reason == EEXIST) return true;
  return error->set("cannot create %s: %s; create it, %s", path, strerror(reason), kOtherDirectory);
}

}  // namespace

bool base_directory(char (&out)[kPathSize], bool* is_default, Error* error) {
  const char* chosen = getenv("GPU_OWNER_SIMULATE_DIR");
  *is_default = !chosen || !*chosen;
  int length;
  if (!*is_default) {
    // Absolute, for programs change their directory.
    char current[kPathSize] = "";
    if (*chosen != '/' && !getcwd(current, sizeof current))
      return error->set("GPU_OWNER_SIMULATE_DIR is relative to a directory that cannot be found: %s", strerror(errno));
    length = snprintf(out, sizeof out, *chosen == '/' ? "%s%s" : "%s/%s", current, chosen);
  } else {
    const char* temporary = getenv("TMPDIR");
    length = snprintf(out, sizeof out, "%s/gpu-owner-simulated-%u", temporary && *temporary ? temporary : "/tmp",
                      static_cast<unsigned>(geteuid()));
  }
  // Room for the machine's name and a temporary one after it.
  if (length < 0 || static_cast<size_t>(length) > sizeof out - 200)
    return error->set("the path of the simulated machines is too long; choose another one with GPU_OWNER_SIMULATE_DIR");
  while (length > 1 && out[length - 1] == '/') out[--length] = 0;
  return true;
}

int open_shared_directory(const char* path, bool follow_link, Error* error) {
  for (int attempt = 0;; ++attempt) {
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (follow_link ? 0 : O_NOFOLLOW));
    if (fd >= 0) return fd;
    if (errno == ENOENT && attempt < 100) {
      if (!make_shared_directory(path, error)) return -1;
      continue;
    }
    if (errno == ELOOP || errno == ENOTDIR)
      error->set("%s is not a directory of its own (a file or a symbolic link): remove it, %s", path, kOtherDirectory);
    else
      error->set("cannot open %s: %s; make it accessible (chmod 1777), %s", path, strerror(errno), kOtherDirectory);
    return -1;
  }
}

int open_shared_file(int directory, const char* directory_path, const char* name, Error* error) {
  // Without O_CREAT: fs.protected_regular refuses that for other users' files in sticky directories.
  UniqueFd fd(openat(directory, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd) {
    if (errno == ENOENT) return -1;
    if (errno == ELOOP)
      error->set("%s/%s is a symbolic link: remove it, %s", directory_path, name, kOtherDirectory);
    else
      error->set("cannot open %s/%s for writing: %s; make it so (chmod 666), %s", directory_path, name, strerror(errno),
                 kOtherDirectory);
    return -2;
  }
  FileFacts facts;
  if (!facts_of(fd.get(), &facts) || !facts.regular) {
    error->set("%s/%s is not a regular file: remove it, %s", directory_path, name, kOtherDirectory);
    return -2;
  }
  return fd.release();
}

Made make_shared_file(int directory, const char* directory_path, const char* name,
                      bool (*fill)(int, const void*, Error*), const void* argument, Error* error) {
  char temporary[128] = "";
  UniqueFd fd(openat(directory, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!fd && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
    temporary_name(temporary, sizeof temporary, name);
    fd.reset(openat(directory, temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  }
  if (!fd) {
    error->set("cannot create a file in %s: %s; make room or make it writable, %s", directory_path, strerror(errno),
               kOtherDirectory);
    return Made::failed;
  }
  Made made = Made::failed;
  if (!fill(fd.get(), argument, error)) {
    // error is set
  } else if (fchmod(fd.get(), 0666) != 0) {
    error->set("cannot set the mode of %s/%s: %s", directory_path, name, strerror(errno));
  } else {
    char source[64];
    snprintf(source, sizeof source, "/proc/thread-self/fd/%d", fd.get());
    const int result = *temporary ? linkat(directory, temporary, directory, name, 0)
                                  : linkat(AT_FDCWD, source, directory, name, AT_SYMLINK_FOLLOW);
    if (result == 0)
      made = Made::yes;
    else if (errno == EEXIST)
      made = Made::exists;
    else
      error->set("cannot create %s/%s: %s; %s", directory_path, name, strerror(errno), kOtherDirectory);
  }
  if (*temporary) unlinkat(directory, temporary, 0);
  return made;
}

bool facts_of(int file, FileFacts* out) {
  struct stat facts;
  if (fstat(file, &facts) != 0) return false;
  out->regular = S_ISREG(facts.st_mode);
  out->size = static_cast<uint64_t>(facts.st_size);
  out->inode = facts.st_ino;
  return true;
}

}  // namespace simulator
