// One line that says what went wrong, with cause and remedy.
#pragma once
#include <cstdarg>
#include <cstddef>
#include <cstdio>

namespace simulator {

struct Error {
  char message[1024];

  // Always false, so that callers can `return error->set(…)`.
  __attribute__((format(printf, 2, 3))) bool set(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return false;
  }
};

}  // namespace simulator
