#include "keeper/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

namespace keeper {

void Text::add(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int wanted = vsnprintf(data_ + length_, capacity_ - length_, format, arguments);
  va_end(arguments);
  if (wanted < 0) return;
  const size_t room = capacity_ - length_ - 1;
  truncated_ = truncated_ || static_cast<size_t>(wanted) > room;
  length_ += static_cast<size_t>(wanted) > room ? room : static_cast<size_t>(wanted);
}

void make_printable(char* text) {
  for (; *text; ++text) {
    const unsigned char c = static_cast<unsigned char>(*text);
    if (c < 0x20 || c == 0x7f) *text = '?';
  }
}

// Not strtol: with newer headers it becomes a symbol that older C libraries lack.
bool parse_number(const char* text, long maximum, long* value) {
  if (!*text) return false;
  long result = 0;
  for (; *text; ++text) {
    if (*text < '0' || *text > '9') return false;
    const long digit = *text - '0';
    if (result > (maximum - digit) / 10) return false;
    result = result * 10 + digit;
  }
  *value = result;
  return true;
}

const char* base_name(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash && slash[1] ? slash + 1 : path;
}

void add_uuid(Text* uuid, const char* path) {
  const char* name = base_name(path);
  const char* end = strstr(name, "-share-");
  if (!end) end = strstr(name, ".lease");
  uuid->add("%.*s", static_cast<int>(end ? end - name : 0), name);
}

}  // namespace keeper
