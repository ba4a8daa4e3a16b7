#include "support/mount.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test.h"

namespace tests {

namespace {

void say(const char* path, const std::string& text) {
  const int file = open(path, O_WRONLY | O_CLOEXEC);
  if (write(file, text.data(), text.size()) < 0) errno = EPERM;
  close(file);
}

bool have_own_mounts() {
  if (unshare(CLONE_NEWNS) == 0) return true;
  const std::string user = std::to_string(geteuid()), group = std::to_string(getegid());
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  say("/proc/self/setgroups", "deny");
  say("/proc/self/uid_map", "0 " + user + " 1");
  say("/proc/self/gid_map", "0 " + group + " 1");
  return true;
}

}  // namespace

void mount_small(const std::string& path, int kilobytes) {
  const std::string size = "size=" + std::to_string(kilobytes) + "k,mode=1777";
  mkdir(path.c_str(), 0777);
  if (!have_own_mounts() || mount("none", "/", "none", MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("tmpfs", path.c_str(), "tmpfs", 0, size.c_str()) != 0) {
    skip(std::string("a file system can't be mounted: ") + strerror(errno));
  }
}

void become_nobody() {
  constexpr uid_t kNobody = 65534;
  if (setgroups(0, nullptr) != 0 || setresgid(kNobody, kNobody, kNobody) != 0 ||
      setresuid(kNobody, kNobody, kNobody) != 0) {
    skip("only root can become another user");
  }
}

}  // namespace tests
