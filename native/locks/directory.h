// A directory that others may change, held by a descriptor: moving it, or putting a link in its place, changes
// nothing about where a file is made, opened or removed.
//
// Files have their mode from the first moment on, despite the umask, and also if the creator dies half-way. Functions
// return a descriptor or 0, or -errno. A name is that of an entry of the directory itself: one with a slash is -EINVAL.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "process/unique_fd.h"

namespace gpu_owner::locks {

class Directory {
 public:
  // Opens what is at an absolute path. Symbolic links on the way count only if root or this user must have put them
  // there; the last part is never one. -ELOOP where that is so, -ENOTDIR for what is no directory.
  int open(const std::string& path);
  // The same, and creates the last part with this mode, despite the umask, if it is missing.
  int make(const std::string& path, unsigned mode);

  // Good for looking (fstat) and for system calls that take a directory's; not for reading. -1: nothing is open.
  int descriptor() const { return descriptor_.get(); }

  // Opens a regular file for reading and writing, or makes it with `size` bytes of zeros that need no more disk space
  // later. Never follows a symbolic link, never blocks on a FIFO; what isn't a regular file, or has several names and
  // isn't for everybody, is -ENXIO.
  int open_shared(const char* name, int64_t size, unsigned mode = 0666) const;
  // Opens a regular file for reading only, also with several names or another mode; never creates one.
  int open_for_probe(const char* name) const;
  // Opens for reading only, which is enough for a shared lock, under the rules of open_shared; never makes one.
  int open_to_share(const char* name) const;
  // Opens the directory itself for reading: its bytes can be probed, and locked in shared mode.
  int open_itself() const;
  // The same, which stays open with this object: for probes.
  int itself() const;
  // Makes a file that is never seen without this content; `locked`: nor without a lock on its first byte, which the
  // descriptor holds. -EEXIST where anything has that name.
  int create(const char* name, const char* data, int64_t size, unsigned mode, bool locked = false) const;
  // Removes the descriptor's file. -ESTALE if the name belongs to another file.
  int remove(const char* name, int descriptor) const;

  // As access(2): whether this user could; 0 or -errno. "." is the directory.
  int access(const char* name, int mode) const;
  std::vector<std::string> names() const;

 private:
  process::UniqueFd descriptor_;
  mutable process::UniqueFd readable_;
};

}  // namespace gpu_owner::locks
