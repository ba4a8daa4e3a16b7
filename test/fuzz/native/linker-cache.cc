// The linker's cache, /etc/ld.so.cache. Input: the file.
#include "dl/search.h"

#include <dlfcn.h>
#include <fcntl.h>

#include "fuzz.h"

namespace {

const uint8_t* contents;
size_t length, at;
constexpr int kFile = 1000;

}  // namespace

extern "C" {

int __real_open(const char* path, int flags, ...);
int __wrap_open(const char* path, int flags, ...) {
  if (strcmp(path, "/etc/ld.so.cache") != 0) return __real_open(path, flags, 0);
  EXPECT((flags & O_ACCMODE) == O_RDONLY);
  at = 0;
  return kFile;
}
int __real_close(int file);
int __wrap_close(int file) { return file == kFile ? 0 : __real_close(file); }
ssize_t __real_read(int file, void* data, size_t size);
ssize_t __wrap_read(int file, void* data, size_t size) {
  if (file != kFile) return __real_read(file, data, size);
  const size_t count = length - at < size ? length - at : size;
  memcpy(data, contents + at, count);
  at += count;
  return static_cast<ssize_t>(count);
}
// The directories of the search path are the same each time.
int __wrap_dlinfo(void*, int, void*) { return -1; }

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  contents = data;
  length = size;
  const std::string soname = "libcuda.so.1";
  for (const std::string& path : gpu_owner::dl::linker_candidates(soname)) {
    EXPECT(path.size() > soname.size() && path.size() < size);
    EXPECT(path.compare(path.size() - soname.size() - 1, std::string::npos, "/" + soname) == 0);
    EXPECT(path.find('\0') == std::string::npos);
  }
  return 0;
}

}  // extern "C"
