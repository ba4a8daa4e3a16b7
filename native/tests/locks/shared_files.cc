// Files that all users of a machine share: right from their first moment on, whichever user makes them.
#include "locks/directory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <set>
#include <vector>

#include "locks/files.h"
#include "support/directory.h"
#include "support/opened.h"
#include "support/processes.h"
#include "support/refuse.h"
#include "test.h"

using namespace gpu_owner::locks;

namespace {

constexpr int64_t kSize = 4096;

std::string shared_path() { return tests::path_of("file"); }

struct stat status_of(int descriptor) {
  struct stat status = {};
  REQUIRE_EQUAL(fstat(descriptor, &status), 0);
  return status;
}

void check_new_file() {
  umask(077);
  const int file = tests::opened().open_shared("file", kSize);
  REQUIRE(file >= 0);
  const struct stat status = status_of(file);
  CHECK_EQUAL(status.st_mode, static_cast<mode_t>(S_IFREG | 0666));
  CHECK_EQUAL(status.st_size, kSize);
  CHECK(status.st_blocks * 512 >= kSize);  // no write can run out of disk space later
  CHECK_EQUAL(status.st_nlink, 1u);
  CHECK_EQUAL(fcntl(file, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  CHECK_EQUAL(fcntl(file, F_GETFL) & O_ACCMODE, O_RDWR);
  CHECK_EQUAL(tests::contents_of(shared_path()), std::string(kSize, '\0'));
  CHECK_EQUAL(tests::entries(tests::directory()), 1);
  CHECK_EQUAL(names_same_file(file, shared_path().c_str()), 1);
  close(file);
}

// Processes that make the same file at the same moment, again and again.
void check_race() {
  constexpr int kProcesses = 8;
  const int rounds = 60 / tests::slowness() + 5;
  for (int round = 0; round < rounds; round++) {
    tests::Channel go, inodes;
    std::vector<pid_t> processes;
    for (int i = 0; i < kProcesses; i++) {
      processes.push_back(tests::start([&] {
        umask(077);
        go.close_for_saying();
        go.hear();
        const int file = tests::opened().open_shared("file", kSize);
        if (file < 0) return -file;  // the error
        const struct stat status = status_of(file);
        if ((status.st_mode & 0777) != 0666 || status.st_size != kSize) return 254;
        return write(inodes.saying(), &status.st_ino, sizeof status.st_ino) == sizeof status.st_ino ? 0 : 255;
      }));
    }
    go.close_for_saying();
    for (const pid_t process : processes) REQUIRE_EQUAL(tests::end_of(process), 0);
    inodes.close_for_saying();
    const std::string all = tests::read_all(inodes.hearing());
    std::set<std::string> different;
    for (size_t at = 0; at < all.size(); at += sizeof(ino_t)) different.insert(all.substr(at, sizeof(ino_t)));
    REQUIRE_EQUAL(all.size(), kProcesses * sizeof(ino_t));
    REQUIRE_EQUAL(different.size(), 1u);
    REQUIRE_EQUAL(tests::entries(tests::directory()), 1);
    REQUIRE_EQUAL(unlink(shared_path().c_str()), 0);
  }
}

// File systems without O_TMPFILE (NFS, some FUSE) say so in one of several ways.
void refuse_unnamed_files(int error) { tests::refuse(SYS_openat, error, 2, O_TMPFILE, O_TMPFILE); }

}  // namespace

TEST("a new file has its mode and its size under umask 077") { check_new_file(); }

TEST("a new file has its mode and its size without unnamed files in its file system") {
  refuse_unnamed_files(EOPNOTSUPP);
  check_new_file();
}

TEST("a new file has its mode and its size where the kernel takes an unnamed file for a directory") {
  refuse_unnamed_files(EISDIR);
  check_new_file();
}

TEST("a new file has its mode and its size on a file system that can't reserve space") {
  tests::refuse(SYS_fallocate, EOPNOTSUPP);
  check_new_file();
}

TEST("processes that make a file at the same moment get the same one") { check_race(); }

TEST("processes that make a file at the same moment get the same one without unnamed files in its file system") {
  refuse_unnamed_files(EOPNOTSUPP);
  check_race();
}

TEST("a new file is whole, and the same for all, on a file system that can't rename without replacing either") {
  refuse_unnamed_files(EOPNOTSUPP);
  tests::refuse(SYS_renameat2, EINVAL);
  check_new_file();
  unlink(shared_path().c_str());
  check_race();
}

TEST("a file that others make and remove all the time can be had") {
  const pid_t remover = tests::start([] {
    for (;;) unlink(shared_path().c_str());
    return 0;
  });
  const int rounds = 300 / tests::slowness();
  for (int i = 0; i < rounds; i++) {
    const int file = tests::opened().open_shared("file", kSize);
    REQUIRE(file >= 0);
    REQUIRE_EQUAL(status_of(file).st_size, kSize);
    close(file);
  }
  tests::kill_and_wait(remover);
}

TEST("a creator that is killed half-way leaves a whole file or none") {
  const int rounds = 100 / tests::slowness();
  for (int i = 0; i < rounds; i++) {
    tests::Channel ready;
    const pid_t creator = tests::start([&] {
      ready.say();
      for (;;) {
        close(tests::opened().open_shared("file", kSize));
        unlink(shared_path().c_str());
      }
      return 0;
    });
    ready.hear();
    usleep(static_cast<useconds_t>(i % 50 * 10));
    tests::kill_and_wait(creator);
    struct stat status = {};
    if (stat(shared_path().c_str(), &status) != 0) continue;
    REQUIRE_EQUAL(status.st_mode & 0777, 0666u);
    REQUIRE_EQUAL(status.st_size, kSize);
    REQUIRE_EQUAL(tests::entries(tests::directory()), 1);
  }
}

TEST("a file that exists is taken as it is") {
  tests::write_file(shared_path(), "content");
  chmod(shared_path().c_str(), 0600);
  const int file = tests::opened().open_shared("file", kSize);
  REQUIRE(file >= 0);
  CHECK_EQUAL(status_of(file).st_size, 7);
  CHECK_EQUAL(status_of(file).st_mode & 0777, 0600u);
  CHECK_EQUAL(tests::contents_of(shared_path()), "content");
}

TEST("a file of no size can be made") {
  const int file = tests::opened().open_shared("file", 0);
  REQUIRE(file >= 0);
  CHECK_EQUAL(status_of(file).st_size, 0);
}

TEST("a name that leads elsewhere is refused") {
  REQUIRE_EQUAL(mkdir(tests::path_of("below").c_str(), 0777), 0);
  tests::write_file(tests::path_of("below/file"), "");
  for (const char* name : {"below/file", "/etc/passwd", "..", "../file", ""}) {
    CHECK_EQUAL(tests::opened().open_shared(name, 1), -EINVAL);
    CHECK_EQUAL(tests::opened().open_for_probe(name), -EINVAL);
    CHECK_EQUAL(tests::opened().create(name, "x", 1, 0644), -EINVAL);
    CHECK_EQUAL(tests::opened().remove(name, 0), -EINVAL);
    CHECK_EQUAL(tests::opened().access(name, R_OK), -EINVAL);
  }
  CHECK_EQUAL(tests::entries(tests::directory()), 1);
}

TEST("a block is written at the start") {
  const int file = tests::opened().open_shared("file", 8);
  CHECK_EQUAL(write_block(file, "12345678", 8), 0);
  CHECK_EQUAL(write_block(file, "abc", 3), 0);
  CHECK_EQUAL(tests::contents_of(shared_path()), "abc45678");
  const int readable = open_for_probe(shared_path().c_str());
  CHECK_EQUAL(write_block(readable, "x", 1), -EBADF);
}

TEST("opening for a probe never creates and never allows writing") {
  CHECK_EQUAL(open_for_probe(shared_path().c_str()), -ENOENT);
  CHECK_EQUAL(tests::entries(tests::directory()), 0);
  tests::write_file(shared_path(), "content");
  const int file = open_for_probe(shared_path().c_str());
  REQUIRE(file >= 0);
  CHECK_EQUAL(fcntl(file, F_GETFL) & O_ACCMODE, O_RDONLY);
  CHECK_EQUAL(fcntl(file, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST("a file that is made with its content has it from the first moment on, and replaces nothing") {
  umask(077);
  const int file = tests::opened().create("file", "content", 7, 0644);
  REQUIRE(file >= 0);
  CHECK_EQUAL(status_of(file).st_mode, static_cast<mode_t>(S_IFREG | 0644));
  CHECK_EQUAL(tests::contents_of(shared_path()), "content");
  CHECK_EQUAL(tests::opened().create("file", "other", 5, 0644), -EEXIST);
  CHECK_EQUAL(tests::contents_of(shared_path()), "content");
  CHECK_EQUAL(tests::entries(tests::directory()), 1);
  unlink(shared_path().c_str());
  REQUIRE_EQUAL(symlink("elsewhere", shared_path().c_str()), 0);
  CHECK_EQUAL(tests::opened().create("file", "other", 5, 0644), -EEXIST);
  CHECK_EQUAL(tests::entries(tests::directory()), 1);
  close(file);
}
