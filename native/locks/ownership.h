// Which files may be locked, and written to, in directories where any user can link another user's file.
#pragma once

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gpu_owner::locks {

// Whether a lock there can only harm users who let every user lock the file. A backup or a prank may give a lock
// file a second name; a private file with several names is more likely a user's own that was linked here.
inline bool may_lock(const struct stat& file) {
  return S_ISREG(file.st_mode) && (file.st_nlink <= 1 || (file.st_mode & 0666) == 0666);
}

// Whether what is written there can't overwrite another user's file: it has no other name, or it begins as our lock
// files do, which only those can bring about who may write to it anyway.
inline bool may_write(int descriptor) {
  struct stat file;
  if (fstat(descriptor, &file) != 0) return false;
  if (file.st_nlink <= 1) return true;
  // Records of leases and waiters (the last one has a tag), safe-gpu's note, counts of claims, notes of idle GPUs.
  constexpr const char* kBeginnings[] = {"{\"user\":\"", "period ", "{\"granted\":", "{\"boot\":\"", "{\"order\":\""};
  char found[16] = {};
  if (pread(descriptor, found, sizeof found - 1, 0) < 0) return false;
  for (const char* beginning : kBeginnings) {
    if (strncmp(found, beginning, strlen(beginning)) == 0) return true;
  }
  return false;
}

}  // namespace gpu_owner::locks
