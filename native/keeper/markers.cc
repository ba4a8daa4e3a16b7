#include "keeper/markers.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "keeper/arguments.h"
#include "keeper/text.h"
#include "locks/locks.h"

namespace keeper {

namespace {

using namespace gpu_owner;

constexpr size_t kMaxContent = 4096;
// Numbers of all lengths take the same room, so that one write replaces another as a whole.
constexpr int kPidWidth = 11;

bool is_pid_of_ours(char* content, const Marker& marker, pid_t predecessor) {
  content[strcspn(content, " \n")] = '\0';
  long pid = 0;
  if (!parse_number(content, INT_MAX, &pid)) return false;
  return pid == getpid() || pid == predecessor || strcmp(content, marker.token) == 0;
}

// PIDs are less.
constexpr int kMaxPid = 1 << 22;

bool is_named(const Marker& marker) {
  struct stat ours, named;
  if (fstat(marker.fd, &ours) != 0) return false;
  if (fstatat(marker.directory, marker.name, &named, AT_SYMLINK_NOFOLLOW) != 0) return false;
  return ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
}

void write_pid(const Marker& marker, pid_t pid) {
  Buffer<kPidWidth + 2> text;
  text.add("%-*d\n", kPidWidth, pid);
  if (pwrite(marker.fd, text.c_str(), text.length(), 0) < 0) return;  // the PID stays as it is
}

// From now on, the locked byte is that of our PID; of a worker's it stays, as other tasks follow.
void sign_shared(const Marker& marker, pid_t predecessor, bool is_task) {
  if (locks::try_lock(marker.fd, locks::Kind::ofd, locks::Mode::shared, {getpid(), 1}) != 0 || is_task) return;
  const pid_t earlier[] = {static_cast<pid_t>(atoi(marker.token)), predecessor};
  for (const pid_t before : earlier) {
    if (before > 0 && before != getpid()) locks::unlock(marker.fd, locks::Kind::ofd, {before, 1});
  }
}

// The last one removes it. Otherwise its PID becomes that of one that goes on.
void leave_shared(const Marker& marker) {
  locks::unlock(marker.fd, locks::Kind::ofd, {1, kMaxPid});
  locks::Conflict other;
  if (locks::probe(marker.fd, locks::Mode::exclusive, {1, kMaxPid}, other) != 0) return;
  if (!other.exists) {
    if (is_named(marker)) unlinkat(marker.directory, marker.name, 0);
  } else if (marker.is_pid) {
    write_pid(marker, static_cast<pid_t>(other.range.start));
  }
}

// Through the descriptors, never through a path: it may lead elsewhere by now. With the descriptor open, the file
// system can't give the inode's number to another file.
bool is_ours(const Marker& marker, pid_t predecessor = 0) {
  if (!is_named(marker)) return false;
  char content[kMaxContent + 1];
  const ssize_t length = pread(marker.fd, content, kMaxContent, 0);
  if (length < 0) return false;
  content[length] = '\0';
  return marker.is_pid ? is_pid_of_ours(content, marker, predecessor) : strstr(content, marker.token) != nullptr;
}

}  // namespace

void sign_markers(const Options& options, pid_t predecessor) {
  for (int i = 0; i < options.markers.count; ++i) {
    const Marker& marker = options.markers.markers[i];
    if (marker.is_shared && marker.is_pid) sign_shared(marker, predecessor, options.mode == Mode::task);
    if (marker.is_pid && is_ours(marker, predecessor)) write_pid(marker, getpid());
  }
}

void remove_markers(const Options& options) {
  for (int i = 0; i < options.markers.count; ++i) {
    const Marker& marker = options.markers.markers[i];
    if (marker.is_shared) {
      leave_shared(marker);
    } else if (is_ours(marker)) {
      unlinkat(marker.directory, marker.name, 0);
    }
  }
}

}  // namespace keeper
