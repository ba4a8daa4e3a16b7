#include "process/holder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>

#include "process/unique_fd.h"

namespace gpu_owner::process {
namespace {

// The same on all architectures; older headers lack the names.
constexpr long kPidfdSendSignal = 424;
constexpr long kPidfdOpen = 434;

std::string read_at(int directory, const char* name) {
  std::string text;
  const UniqueFd file(openat(directory, name, O_RDONLY | O_CLOEXEC));
  if (!file) return text;
  char buffer[4096];
  for (ssize_t got; (got = read(file.get(), buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(got));
  return text;
}

// Whether the kernel names such a lock among those of an open file, as `lock:     1: OFDLCK ADVISORY  WRITE -1
// fe:00:4711 7 7`. Locks that others have on the same file aren't listed there.
bool names_lock(const std::string& information, int64_t offset) {
  const std::string range = " " + std::to_string(offset) + " " + std::to_string(offset);
  for (size_t start = 0, end; start < information.size(); start = end + 1) {
    end = information.find('\n', start);
    if (end == std::string::npos) end = information.size();
    const std::string line = information.substr(start, end - start);
    if (line.compare(0, 5, "lock:") != 0 || line.find(" OFDLCK ") == std::string::npos) continue;
    if (line.find(" WRITE ") == std::string::npos || line.size() < range.size()) continue;
    if (line.compare(line.size() - range.size(), range.size(), range) == 0) return true;
  }
  return false;
}

// 0 if it has, or -errno.
int has_lock(pid_t process, const LockedByte& lock) {
  const std::string path = "/proc/" + std::to_string(process);
  DIR* information = opendir((path + "/fdinfo").c_str());
  if (information == nullptr) return errno == ENOENT ? -ESRCH : -errno;
  int result = -ESRCH;
  while (const dirent* entry = readdir(information)) {
    if (entry->d_name[0] == '.') continue;
    if (!names_lock(read_at(dirfd(information), entry->d_name), lock.offset)) continue;
    // Only now: to ask for any other file of the process may take for ever, where its server has gone.
    struct stat file;
    if (stat((path + "/fd/" + entry->d_name).c_str(), &file) != 0) continue;
    if (static_cast<double>(file.st_dev) != lock.device || static_cast<double>(file.st_ino) != lock.inode) continue;
    result = 0;
    break;
  }
  closedir(information);
  return result;
}

}  // namespace

int hold_process(pid_t process) {
  const int handle = static_cast<int>(syscall(kPidfdOpen, process, 0));
  if (handle >= 0) return handle;
  return errno == EINVAL || errno == ENOENT ? -ESRCH : -errno;
}

int signal_held(int handle, int signal) {
  return syscall(kPidfdSendSignal, handle, signal, nullptr, 0) == 0 ? 0 : -errno;
}

int64_t namespace_maker(pid_t process) {
  // The names are in linux/nsfs.h since Linux 4.11.
  constexpr unsigned long kGetParent = _IO(0xb7, 0x2), kGetOwner = _IO(0xb7, 0x4);
  constexpr int kMaxNested = 32;
  struct stat own, found;
  if (stat("/proc/self/ns/user", &own) != 0) return -errno;
  UniqueFd space(open(("/proc/" + std::to_string(process) + "/ns/user").c_str(), O_RDONLY | O_CLOEXEC));
  int64_t maker = -ENOENT;
  for (int i = 0; i <= kMaxNested; i++) {
    if (!space || fstat(space.get(), &found) != 0) return -errno;
    if (found.st_ino == own.st_ino && found.st_dev == own.st_dev) return maker;
    uid_t uid;
    if (ioctl(space.get(), kGetOwner, &uid) != 0) return -errno;
    maker = uid;
    space = UniqueFd(ioctl(space.get(), kGetParent));
  }
  return -ELOOP;
}

int signal_holder(pid_t process, const LockedByte& lock, int signal, int value) {
  // First of all: a process that ends and leaves its number to another one from here on doesn't get the signal.
  const UniqueFd handle(static_cast<int>(syscall(kPidfdOpen, process, 0)));
  if (!handle) return errno == EINVAL || errno == ENOENT ? -ESRCH : -errno;
  int result = has_lock(process, lock);
  if (result == 0) {
    siginfo_t info;
    memset(&info, 0, sizeof info);
    info.si_signo = signal;
    info.si_code = SI_QUEUE;
    info.si_pid = getpid();
    info.si_uid = getuid();
    info.si_value.sival_int = value;
    if (syscall(kPidfdSendSignal, handle.get(), signal, signal == 0 ? nullptr : &info, 0) != 0) result = -errno;
  }
  return result;
}

}  // namespace gpu_owner::process
