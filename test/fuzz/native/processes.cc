// Text that the keeper and the locks read in /proc. Input: which of them, then the files, in the order in which they
// are opened, with a byte 0xff behind each. A directory is a file whose words are its entries.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <set>

#include "fuzz.h"

// The functions that read are private, so they are in no header.
#include "keeper/descendants.cc"
#define private public
#include "keeper/group_signal_monitor.cc"
#undef private
#include "locks/held.cc"

namespace {

constexpr int kFirst = 1000;  // descriptors that stand for files of the input

std::vector<std::string> files;
size_t opened = 0;
std::vector<size_t> positions;  // by descriptor
bool has_lists = true;

bool is_file(int descriptor) {
  return descriptor >= kFirst && descriptor < kFirst + static_cast<int>(positions.size());
}

struct Directory {
  std::vector<std::string> names;
  size_t at = 0;
  dirent entry;
};
std::set<void*> directories;  // directories of the input that are open

// The files come round again, so that a process may be its own ancestor; but not for ever.
const std::string& next_file() {
  static const std::string nothing;
  return opened >= 4 * files.size() ? nothing : files[opened++ % files.size()];
}
std::vector<const std::string*> contents;

}  // namespace

extern "C" {

int __real_open(const char* path, int flags, ...);
int __wrap_open(const char* path, int flags, ...) {
  if (strncmp(path, "/proc/", 6) != 0) return __real_open(path, flags, 0);
  EXPECT(!(flags & (O_WRONLY | O_RDWR | O_CREAT)) && flags & O_CLOEXEC);
  const std::string& text = next_file();
  if (text == "!") return errno = ENOENT, -1;
  contents.push_back(&text);
  positions.push_back(0);
  return kFirst + static_cast<int>(positions.size()) - 1;
}

ssize_t __real_read(int file, void* data, size_t size);
ssize_t __wrap_read(int file, void* data, size_t size) {
  if (!is_file(file)) return __real_read(file, data, size);
  const std::string& text = *contents[static_cast<size_t>(file - kFirst)];
  size_t& at = positions[static_cast<size_t>(file - kFirst)];
  const size_t count = text.size() - at < size ? text.size() - at : size;
  // A read behind the end finds what would be taken for a number.
  memset(data, '7', size);
  memcpy(data, text.data() + at, count);
  at += count;
  return static_cast<ssize_t>(count);
}

int __real_close(int file);
int __wrap_close(int file) { return is_file(file) ? 0 : __real_close(file); }

bool is_proc(const char* path) { return strncmp(path, "/proc", 5) == 0; }

int __real_access(const char* path, int mode);
int __wrap_access(const char* path, int mode) {
  if (!is_proc(path)) return __real_access(path, mode);
  return has_lists ? 0 : -1;
}

DIR* __real_opendir(const char* path);
DIR* __wrap_opendir(const char* path) {
  if (!is_proc(path)) return __real_opendir(path);
  const std::string& text = next_file();
  if (text == "!") return nullptr;
  auto* directory = new Directory;
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find(' ', at);
    if (end == std::string::npos) end = text.size();
    directory->names.push_back(text.substr(at, end - at).substr(0, 255).c_str());
    at = end + 1;
  }
  directories.insert(directory);
  return reinterpret_cast<DIR*>(directory);
}

dirent* __real_readdir(DIR* stream);
dirent* __wrap_readdir(DIR* stream) {
  if (directories.count(stream) == 0) return __real_readdir(stream);
  auto* directory = reinterpret_cast<Directory*>(stream);
  if (directory->at == directory->names.size()) return nullptr;
  strcpy(directory->entry.d_name, directory->names[directory->at++].c_str());
  return &directory->entry;
}

int __real_closedir(DIR* stream);
int __wrap_closedir(DIR* stream) {
  if (directories.erase(stream) == 0) return __real_closedir(stream);
  delete reinterpret_cast<Directory*>(stream);
  return 0;
}

// Nothing but single processes is ever signalled: 0 and -1 are many.
int __wrap_kill(pid_t pid, int) {
  EXPECT(pid > 0);
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const uint8_t reader = input.byte();
  files = input.list(0xff);
  opened = 0;
  positions.clear();
  contents.clear();
  has_lists = (reader & 0x80) == 0;
  switch (reader & 3) {
    case 0: {
      char state = 0;
      char name[16];
      pid_t parent = -1;
      if (keeper::read_stat(1, &state, &parent, name)) {
        EXPECT(state != 0 && parent >= 0);
        const size_t length = strnlen(name, sizeof name);
        EXPECT(length < sizeof name && fuzz::is_printable(name, length));
        EXPECT(!strchr(name, '"') && !strchr(name, '\\'));
      }
      break;
    }
    case 1: {
      keeper::GroupSignalMonitor monitor;
      monitor.pid_ = 1;
      monitor.is_running();
      break;
    }
    case 2: gpu_owner::locks::has_lock(static_cast<int>(size % 65536)); break;
    case 3: {
      keeper::Descendants descendants;
      descendants.look_up(1);
      EXPECT(descendants.count() >= 0 && descendants.count() <= 4096);
      for (int i = 0; i < descendants.count() && i < keeper::Descendants::kListed; i++)
        EXPECT(descendants.at(i).pid > 0);
      keeper::signal_descendants(1, SIGTERM);
      break;
    }
  }
  return 0;
}

}  // extern "C"
