// A driver library's file, looked at before the linker does. Input: the file.
#include "dl/inspect.h"

#include <elf.h>
#include <errno.h>
#include <sys/stat.h>

#include "fuzz.h"

namespace {

constexpr const char* kPath = "/of the input";
constexpr int kFile = 1000;

const uint8_t* contents;
size_t length;

void fill(struct stat* status) {
  *status = {};
  status->st_mode = S_IFREG | 0644;
  status->st_size = static_cast<off_t>(length);
}

template <typename Part>
bool part(uint64_t offset, Part& out) {
  if (offset > length || length - offset < sizeof out) return false;
  memcpy(&out, contents + offset, sizeof out);
  return true;
}

// Whether the linker would map what the file lacks, by another way.
bool is_cut() {
  Elf64_Ehdr header;
  if (!part(0, header)) return false;
  for (uint64_t i = 0; i < header.e_phnum; i++) {
    Elf64_Phdr segment;
    if (!part(header.e_phoff + i * sizeof segment, segment)) return false;
  }
  for (uint64_t i = 0; i < header.e_phnum; i++) {
    Elf64_Phdr segment;
    part(header.e_phoff + i * sizeof segment, segment);
    if (segment.p_type == PT_LOAD && (segment.p_offset > length || segment.p_filesz > length - segment.p_offset))
      return true;
  }
  return false;
}

}  // namespace

extern "C" {

int __real_stat(const char* path, struct stat* status);
int __real_close(int file);
int __wrap_open(const char*, int, ...) { return kFile; }
int __wrap_close(int file) { return file == kFile ? 0 : __real_close(file); }
int __wrap_stat(const char* path, struct stat* status) {
  return strcmp(path, kPath) == 0 ? (fill(status), 0) : __real_stat(path, status);
}
int __wrap_fstat(int, struct stat* status) { return fill(status), 0; }
ssize_t __wrap_pread(int, void* data, size_t size, off_t offset) {
  if (offset < 0) return errno = EINVAL, -1;
  if (static_cast<uint64_t>(offset) >= length) return 0;
  const size_t left = length - static_cast<size_t>(offset);
  const size_t count = left < size ? left : size;
  memcpy(data, contents + offset, count);
  return static_cast<ssize_t>(count);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  contents = data;
  length = size;
  const gpu_owner::dl::Inspection found = gpu_owner::dl::inspect(kPath);
  EXPECT(fuzz::is_printable(found.problem.data(), found.problem.size()) && found.problem.size() < 200);
  EXPECT(found.loadable || !found.problem.empty());
  if (found.problem.empty() && size >= 16 && memcmp(data, ELFMAG, SELFMAG) == 0) EXPECT(!is_cut());
  return 0;
}

}  // extern "C"
