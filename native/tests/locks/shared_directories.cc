// Directories that all users of a machine share: made with their mode, and never left for another one that is put in
// their place.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

#include "locks/directory.h"
#include "locks/files.h"
#include "support/directory.h"
#include "support/mount.h"
#include "support/opened.h"
#include "support/processes.h"
#include "support/refuse.h"
#include "test.h"

using namespace gpu_owner::locks;

namespace {

constexpr long kOpenat2 = 437;
constexpr uid_t kOther = 12345;

std::string directory_path() { return tests::path_of("locks"); }

mode_t mode_of(const std::string& path) {
  struct stat status = {};
  REQUIRE_EQUAL(lstat(path.c_str(), &status), 0);
  return status.st_mode;
}

int make(const std::string& path, unsigned mode = 01777) { return Directory().make(path, mode); }
int open_at(const std::string& path) { return Directory().open(path); }

void check_new_directory() {
  umask(077);
  CHECK_EQUAL(make(directory_path()), 0);
  CHECK_EQUAL(mode_of(directory_path()), static_cast<mode_t>(S_IFDIR | 01777));
  CHECK_EQUAL(umask(0), 077u);
  CHECK_EQUAL(tests::entries(tests::directory()), 1);
}

void make_directory(const std::string& name, mode_t mode, uid_t owner = geteuid()) {
  const std::string path = tests::path_of(name);
  REQUIRE_EQUAL(mkdir(path.c_str(), 0700), 0);
  REQUIRE_EQUAL(chmod(path.c_str(), mode), 0);
  if (owner != geteuid() && chown(path.c_str(), owner, owner) != 0) tests::skip("only root can give files away");
}

void make_link(const std::string& target, const std::string& name, uid_t owner = geteuid()) {
  const std::string path = tests::path_of(name);
  REQUIRE_EQUAL(symlink(target.c_str(), path.c_str()), 0);
  if (owner != geteuid() && lchown(path.c_str(), owner, owner) != 0) tests::skip("only root can give files away");
}

// Whether the directory "real/below" is opened through a link to "real" that is in a directory of such a mode and
// owner.
int through_link(mode_t mode, uid_t around, uid_t owner) {
  make_directory("real", 0755);
  make_directory("real/below", 0755);
  make_directory("around", 0755);
  make_link("../real", "around/link", owner);
  REQUIRE_EQUAL(chmod(tests::path_of("around").c_str(), mode), 0);
  if (around != geteuid() && chown(tests::path_of("around").c_str(), around, around) != 0) tests::skip("needs root");
  const int relative = open_at(tests::path_of("around/link/below"));
  REQUIRE_EQUAL(unlink(tests::path_of("around/link").c_str()), 0);
  make_link(tests::path_of("real"), "around/link", owner);
  CHECK_EQUAL(open_at(tests::path_of("around/link/below/")), relative);
  const int made = make(tests::path_of("around/link/new"));
  CHECK_EQUAL(made, relative);
  CHECK_EQUAL(access(tests::path_of("real/new").c_str(), F_OK), made == 0 ? 0 : -1);
  return relative;
}

void check_way() {
  make_directory("one", 0755);
  make_directory("one/two", 0755);
  for (const char* each : {"one/two", "one//two/", "one/./two", "one/two/../two", "one/../one/two/."}) {
    CHECK_EQUAL(open_at(tests::path_of(each)), 0);
  }
  CHECK_EQUAL(open_at("/"), 0);
  CHECK_EQUAL(open_at("one"), -EINVAL);
  CHECK_EQUAL(open_at(""), -EINVAL);
  CHECK_EQUAL(open_at(tests::path_of("missing")), -ENOENT);
  CHECK_EQUAL(open_at(tests::path_of("missing/below")), -ENOENT);
  tests::write_file(tests::path_of("file"), "");
  CHECK_EQUAL(open_at(tests::path_of("file")), -ENOTDIR);
  CHECK_EQUAL(open_at(tests::path_of("file/below")), -ENOTDIR);
  make_link("one", "last");
  CHECK_EQUAL(open_at(tests::path_of("last")), -ELOOP);  // though it is our own
  CHECK_EQUAL(open_at(tests::path_of("last/")), -ELOOP);
  CHECK_EQUAL(open_at(tests::path_of("last/two")), 0);
  make_link("circle", "circle");
  CHECK_EQUAL(open_at(tests::path_of("circle/two")), -ELOOP);
  make_link("nowhere", "dangling");
  CHECK_EQUAL(open_at(tests::path_of("dangling/two")), -ENOENT);
}

}  // namespace

TEST("a new directory has mode 1777 under umask 077, which stays") { check_new_directory(); }

TEST("a new directory has mode 1777 on a kernel that can't refuse links") {
  tests::refuse(kOpenat2, ENOSYS);
  check_new_directory();
}

TEST("where no child can be made, a directory has the mode that the umask leaves") {
  // In a process of its own: LeakSanitizer makes a child at the end of this one.
  const pid_t process = tests::start([] {
    tests::refuse(SYS_clone, EAGAIN);
    umask(022);
    return -make(directory_path());
  });
  CHECK_EQUAL(tests::end_of(process), 0);
  CHECK_EQUAL(mode_of(directory_path()) & 07777, 01755u);
}

TEST("processes that make a directory at the same moment get the same one") {
  const int rounds = 60 / tests::slowness() + 5;
  for (int round = 0; round < rounds; round++) {
    tests::Channel go;
    std::vector<pid_t> processes;
    for (int i = 0; i < 8; i++) {
      processes.push_back(tests::start([&] {
        umask(077);
        go.close_for_saying();
        go.hear();
        const int error = make(directory_path());
        if (error != 0) return -error;
        struct stat status = {};
        return lstat(directory_path().c_str(), &status) == 0 && (status.st_mode & 07777) == 01777 ? 0 : 255;
      }));
    }
    go.close_for_saying();
    for (const pid_t process : processes) REQUIRE_EQUAL(tests::end_of(process), 0);
    REQUIRE_EQUAL(tests::entries(tests::directory()), 1);
    REQUIRE_EQUAL(rmdir(directory_path().c_str()), 0);
  }
}

TEST("what has the name already is left alone, whatever it is") {
  mkdir(directory_path().c_str(), 0700);
  tests::write_file(directory_path() + "/file", "");
  CHECK_EQUAL(make(directory_path()), 0);
  CHECK_EQUAL(mode_of(directory_path()) & 07777, 0700u);
  CHECK_EQUAL(tests::entries(directory_path()), 1);

  const std::string file = tests::path_of("file");
  tests::write_file(file, "");
  CHECK_EQUAL(make(file), -ENOTDIR);
  CHECK(S_ISREG(mode_of(file)));

  const std::string dangling = tests::path_of("link");
  REQUIRE_EQUAL(symlink("/nonexistent", dangling.c_str()), 0);
  CHECK_EQUAL(make(dangling), -ELOOP);
  CHECK(S_ISLNK(mode_of(dangling)));
}

TEST("a parent that is missing, or is no directory, is an error that leaves nothing behind") {
  CHECK_EQUAL(make(directory_path() + "/below"), -ENOENT);
  const std::string file = tests::path_of("file");
  tests::write_file(file, "");
  CHECK_EQUAL(make(file + "/below"), -ENOTDIR);
  CHECK_EQUAL(tests::entries(tests::directory()), 1);
}

TEST("a directory in a parent that isn't ours is refused") {
  chmod(tests::directory().c_str(), 0755);
  tests::become_nobody();
  CHECK_EQUAL(make(directory_path()), -EACCES);
}

TEST("a directory of others has the mode that they need, whatever the umask") {
  umask(077);
  CHECK_EQUAL(make(directory_path() + "/", 0777), 0);
  CHECK_EQUAL(mode_of(directory_path()), static_cast<mode_t>(S_IFDIR | 0777));
}

TEST("the way to a directory may have dots and links, and the directory itself is no link") { check_way(); }

TEST("the way to a directory has the same rules on a kernel that can't refuse links") {
  tests::refuse(kOpenat2, ENOSYS);
  check_way();
}

TEST("the way to a directory has the same rules in a container that refuses what it doesn't know") {
  tests::refuse(kOpenat2, EPERM);
  check_way();
}

TEST("a link of ours on the way, where nobody else can put any, is followed") {
  CHECK_EQUAL(through_link(0755, geteuid(), geteuid()), 0);
}

TEST("a link of ours in a sticky directory is followed") { CHECK_EQUAL(through_link(01777, geteuid(), geteuid()), 0); }

TEST("a link where everybody can put one is not followed") {
  CHECK_EQUAL(through_link(0777, geteuid(), geteuid()), -ELOOP);
}

TEST("a link where a group can put one is not followed") {
  CHECK_EQUAL(through_link(0775, geteuid(), geteuid()), -ELOOP);
}

TEST("somebody else's link in a sticky directory is not followed") {
  CHECK_EQUAL(through_link(01777, geteuid(), kOther), -ELOOP);
}

TEST("our link in somebody else's directory is not followed") {
  CHECK_EQUAL(through_link(0755, kOther, geteuid()), -ELOOP);
}

TEST("a directory that was moved, with a link in its place, is still where files are made and removed") {
  make_directory("locks", 01777);
  make_directory("target", 0755);
  tests::write_file(tests::path_of("target/old"), "precious");
  const Directory directory = tests::opened(directory_path());
  const int old = directory.create("old", "ours", 4, 0644);
  REQUIRE(old >= 0);
  REQUIRE_EQUAL(rename(directory_path().c_str(), tests::path_of("moved").c_str()), 0);
  make_link("target", "locks");
  REQUIRE(directory.open_shared("new", 8) >= 0);
  REQUIRE(directory.create("mark", "x", 1, 0644) >= 0);
  CHECK_EQUAL(directory.remove("old", old), 0);
  CHECK_EQUAL(tests::entries(tests::path_of("moved")), 2);
  CHECK_EQUAL(directory.names().size(), 2u);
  CHECK_EQUAL(tests::entries(tests::path_of("target")), 1);
  CHECK_EQUAL(tests::contents_of(tests::path_of("target/old")), "precious");
}

TEST("only the file that is meant is removed") {
  const Directory directory = tests::opened();
  const int ours = directory.create("mark", "ours", 4, 0644);
  REQUIRE_EQUAL(rename(tests::path_of("mark").c_str(), tests::path_of("elsewhere").c_str()), 0);
  CHECK_EQUAL(directory.remove("mark", ours), -ENOENT);
  tests::write_file(tests::path_of("mark"), "theirs");
  CHECK_EQUAL(directory.remove("mark", ours), -ESTALE);
  CHECK_EQUAL(directory.remove("elsewhere", ours), 0);
  CHECK_EQUAL(tests::contents_of(tests::path_of("mark")), "theirs");
}

TEST("a directory that is exchanged for a link to another one all the time is never left for that") {
  if (tests::under_valgrind()) tests::skip("under valgrind neither process is fast enough for a race");
  make_directory("target", 0755);
  tests::write_file(tests::path_of("target/old"), "precious");
  make_directory("hostile", 0755, kOther);
  make_directory("hostile/locks", 01777, kOther);
  make_link("../target", "hostile/link", kOther);
  const std::string locks = tests::path_of("hostile/locks"), link = tests::path_of("hostile/link");
  struct stat before = {}, after = {};
  REQUIRE_EQUAL(stat(tests::path_of("target").c_str(), &before), 0);
  tests::Channel ready;
  const pid_t hostile = tests::start([&] {
    ready.say();
    for (;;) syscall(SYS_renameat2, AT_FDCWD, locks.c_str(), AT_FDCWD, link.c_str(), 2 /* RENAME_EXCHANGE */);
    return 0;
  });
  ready.hear();
  const int rounds = 5000 / tests::slowness();
  int found = 0;
  // On a busy machine the other process may rest for long while the link is there.
  for (int i = 0; i < rounds || (found == 0 && i < 1000 * rounds); i++) {
    Directory directory;
    if (directory.make(locks, 01777) != 0) continue;
    found++;
    const int mark = directory.create("old", "x", 1, 0644);
    close(directory.open_shared("lock", 1));
    if (mark >= 0) directory.remove("old", mark);
    close(mark);
  }
  tests::kill_and_wait(hostile);
  CHECK(found > 0);
  REQUIRE_EQUAL(stat(tests::path_of("target").c_str(), &after), 0);
  CHECK_EQUAL(after.st_mode, before.st_mode);
  CHECK_EQUAL(after.st_ctim.tv_sec,
              before.st_ctim.tv_sec);  // as it was made: nothing came or went, not for a moment either
  CHECK_EQUAL(after.st_ctim.tv_nsec, before.st_ctim.tv_nsec);
  CHECK_EQUAL(tests::entries(tests::path_of("target")), 1);
  CHECK_EQUAL(tests::contents_of(tests::path_of("target/old")), "precious");
}

TEST("a directory that is made in a parent whose owner puts others in its place: none of them changes its mode") {
  if (tests::under_valgrind()) tests::skip("under valgrind neither process is fast enough for a race");
  make_directory("hostile", 0755, kOther);
  make_directory("hostile/private", 0700);  // ours, in a place that isn't
  const std::string locks = tests::path_of("hostile/locks"), kept = tests::path_of("hostile/private");
  tests::Channel ready;
  const pid_t hostile = tests::start([&] {
    ready.say();
    for (;;) {
      if (syscall(SYS_renameat2, AT_FDCWD, locks.c_str(), AT_FDCWD, kept.c_str(), 2) == 0) {
        syscall(SYS_renameat2, AT_FDCWD, locks.c_str(), AT_FDCWD, kept.c_str(), 2);
        rmdir(locks.c_str());
      }
    }
    return 0;
  });
  ready.hear();
  const int rounds = 1000 / tests::slowness();
  int modes = 0;
  for (int i = 0; i < rounds; i++) {
    make(locks);
    struct stat status = {};
    for (const std::string& each : {locks, kept}) {
      if (stat(each.c_str(), &status) == 0 && (status.st_mode & 07777) == 0700) modes |= 1;
    }
  }
  tests::kill_and_wait(hostile);
  CHECK_EQUAL(modes, 1);
  int private_ones = 0;
  for (const std::string& each : {locks, kept}) {
    struct stat status = {};
    if (stat(each.c_str(), &status) == 0) private_ones += (status.st_mode & 07777) == 0700;
  }
  CHECK_EQUAL(private_ones, 1);
}
