#pragma once

#include <stddef.h>

#include "process/unique_fd.h"

namespace keeper {

// Lines over a stream socket, in both directions, without ever waiting.
class Channel {
 public:
  explicit Channel(int fd = -1) : fd_(fd) {}

  int fd() const { return fd_.get(); }
  void open(int fd) { fd_.reset(fd); }
  void close() { fd_.reset(); }

  // A line for the other side. `dispensable` ones are dropped when the other side hasn't read for long.
  void send(const char* line, bool dispensable = false);

  // Reads what has arrived. False at the end of the stream.
  bool receive();

  // The next whole line, or null. Valid until the next receive().
  const char* next_line();

 private:
  gpu_owner::process::UniqueFd fd_;
  char data_[2048];
  size_t start_ = 0;
  size_t end_ = 0;
  bool skipping_ = false;
};

// The whole number after `"key":` in one of our own JSON lines.
bool number_in(const char* line, const char* key, long* value);

bool is_event(const char* line, const char* event);

}  // namespace keeper
