#pragma once

#include <stddef.h>

namespace keeper {

// Text in a fixed buffer: the keeper may live for weeks and allocates nothing.
class Text {
 public:
  Text(char* data, size_t capacity) : data_(data), capacity_(capacity) { data_[0] = '\0'; }
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;

  void add(const char* format, ...) __attribute__((format(printf, 2, 3)));
  const char* c_str() const { return data_; }
  size_t length() const { return length_; }
  bool truncated() const { return truncated_; }

 private:
  char* data_;
  size_t capacity_;
  size_t length_ = 0;
  bool truncated_ = false;
};

template <size_t N>
class Buffer : public Text {
 public:
  Buffer() : Text(storage_, N) {}

 private:
  char storage_[N];
};

// Replaces control characters in place: names of processes and commands are foreign text that ends up on a terminal.
void make_printable(char* text);

// A whole number without sign, nothing before or after it.
bool parse_number(const char* text, long maximum, long* value);

const char* base_name(const char* path);

// Adds the UUID of the GPU that a lease file at this path is for, or the share of it.
void add_uuid(Text* uuid, const char* path);

}  // namespace keeper
