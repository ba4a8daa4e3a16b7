// File systems for a test, which go with its process.
#pragma once

#include <string>

namespace tests {

// Mounts a tmpfs of this size. The test is skipped where that isn't allowed.
void mount_small(const std::string& path, int kilobytes);

// Becomes a user that owns nothing. The test is skipped where this process may not.
void become_nobody();

}  // namespace tests
