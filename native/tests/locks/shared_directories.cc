// Directories that all users of a machine share.
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

#include "locks/files.h"
#include "support/directory.h"
#include "support/mount.h"
#include "support/processes.h"
#include "support/refuse.h"
#include "test.h"

using namespace gpu_owner::locks;

namespace {

std::string path() { return tests::path_of("locks"); }

mode_t mode_of(const std::string& path) {
  struct stat status = {};
  REQUIRE_EQUAL(lstat(path.c_str(), &status), 0);
  return status.st_mode;
}

void check_new_directory() {
  umask(077);
  CHECK_EQUAL(ensure_shared_directory(path().c_str()), 0);
  CHECK_EQUAL(mode_of(path()), static_cast<mode_t>(S_IFDIR | 01777));
  CHECK_EQUAL(tests::entries(tests::directory()), 1);
}

void check_race() {
  const int rounds = 60 / tests::slowness() + 5;
  for (int round = 0; round < rounds; round++) {
    tests::Channel go;
    std::vector<pid_t> processes;
    for (int i = 0; i < 8; i++) {
      processes.push_back(tests::start([&] {
        umask(077);
        go.close_for_saying();
        go.hear();
        const int error = ensure_shared_directory(path().c_str());
        if (error != 0) return -error;
        struct stat status = {};
        return lstat(path().c_str(), &status) == 0 && (status.st_mode & 07777) == 01777 ? 0 : 255;
      }));
    }
    go.close_for_saying();
    for (const pid_t process : processes) REQUIRE_EQUAL(tests::end_of(process), 0);
    REQUIRE_EQUAL(tests::entries(tests::directory()), 1);  // no temporary ones are left
    REQUIRE_EQUAL(rmdir(path().c_str()), 0);
  }
}

}  // namespace

TEST("a new directory has mode 1777 under umask 077") { check_new_directory(); }

TEST("the same on a file system that can't rename without replacing") {
  tests::refuse(SYS_renameat2, EINVAL);
  check_new_directory();
}

TEST("the same on a kernel that can't") {
  tests::refuse(SYS_renameat2, ENOSYS);
  check_new_directory();
}

TEST("processes that make a directory at the same moment get the same one") { check_race(); }

TEST("the same on a file system that can't rename without replacing") {
  tests::refuse(SYS_renameat2, EINVAL);
  check_race();
}

TEST("what has the name already is left alone, whatever it is") {
  mkdir(path().c_str(), 0700);
  tests::write_file(path() + "/file", "");
  CHECK_EQUAL(ensure_shared_directory(path().c_str()), 0);
  CHECK_EQUAL(mode_of(path()) & 07777, 0700u);
  CHECK_EQUAL(tests::entries(path()), 1);

  const std::string file = tests::path_of("file");
  tests::write_file(file, "");
  CHECK_EQUAL(ensure_shared_directory(file.c_str()), 0);
  CHECK(S_ISREG(mode_of(file)));

  const std::string dangling = tests::path_of("link");
  REQUIRE_EQUAL(symlink("/nonexistent", dangling.c_str()), 0);
  CHECK_EQUAL(ensure_shared_directory(dangling.c_str()), 0);
  CHECK(S_ISLNK(mode_of(dangling)));
}

TEST("a parent that is missing, or is no directory, is an error that leaves nothing behind") {
  CHECK_EQUAL(ensure_shared_directory((path() + "/below").c_str()), -ENOENT);
  const std::string file = tests::path_of("file");
  tests::write_file(file, "");
  CHECK_EQUAL(ensure_shared_directory((file + "/below").c_str()), -ENOTDIR);
  CHECK_EQUAL(tests::entries(tests::directory()), 1);
}

TEST("a parent that isn't ours") {
  chmod(tests::directory().c_str(), 0755);
  tests::become_nobody();
  CHECK_EQUAL(ensure_shared_directory(path().c_str()), -EACCES);
}

TEST("a directory of others has the mode that they need, whatever the umask") {
  umask(077);
  CHECK_EQUAL(ensure_shared_directory(path().c_str(), 0777), 0);
  CHECK_EQUAL(mode_of(path()), static_cast<mode_t>(S_IFDIR | 0777));
}
