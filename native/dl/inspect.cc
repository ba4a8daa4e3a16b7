#include "dl/inspect.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "process/unique_fd.h"

namespace gpu_owner::dl {
namespace {

#if defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
#else
constexpr uint16_t kMachine = EM_X86_64;
#endif

std::string name_of(uint16_t machine) {
  switch (machine) {
    case EM_X86_64: return "x86-64";
    case EM_386: return "32-bit x86";
    case EM_AARCH64: return "arm64";
    case EM_ARM: return "32-bit Arm";
    case EM_PPC64: return "POWER";
    case EM_RISCV: return "RISC-V";
  }
  char text[32];
  snprintf(text, sizeof text, "ELF machine %u", machine);
  return text;
}

template <typename Part>
bool read_part(int file, uint64_t offset, Part& part) {
  return pread(file, &part, sizeof part, static_cast<off_t>(offset)) == static_cast<ssize_t>(sizeof part);
}

// Where the last segment ends that the linker will map; 0 where it will find the headers wanting itself.
uint64_t end_of_segments(int file, const Elf64_Ehdr& header) {
  uint64_t end = 0;
  for (uint64_t i = 0; i < header.e_phnum; i++) {
    Elf64_Phdr segment;
    if (!read_part(file, header.e_phoff + i * sizeof segment, segment)) return 0;
    if (segment.p_type != PT_LOAD) continue;
    const uint64_t last = segment.p_offset + segment.p_filesz;
    end = std::max(end, last < segment.p_offset ? UINT64_MAX : last);
  }
  return end;
}

Inspection inspect_file(int file, uint64_t size) {
  Elf64_Ehdr header;
  if (!read_part(file, 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return {};
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
      header.e_machine != kMachine) {
    // The linker passes over such files, and says that there is none.
    return {true,
            "it is a library for " + name_of(header.e_machine) + ", and this program is for " + name_of(kMachine)};
  }
  const uint64_t end = end_of_segments(file, header);
  if (end <= size) return {};
  char text[128];
  snprintf(text, sizeof text, "it is cut off: it has %llu bytes of at least %llu",
           static_cast<unsigned long long>(size), static_cast<unsigned long long>(end));
  return {false, text};
}

}  // namespace

Inspection inspect(const std::string& path) {
  // Opening some devices does something, so they aren't even opened.
  struct stat status;
  if (stat(path.c_str(), &status) != 0) return {};
  if (!S_ISREG(status.st_mode)) return {false, "it is not a regular file"};
  // A write to the file between this look and the linker's can still crash this process.
  const process::UniqueFd file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file || fstat(file.get(), &status) != 0) return {};
  return inspect_file(file.get(), static_cast<uint64_t>(status.st_size));
}

}  // namespace gpu_owner::dl
