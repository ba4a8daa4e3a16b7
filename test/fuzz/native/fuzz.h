// Shared by the fuzzed programs. Each has one function, LLVMFuzzerTestOneInput(), and is linked with the sources of
// which scripts/fuzz.js says that it tests them. Their system calls are answered from the input: `--wrap` redirects
// them.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

// A promise that was broken ends the program, and libFuzzer keeps the input.
#define EXPECT(condition)                                                             \
  do {                                                                                \
    if (!(condition)) {                                                               \
      fprintf(stderr, "%s:%d: broken promise: %s\n", __FILE__, __LINE__, #condition); \
      abort();                                                                        \
    }                                                                                 \
  } while (false)

namespace fuzz {

// Takes an input apart. Where nothing is left, all is 0 or empty.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}

  bool is_empty() const { return at_ == end_; }
  uint8_t byte() { return is_empty() ? 0 : *at_++; }
  template <typename Number>
  Number number() {
    Number value = 0;
    const size_t size = left() < sizeof value ? left() : sizeof value;
    memcpy(&value, at_, size);
    at_ += size;
    return value;
  }
  // Up to the next byte of that value, which is taken as well.
  std::string until(uint8_t separator) {
    const void* found = is_empty() ? nullptr : memchr(at_, separator, left());
    const uint8_t* end = found ? static_cast<const uint8_t*>(found) : end_;
    std::string text(reinterpret_cast<const char*>(at_), static_cast<size_t>(end - at_));
    at_ = found ? end + 1 : end_;
    return text;
  }
  std::string rest() {
    std::string text(reinterpret_cast<const char*>(at_), left());
    at_ = end_;
    return text;
  }
  std::vector<std::string> list(uint8_t separator) {
    std::vector<std::string> parts;
    while (!is_empty()) parts.push_back(until(separator));
    return parts;
  }

 private:
  size_t left() const { return static_cast<size_t>(end_ - at_); }

  const uint8_t* at_;
  const uint8_t* end_;
};

inline bool is_printable(const char* text, size_t length) {
  for (size_t i = 0; i < length; i++) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x20 || c == 0x7f) return false;
  }
  return true;
}

}  // namespace fuzz
