// Files of a test.
#pragma once

#include <string>

namespace tests {

// An empty directory for the test that runs; removed when it has ended.
const std::string& directory();
// A path in it.
std::string path_of(const std::string& name);

// Makes a file with this content.
void write_file(const std::string& path, const std::string& content);

// Opens a file for reading and writing, made if need be. The test ends if that fails.
int open_file(const std::string& path);

int entries(const std::string& path);

// For the runner.
void set_directory(const std::string& path);
void remove_all(const std::string& path);

}  // namespace tests
