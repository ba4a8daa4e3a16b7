#include "keeper/channel.h"

#include <errno.h>
#include <limits.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "keeper/text.h"

namespace keeper {

namespace {

constexpr int kMaxUnread = 16 * 1024;

}  // namespace

void Channel::send(const char* line, bool dispensable) {
  if (!fd_) return;
  int unread = 0;
  if (dispensable && ioctl(fd(), SIOCOUTQ, &unread) == 0 && unread > kMaxUnread) return;
  Buffer<2048> text;
  text.add("%s\n", line);
  // The rest of the room is for the few lines that matter, so these don't fail while there is another side.
  if (::send(fd(), text.c_str(), text.length(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno == ENOTSOCK) {
    if (write(fd(), text.c_str(), text.length()) < 0) return;
  }
}

bool Channel::receive() {
  if (start_ > 0) {
    memmove(data_, data_ + start_, end_ - start_);
    end_ -= start_;
    start_ = 0;
  }
  if (end_ == sizeof data_) {
    // No line of the protocol is that long: pass over it up to its end.
    end_ = 0;
    skipping_ = true;
  }
  const ssize_t n = read(fd(), data_ + end_, sizeof data_ - end_);
  if (n < 0) return errno == EINTR || errno == EAGAIN;
  end_ += static_cast<size_t>(n);
  return n > 0;
}

const char* Channel::next_line() {
  while (start_ < end_) {
    char* line = data_ + start_;
    char* newline = static_cast<char*>(memchr(line, '\n', end_ - start_));
    if (!newline) return nullptr;
    *newline = '\0';
    start_ = static_cast<size_t>(newline + 1 - data_);
    if (!skipping_) return line;
    skipping_ = false;
  }
  return nullptr;
}

bool number_in(const char* line, const char* key, long* value) {
  Buffer<32> pattern;
  pattern.add("\"%s\":", key);
  const char* found = strstr(line, pattern.c_str());
  if (!found) return false;
  found += pattern.length();
  while (*found == ' ') ++found;
  char digits[16] = "";
  for (size_t i = 0; i < sizeof digits - 1 && *found >= '0' && *found <= '9'; ++i) digits[i] = *found++;
  return parse_number(digits, LONG_MAX, value);
}

bool is_event(const char* line, const char* event) {
  Buffer<48> pattern;
  pattern.add("{\"event\":\"%s\"", event);
  return strncmp(line, pattern.c_str(), pattern.length()) == 0;
}

}  // namespace keeper
