#include "keeper/messages.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "keeper/text.h"

namespace keeper {

void say(const char* format, ...) {
  char line[2048] = "gpu-owner: ";
  const size_t length = strlen(line);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line + length, sizeof line - 1 - length, format, arguments);
  va_end(arguments);
  make_printable(line);
  size_t size = strlen(line);
  line[size++] = '\n';

  size_t written = 0;
  while (written < size) {
    const ssize_t n = write(STDERR_FILENO, line + written, size - written);
    if (n > 0) {
      written += static_cast<size_t>(n);
    } else if (n < 0 && errno == EAGAIN) {
      // Another process made the shared descriptor non-blocking. A reader that doesn't read must not hold us up.
      pollfd waiting = {STDERR_FILENO, POLLOUT, 0};
      if (poll(&waiting, 1, 200) <= 0) return;
    } else if (n < 0 && errno != EINTR) {
      return;
    }
  }
}

}  // namespace keeper
