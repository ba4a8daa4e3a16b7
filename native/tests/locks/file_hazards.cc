// Things that may stand where a lock file should: an attack, an accident, or a full disk. Nothing of it is followed,
// waited for, written to or left half-made.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "locks/files.h"
#include "locks/heartbeat.h"
#include "locks/locks.h"
#include "support/directory.h"
#include "support/mount.h"
#include "support/opened.h"
#include "support/processes.h"
#include "support/stopwatch.h"
#include "test.h"

using namespace gpu_owner::locks;

namespace {

constexpr int64_t kSize = 4096;

std::string hazard_path() { return tests::path_of("file"); }

void check_refused(int error) {
  const int before = tests::open_descriptors();
  const tests::Stopwatch watch;
  CHECK_EQUAL(tests::opened().open_shared("file", kSize), error);
  CHECK_EQUAL(tests::opened().open_for_probe("file"), error);
  CHECK(watch.milliseconds() < 1000 * tests::slowness());
  CHECK_EQUAL(tests::open_descriptors(), before);
}

}  // namespace

TEST("a symbolic link is not followed, wherever it leads") {
  const std::string target = tests::path_of("target");
  tests::write_file(target, "precious");
  REQUIRE_EQUAL(symlink(target.c_str(), hazard_path().c_str()), 0);
  check_refused(-ELOOP);
  CHECK_EQUAL(tests::contents_of(target), "precious");
  unlink(target.c_str());  // now it dangles
  check_refused(-ELOOP);
  CHECK_EQUAL(access(target.c_str(), F_OK), -1);
}

TEST("a file with a second name that isn't for everybody, and so perhaps somebody else's, can only be probed") {
  const std::string target = tests::path_of("target");
  tests::write_file(target, "precious");
  chmod(target.c_str(), 0644);
  REQUIRE_EQUAL(link(target.c_str(), hazard_path().c_str()), 0);
  CHECK_EQUAL(tests::opened().open_shared("file", kSize), -ENXIO);
  CHECK(tests::opened().open_for_probe("file") >= 0);
  CHECK_EQUAL(tests::contents_of(target), "precious");
}

TEST("a file with a second name that is for everybody can be locked, but isn't written to") {
  const std::string target = tests::path_of("target");
  tests::write_file(target, "precious");
  chmod(target.c_str(), 0666);
  REQUIRE_EQUAL(link(target.c_str(), hazard_path().c_str()), 0);
  const int file = tests::opened().open_shared("file", kSize);
  REQUIRE(file >= 0);
  CHECK_EQUAL(try_lock(file, Kind::ofd, Mode::exclusive, {0, 1}), 0);
  CHECK_EQUAL(write_block(file, "mine", 4), -EMLINK);
  CHECK_EQUAL(write_heartbeat(file, 4064), EMLINK);
  CHECK_EQUAL(tests::contents_of(target), "precious");
}

TEST("a lock file of ours that got a second name is written to as before") {
  for (const std::string before :
       {"{\"user\":\"alice\"}", "{\"granted\":1}", "{\"boot\":\"8a\"}", "{\"order\":\"1 0\"}", "period 1"}) {
    const int file = tests::opened().open_shared("file", kSize);
    REQUIRE_EQUAL(write_block(file, before.c_str(), before.size()), 0);
    REQUIRE_EQUAL(link(hazard_path().c_str(), tests::path_of("backup").c_str()), 0);
    std::string after = before;
    std::replace(after.begin(), after.end(), '1', '2');
    CHECK_EQUAL(write_block(file, after.c_str(), after.size()), 0);
    CHECK_EQUAL(tests::contents_of(hazard_path()).substr(0, after.size()), after);
    close(file);
    unlink(hazard_path().c_str());
    unlink(tests::path_of("backup").c_str());
  }
}

TEST("a FIFO doesn't block") {
  REQUIRE_EQUAL(mkfifo(hazard_path().c_str(), 0666), 0);
  check_refused(-ENXIO);
}

TEST("a directory is no file") {
  REQUIRE_EQUAL(mkdir(hazard_path().c_str(), 0777), 0);
  check_refused(-ENXIO);
}

TEST("a socket is no file") {
  const int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  REQUIRE_EQUAL(chdir(tests::directory().c_str()), 0);  // the address has little room
  snprintf(address.sun_path, sizeof address.sun_path, "file");
  REQUIRE_EQUAL(bind(server, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  check_refused(-ENXIO);
}

TEST("a device is no file") {
  if (mknod(hazard_path().c_str(), S_IFCHR | 0666, makedev(1, 3)) != 0) tests::skip("devices can't be made here");
  const int file = open(hazard_path().c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) tests::skip("devices can't be opened here");
  close(file);
  check_refused(-ENXIO);
}

TEST("somebody else's file that may only be read can be probed") {
  tests::write_file(hazard_path(), "content");
  chmod(hazard_path().c_str(), 0644);
  tests::become_nobody();
  CHECK_EQUAL(tests::opened().open_shared("file", kSize), -EACCES);
  CHECK(tests::opened().open_for_probe("file") >= 0);
}

TEST("somebody else's private file is refused") {
  tests::write_file(hazard_path(), "content");
  chmod(hazard_path().c_str(), 0600);
  tests::become_nobody();
  check_refused(-EACCES);
}

TEST("a new file in somebody else's directory is refused") {
  tests::become_nobody();
  CHECK_EQUAL(tests::opened().open_shared("file", kSize), -EACCES);
}

TEST("somebody else's file in a sticky directory can be used by root too") {
  // With fs.protected_regular, opening it with O_CREAT would fail.
  chmod(tests::directory().c_str(), 01777);
  const int made = tests::end_of(tests::start([] {
    tests::become_nobody();
    return tests::opened().open_shared("file", kSize) >= 0 ? 0 : 1;
  }));
  if (made == 77) tests::skip("only root can become another user");
  REQUIRE_EQUAL(made, 0);
  CHECK(tests::opened().open_shared("file", kSize) >= 0);
}

TEST("a full file system: an error, and no file without its space") {
  const std::string disk = tests::path_of("disk");
  tests::mount_small(disk, 64);
  CHECK_EQUAL(tests::opened(disk).open_shared("file", 1024 * 1024), -ENOSPC);
  CHECK_EQUAL(tests::entries(disk), 0);
  CHECK(tests::opened(disk).open_shared("file", kSize) >= 0);
  // Reserved space can be written when nothing else can.
  const int filler = tests::open_file(disk + "/filler");
  char block[4096] = {1};
  while (write(filler, block, sizeof block) > 0) {
  }
  CHECK_EQUAL(errno, ENOSPC);
  const int again = tests::opened(disk).open_shared("file", kSize);
  REQUIRE(again >= 0);
  CHECK_EQUAL(write_block(again, block, sizeof block), 0);
}

TEST("a file or directory on a read-only file system is refused") {
  const std::string disk = tests::path_of("disk");
  tests::mount_small(disk, 64);
  if (mount("none", disk.c_str(), "none", MS_REMOUNT | MS_RDONLY, nullptr) != 0) tests::skip("it can't be made so");
  CHECK_EQUAL(tests::opened(disk).open_shared("file", kSize), -EROFS);
  CHECK_EQUAL(Directory().make(disk + "/locks", 01777), -EROFS);
}

TEST("the type of a file system is told") {
  const std::string disk = tests::path_of("disk");
  tests::mount_small(disk, 64);
  CHECK_EQUAL(file_system_type(disk.c_str()), int64_t{0x01021994});  // tmpfs
  CHECK_EQUAL(file_system_type((disk + "/missing").c_str()), int64_t{-ENOENT});
  CHECK(file_system_type("/proc") == 0x9fa0);
}
