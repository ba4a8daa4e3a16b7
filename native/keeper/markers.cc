#include "keeper/markers.h"

#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "keeper/arguments.h"
#include "keeper/text.h"

namespace keeper {

namespace {

constexpr size_t kMaxContent = 4096;
// Numbers of all lengths take the same room, so that one write replaces another as a whole.
constexpr int kPidWidth = 11;

bool is_pid_of_ours(char* content, const Marker& marker, pid_t predecessor) {
  content[strcspn(content, " \n")] = '\0';
  long pid = 0;
  if (!parse_number(content, INT_MAX, &pid)) return false;
  return pid == getpid() || pid == predecessor || strcmp(content, marker.token) == 0;
}

// Through the descriptors, never through a path: it may lead elsewhere by now. With the descriptor open, the file
// system can't give the inode's number to another file.
bool is_ours(const Marker& marker, pid_t predecessor = 0) {
  struct stat ours, named;
  if (fstat(marker.fd, &ours) != 0) return false;
  if (fstatat(marker.directory, marker.name, &named, AT_SYMLINK_NOFOLLOW) != 0) return false;
  if (ours.st_dev != named.st_dev || ours.st_ino != named.st_ino) return false;
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
    if (!marker.is_pid || !is_ours(marker, predecessor)) continue;
    Buffer<kPidWidth + 2> text;
    text.add("%-*d\n", kPidWidth, getpid());
    if (pwrite(marker.fd, text.c_str(), text.length(), 0) < 0) continue;
  }
}

void remove_markers(const Options& options) {
  for (int i = 0; i < options.markers.count; ++i) {
    const Marker& marker = options.markers.markers[i];
    if (is_ours(marker)) unlinkat(marker.directory, marker.name, 0);
  }
}

}  // namespace keeper
