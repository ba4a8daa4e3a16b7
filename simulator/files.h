// The directories and files that several users share: made whole or not at all, whatever the umask.
#pragma once
#include <cstddef>
#include <cstdint>

#include "simulator/error.h"

namespace simulator {

constexpr size_t kPathSize = 4096;

// The base directory of all simulated machines, from GPU_OWNER_SIMULATE_DIR, TMPDIR and the user.
bool base_directory(char (&out)[kPathSize], bool* is_default, Error* error);

// Opens a directory, or makes it with mode 01777. A symbolic link is refused unless `follow_link`.
int open_shared_directory(const char* path, bool follow_link, Error* error);

// Opens a regular file for reading and writing. -1 with errno ENOENT: there is none. -2: error is set.
int open_shared_file(int directory, const char* directory_path, const char* name, Error* error);

// Makes a file with mode 0666 that appears complete under its name. False without error: another process made it
// first. `fill` writes the contents.
enum class Made { yes, exists, failed };
Made make_shared_file(int directory, const char* directory_path, const char* name,
                      bool (*fill)(int file, const void* argument, Error* error), const void* argument, Error* error);

struct FileFacts {
  bool regular;
  uint64_t size;
  uint64_t inode;
};
bool facts_of(int file, FileFacts* out);

}  // namespace simulator
