// Files and directories that all users of a machine share.
//
// They have their mode from the first moment on, whatever the umask, and also if the creator dies half-way: they are made
// under no name and linked into place. Functions return a descriptor or 0, or -errno.
#pragma once

#include <cstdint>
#include <string>

namespace gpu_owner::locks {

// Makes a directory with this mode, whatever the umask, if nothing has that name. 0 also when something has.
int ensure_shared_directory(const char* path, unsigned mode = 01777);

// Opens a regular file for reading and writing, or makes it with mode 0666 and `size` bytes of zeros that need no more disk
// space later. Never follows a symbolic link, never blocks on a FIFO; what isn't a regular file, or has several names and isn't for
// everybody, is -ENXIO.
int open_shared_file(const char* path, int64_t size);

// Makes a file with mode 0666 and this content, which nobody ever sees without it. -EEXIST where anything has that name.
int create_file(const char* path, const char* data, int64_t size);

// Opens for reading only, whatever names and mode a regular file has; never creates.
int open_for_probe(const char* path);

// Opens for reading only, which is enough for a shared lock, under the rules of open_shared_file; never creates.
int open_to_share(const char* path);

enum class Presence {
  unclear,   // something that calls for a closer look: locked, a link, not for everybody, not to be seen
  missing,   // nothing has that name
  untouched  // a regular file for everybody on which no OFD lock reaches that byte
};
// What is at a path, for those who want a lock on that byte. Takes nothing.
Presence presence_of(const char* path, int64_t byte);

// The same for many at once. `names` has two lines for each of the flags: a lock's file, and one that is made only if that has
// had a holder. A flag stays set where the first is missing, or untouched while the second is missing.
void keep_untouched(const char* directory, const std::string& names, int64_t byte, uint8_t* untouched, size_t count);

// 1 if the path still names the file behind the descriptor, 0 if not.
int names_same_file(int descriptor, const char* path);

// The magic number of the file system (statfs(2)), or -errno.
int64_t file_system_type(const char* path);

// Writes a block of a file made by open_shared_file, in one call. 0 or -errno; -EMLINK: it has other names, and may be somebody
// else's file.
int write_block(int descriptor, const char* data, int64_t size, int64_t offset = 0);

}  // namespace gpu_owner::locks
