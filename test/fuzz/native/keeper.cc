// The keeper's command line, and what it writes into lease files and into the file of a job. Input: the command line,
// with a NUL behind each word.
#include "keeper/arguments.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"
#include "keeper/job_file.h"
#include "keeper/record.h"

namespace {

constexpr int kOpen = 300;  // descriptors below are open
constexpr size_t kBlock = 4096;

std::string written;  // the last block
off_t written_at = 0;
int blocks = 0;

// Strict, and without recursion: a stack of what is open.
bool is_json_object(const std::string& text) {
  size_t at = 0;
  const auto blank = [&] {
    while (at < text.size() && strchr(" \t\r\n", text[at])) {
      if (!text[at]) return;
      ++at;
    }
  };
  const auto is_digit = [&] { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
  const auto string = [&] {
    if (at >= text.size() || text[at] != '"') return false;
    for (++at; at < text.size(); ++at) {
      const auto c = static_cast<unsigned char>(text[at]);
      if (c == '"') return ++at, true;
      if (c < 0x20) return false;
      if (c != '\\') continue;
      if (++at >= text.size()) return false;
      if (text[at] == 'u') {
        for (int i = 0; i < 4; ++i)
          if (++at >= text.size() || !isxdigit(static_cast<unsigned char>(text[at]))) return false;
      } else if (!text[at] || !strchr("\"\\/bfnrt", text[at])) {
        return false;
      }
    }
    return false;
  };
  const auto number = [&] {
    if (text[at] == '-') ++at;
    if (!is_digit()) return false;
    if (text[at] == '0') {
      ++at;
    } else {
      while (is_digit()) ++at;
    }
    if (at < text.size() && text[at] == '.') {
      ++at;
      if (!is_digit()) return false;
      while (is_digit()) ++at;
    }
    if (at < text.size() && (text[at] | 0x20) == 'e') {
      ++at;
      if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
      if (!is_digit()) return false;
      while (is_digit()) ++at;
    }
    return true;
  };
  const auto word = [&](const char* name) {
    if (text.compare(at, strlen(name), name) != 0) return false;
    at += strlen(name);
    return true;
  };
  const auto key = [&] {
    if (!string()) return false;
    blank();
    if (at >= text.size() || text[at++] != ':') return false;
    blank();
    return true;
  };
  std::string open;
  blank();
  if (at >= text.size() || text[at] != '{') return false;
  for (;;) {
    // At a value.
    if (at >= text.size()) return false;
    const char c = text[at];
    if (c == '{' || c == '[') {
      open += c;
      ++at;
      blank();
      if (at < text.size() && text[at] != (c == '{' ? '}' : ']')) {
        if (c == '{' && !key()) return false;
        continue;
      }
    } else if (!(c == '"'   ? string()
                 : c == 't' ? word("true")
                 : c == 'f' ? word("false")
                 : c == 'n' ? word("null")
                            : number())) {
      return false;
    }
    // Behind a value, or before the end of what is empty.
    for (;;) {
      blank();
      if (open.empty()) return at == text.size();
      if (at >= text.size()) return false;
      const char next = text[at++];
      if (next == ',') {
        blank();
        if (open.back() == '{' && !key()) return false;
        break;
      }
      if (next != (open.back() == '{' ? '}' : ']')) return false;
      open.pop_back();
    }
  }
}

bool is_among(const char* text, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    if (text >= word.c_str() && text <= word.c_str() + word.size()) return true;
  return false;
}

void check_options(const keeper::Options& options, const std::vector<std::string>& words) {
  for (const auto* list : {&options.leases, &options.shared, &options.inherited, &options.held}) {
    EXPECT(list->count >= 0 && list->count <= keeper::DescriptorList::kCapacity);
    for (int i = 0; i < list->count; ++i) EXPECT(list->fds[i] > STDERR_FILENO && list->fds[i] < kOpen);
  }
  for (int i = 0; i < options.markers.count; ++i) {
    const keeper::Marker& marker = options.markers.markers[i];
    EXPECT(options.held.contains(marker.fd) && options.held.contains(marker.directory));
    EXPECT(is_among(marker.name, words) && !strchr(marker.name, '/') && *marker.name);
    EXPECT(memchr(marker.token, 0, sizeof marker.token) && *marker.token);
  }
  for (int i = 0; i < options.lease_files.count; ++i) EXPECT(*options.lease_files.paths[i] == '/');
  EXPECT(options.placeholder_pid >= 0 && options.grace >= 0 && options.recheck > 0 && options.open_files >= -1);
  if (options.record) EXPECT(is_among(options.record, words));
  EXPECT(options.log < kOpen && (options.log < 0 || options.log_size > 0));
  EXPECT(options.then.count <= keeper::WordList::kCapacity && !options.then.words[options.then.count]);
  for (int i = 0; i < options.then.count; ++i) EXPECT(is_among(options.then.words[i], words));
  if (options.command) EXPECT(options.mode != keeper::Mode::hold && is_among(options.command[0], words));
}

void check_record(keeper::Options& options) {
  const bool fits = keeper::record_fits(options);
  const bool valid = is_json_object(options.record);
  blocks = 0;
  keeper::write_record(options, {123, 456, 7, -1});
  EXPECT(!fits || blocks > 0);
  if (blocks == 0) return;
  EXPECT(blocks == options.leases.count);
  EXPECT(written_at == 0 && written.size() == kBlock && written.back() == '\n');
  EXPECT(written.find('\0') == std::string::npos);
  if (valid) EXPECT(is_json_object(written));
  if (!fits) return;
  blocks = 0;
  keeper::write_record(options, {INT32_MAX, INT32_MAX, INT32_MAX, INT64_MAX});
  EXPECT(blocks == options.leases.count);
  if (valid) EXPECT(is_json_object(written));
}

void check_state(keeper::Options& options) {
  using keeper::Mode;
  EXPECT(options.job < kOpen && (options.job < 0 || options.mode == Mode::run));
  if (options.job < 0) options.job = 3;
  keeper::JobState state;
  for (const bool full : {false, true}) {
    if (full) {
      state = {INT_MAX, INT_MAX, INT_MAX, INT_MAX, INT_MAX, INT64_MAX, INT64_MAX, false, false};
    }
    blocks = 0;
    keeper::write_job_state(options, state);
    EXPECT(blocks == 1 && written_at == 4096 && written.size() == 512 && written.back() == '\n');
    EXPECT(is_json_object(written));
  }
}

}  // namespace

extern "C" {

// The output of the keeper: whole lines without control characters.
ssize_t __real_write(int file, const void* data, size_t size);
ssize_t __wrap_write(int file, const void* data, size_t size) {
  if (file != STDERR_FILENO) return __real_write(file, data, size);
  const auto* text = static_cast<const char*>(data);
  EXPECT(size > 0 && text[size - 1] == '\n' && fuzz::is_printable(text, size - 1));
  return static_cast<ssize_t>(size);
}

ssize_t __wrap_pwrite(int, const void* data, size_t size, off_t offset) {
  written_at = offset;
  written.assign(static_cast<const char*>(data), size);
  ++blocks;
  return static_cast<ssize_t>(size);
}

int __wrap_fcntl(int file, int command, ...) {
  if (file < 0 || file >= kOpen) return -1;
  return command == F_GETFL ? O_RDWR : 0;
}

int __wrap_fstat(int, struct stat* status) {
  *status = {};
  status->st_nlink = 1;
  status->st_mode = S_IFREG;
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  std::vector<std::string> words = input.list(0);
  words.insert(words.begin(), "gpu-owner-keeper");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(&word[0]);
  arguments.push_back(nullptr);

  keeper::Options options;
  const int code = keeper::parse_arguments(static_cast<int>(words.size()), arguments.data(), &options);
  if (code == 0) check_options(options, words);
  if (code == 0) check_state(options);
  if (!options.record) options.record = words.back().c_str();
  if (options.leases.count == 0) options.leases.fds[options.leases.count++] = 3;
  check_record(options);
  return 0;
}

}  // extern "C"
