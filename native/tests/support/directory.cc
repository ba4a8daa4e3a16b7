#include "support/directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "test.h"

namespace tests {
namespace {

std::string& current() {
  static auto* path = new std::string;
  return *path;
}

int remove_one(const char* path, const struct stat*, int, FTW*) { return remove(path); }

}  // namespace

const std::string& directory() { return current(); }
std::string path_of(const std::string& name) { return current() + "/" + name; }
void set_directory(const std::string& path) { current() = path; }

void remove_all(const std::string& path) { nftw(path.c_str(), remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT); }

void write_file(const std::string& path, const std::string& content) {
  const int descriptor = open_file(path);
  const bool written = write(descriptor, content.data(), content.size()) == static_cast<ssize_t>(content.size());
  close(descriptor);
  REQUIRE(written);
}

int open_file(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  REQUIRE(descriptor >= 0);
  return descriptor;
}

int entries(const std::string& path) {
  DIR* list = opendir(path.c_str());
  if (list == nullptr) return -1;
  int count = 0;
  while (const dirent* entry = readdir(list))
    count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
  closedir(list);
  return count;
}

}  // namespace tests
