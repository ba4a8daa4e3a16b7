// Files that the linker would not survive, or says the wrong thing about.
#include "dl/inspect.h"

#include <elf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "dl/library.h"
#include "dl/search.h"
#include "support/directory.h"
#include "support/processes.h"
#include "support/stub.h"
#include "test.h"

using namespace gpu_owner;

namespace {

// The file ends here, or later.
size_t end_of_segments(const std::string& library) {
  Elf64_Ehdr header;
  std::memcpy(&header, library.data(), sizeof header);
  size_t end = 0;
  for (int i = 0; i < header.e_phnum; i++) {
    Elf64_Phdr segment;
    std::memcpy(&segment, &library[header.e_phoff + static_cast<size_t>(i) * sizeof segment], sizeof segment);
    if (segment.p_type == PT_LOAD) end = std::max(end, static_cast<size_t>(segment.p_offset + segment.p_filesz));
  }
  return end;
}

std::string error_of(const std::string& path) {
  const auto opened = dl::open_first({path});
  CHECK(opened.handle == nullptr);
  return opened.attempts.empty() ? "" : opened.attempts[0].error;
}

}  // namespace

TEST("a library that is cut off is an error at every length, and no signal") {
  const std::string whole = tests::contents_of(tests::stub_path("nvml-v3"));
  const std::string path = tests::path_of("libcut.so");
  const size_t end = end_of_segments(whole);
  REQUIRE(end > 4096 && end < whole.size());
  const size_t step = std::max<size_t>(end / (200 / static_cast<size_t>(tests::slowness()) + 1), 1);
  for (size_t length = 0; length < end; length += step) {
    tests::write_file(path, whole.substr(0, length));
    CHECK(!error_of(path).empty());
  }
  tests::write_file(path, whole.substr(0, end - 1));
  CHECK(error_of(path).find("it is cut off: it has") == 0);
  // The linker doesn't need the section headers, which come last.
  tests::write_file(path, whole.substr(0, end));
  CHECK(dl::open_first({path}).handle != nullptr);
}

TEST("a segment that ends beyond all numbers is cut off, too") {
  std::string library = tests::contents_of(tests::stub_path("nvml-v3"));
  Elf64_Ehdr header;
  std::memcpy(&header, library.data(), sizeof header);
  const uint64_t huge = UINT64_MAX;
  std::memcpy(&library[header.e_phoff + offsetof(Elf64_Phdr, p_filesz)], &huge, sizeof huge);
  const std::string path = tests::path_of("libhuge.so");
  tests::write_file(path, library);
  CHECK(!error_of(path).empty());
}

TEST("a library for another machine is named, by its path and in a search") {
  std::string library = tests::contents_of(tests::stub_path("nvml-v3"));
#if defined(__aarch64__)
  const uint16_t other = EM_X86_64;
  const char* const words = "it is a library for x86-64, and this program is for arm64";
#else
  const uint16_t other = EM_AARCH64;
  const char* const words = "it is a library for arm64, and this program is for x86-64";
#endif
  std::memcpy(&library[offsetof(Elf64_Ehdr, e_machine)], &other, sizeof other);
  const std::string path = tests::path_of("libother.so");
  tests::write_file(path, library);
  CHECK_EQUAL(error_of(path), words);
  library[EI_CLASS] = ELFCLASS32;
  tests::write_file(path, library);
  CHECK_EQUAL(error_of(path), words);
}

TEST("what is no regular file is not opened, nor waited for") {
  const std::string path = tests::path_of("fifo");
  REQUIRE_EQUAL(mkfifo(path.c_str(), 0600), 0);
  for (const std::string& each : {path, tests::directory(), std::string("/dev/null"), std::string("/dev/zero")}) {
    CHECK_EQUAL(error_of(each), "it is not a regular file");
    CHECK(dl::already_loaded(each) == nullptr);
  }
}

TEST("what the linker can name is left to it") {
  const std::string path = tests::path_of("text");
  tests::write_file(path, "not a library, but long enough to have a header of sixty-four bytes or more");
  CHECK(error_of(path).find("invalid ELF header") != std::string::npos);
  const std::string empty = tests::path_of("empty");
  tests::write_file(empty, "");
  CHECK(error_of(empty).find("file too short") != std::string::npos);
  CHECK(error_of("/nonexistent/libx.so").find("No such file") != std::string::npos);
  CHECK(dl::inspect(path).problem.empty());
  CHECK(dl::inspect(tests::stub_path("nvml-v3")).loadable);
}

TEST("the linker's own search is followed") {
  const auto candidates = dl::linker_candidates("libc.so.6");
  REQUIRE(!candidates.empty());
  const bool exists = std::any_of(candidates.begin(), candidates.end(), [](const std::string& path) {
    return path[0] == '/' && access(path.c_str(), R_OK) == 0;
  });
  CHECK(exists);
  for (const std::string& path : candidates) CHECK(path.size() > 10 && path.substr(path.size() - 10) == "/libc.so.6");
}

PROGRAM(load_cut_off) {
  const auto opened = dl::open_first({"libgpu-owner-cut-off.so.1"});
  if (opened.handle != nullptr || opened.attempts.size() != 1) return 1;
  const std::string& error = opened.attempts[0].error;
  return error.find("libgpu-owner-cut-off.so.1: it is cut off") != std::string::npos ? 0 : 2;
}

TEST("a library that is cut off in LD_LIBRARY_PATH is an error with its path") {
  const std::string whole = tests::contents_of(tests::stub_path("nvml-v3"));
  tests::write_file(tests::path_of("libgpu-owner-cut-off.so.1"), whole.substr(0, end_of_segments(whole) / 2));
  setenv("LD_LIBRARY_PATH", tests::directory().c_str(), 1);
  CHECK_EQUAL(tests::run_program("load_cut_off", {}), 0);
}

PROGRAM(load_text) {
  const auto opened = dl::open_first({"libgpu-owner-text.so.1"});
  if (opened.handle != nullptr || opened.attempts.size() != 1) return 1;
  return opened.attempts[0].error.find("invalid ELF header") != std::string::npos ? 0 : 2;
}

TEST("what is wrong with a library is said, also where the search passes over another one for other machines") {
  std::string other = tests::contents_of(tests::stub_path("nvml-v3"));
  other[EI_CLASS] = ELFCLASS32;
  const std::string directory = tests::path_of("other");
  REQUIRE_EQUAL(mkdir(directory.c_str(), 0700), 0);
  tests::write_file(directory + "/libgpu-owner-text.so.1", other);
  tests::write_file(tests::path_of("libgpu-owner-text.so.1"), std::string(100, 'x'));
  setenv("LD_LIBRARY_PATH", (directory + ":" + tests::directory()).c_str(), 1);
  CHECK_EQUAL(tests::run_program("load_text", {}), 0);
}
