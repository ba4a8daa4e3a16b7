// Lock files, wherever they are; directory.h has how they are made and removed. Functions return a descriptor or 0, or
// -errno.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace gpu_owner::locks {

// Opens a regular file that is there. Never follows a symbolic link, never blocks on a FIFO; what isn't a regular file,
// or is to be locked though it has several names and isn't for everybody, is -ENXIO. `directory` as of openat(2).
int open_regular(int directory, const char* path, int access, bool to_lock);

// Opens a regular file for reading only, also with several names or another mode.
int open_for_probe(const char* path);

// 1 if the path still names the descriptor's file, 0 if not.
int names_same_file(int descriptor, const char* path);

// The magic number of the file system (statfs(2)), or -errno.
int64_t file_system_type(const char* path);

// Writes a block of a file, in one call. 0 or -errno; -EMLINK: it has other names, and may be another user's file.
int write_block(int descriptor, const char* data, int64_t size, int64_t offset = 0);

// Appends to a file that other processes append to as well, in one call. The offset at which the data stand, or -errno.
int64_t append(int descriptor, const char* data, int64_t size);

}  // namespace gpu_owner::locks
