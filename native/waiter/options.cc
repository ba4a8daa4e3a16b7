#include "waiter/options.h"

#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace waiter {
namespace {

constexpr char kHelp[] =
    "gpu-owner-waiter waits for locks in little memory, and then becomes another program.\n"
    "It is started by gpu-owner, not by people: use `gpu-owner run`.\n"
    "\n"
    "  gpu-owner-waiter [OPTION...] -- PROGRAM [ARGUMENT...]\n"
    "\n"
    "  --lock FD:BYTE     until nobody has a write lock on this byte; of several, until one is free\n"
    "  --all              until each of --lock has been free\n"
    "  --queue FD:SLOT    meanwhile, keep this slot of the wait queue; the program inherits the descriptor\n"
    "  --queue-path PATH  until this names another file than the queue's\n"
    "  --ahead SLOT       until this slot is given up, or its waiter is suspended\n"
    "  --lease FD         until this lease has been free for 1 s, and 50 ms more for each waiter ahead\n"
    "  --until MS         until then, on CLOCK_MONOTONIC\n"
    "  --needs PATH       a file without which the program can't start\n"
    "  --needs-timeout MS wait so long for these files\n"
    "  --line-before TEXT --line-after TEXT --line-since MS --line-columns N\n"
    "                     paint this line in the terminal's foreground, with the time that has passed between\n"
    "  --ignore-signals HEX   these, as a mask\n";

// Not strtol: with newer headers it becomes a symbol that older C libraries lack.
bool parse_number(const char* text, size_t length, int64_t maximum, int64_t* value) {
  if (length == 0) return false;
  int64_t result = 0;
  for (size_t i = 0; i < length; i++) {
    const int digit = text[i] - '0';
    if (digit < 0 || digit > 9 || result > (maximum - digit) / 10) return false;
    result = result * 10 + digit;
  }
  *value = result;
  return true;
}

bool parse_number(const char* text, int64_t maximum, int64_t* value) {
  return parse_number(text, strlen(text), maximum, value);
}

bool parse_descriptor(const char* text, size_t length, int* descriptor) {
  int64_t number = 0;
  if (!parse_number(text, length, INT_MAX, &number)) return false;
  *descriptor = static_cast<int>(number);
  return *descriptor > STDERR_FILENO && fcntl(*descriptor, F_GETFD) != -1;
}

// FD:NUMBER
bool parse_pair(const char* text, int* descriptor, int64_t* number) {
  const char* colon = strchr(text, ':');
  return colon != nullptr && parse_descriptor(text, static_cast<size_t>(colon - text), descriptor) &&
         parse_number(colon + 1, INT64_MAX - 1, number);
}

bool parse_mask(const char* text, uint64_t* mask) {
  const size_t length = strlen(text);
  if (length == 0 || length > 16 || strspn(text, "0123456789abcdef") != length) return false;
  *mask = 0;
  for (; *text != '\0'; text++) {
    *mask = *mask << 4 | static_cast<uint64_t>(*text <= '9' ? *text - '0' : *text - 'a' + 10);
  }
  return true;
}

template <typename Item>
Item* append(List<Item>& list) {
  return &list.items[list.count++];
}

int complain(const char* option, const char* value, const char* wanted) {
  say("waiter: %s needs %s, not '%s'", option, wanted, value);
  return kExitUsage;
}

int parse_option(const char* option, const char* value, Options* options) {
  const auto is = [option](const char* name) { return strcmp(option, name) == 0; };
  if (is("--lock")) {
    Lock* lock = append(options->locks);
    return parse_pair(value, &lock->descriptor, &lock->byte) ? 0 : complain(option, value, "DESCRIPTOR:BYTE");
  }
  if (is("--queue")) {
    return parse_pair(value, &options->queue, &options->slot) ? 0 : complain(option, value, "DESCRIPTOR:SLOT");
  }
  if (is("--ahead")) {
    return parse_number(value, INT64_MAX - 1, append(options->ahead)) ? 0 : complain(option, value, "a slot");
  }
  if (is("--lease")) {
    return parse_descriptor(value, strlen(value), append(options->leases))
               ? 0
               : complain(option, value, "an open descriptor above 2");
  }
  if (is("--until")) return parse_number(value, INT64_MAX, &options->until) ? 0 : complain(option, value, "a time");
  if (is("--needs-timeout")) {
    return parse_number(value, INT_MAX, &options->needs_timeout) ? 0 : complain(option, value, "a time");
  }
  if (is("--ignore-signals")) {
    return parse_mask(value, &options->ignored_signals) ? 0 : complain(option, value, "a hexadecimal mask");
  }
  if (is("--line-since"))
    return parse_number(value, INT64_MAX, &options->line_since) ? 0 : complain(option, value, "a time");
  if (is("--line-columns")) {
    return parse_number(value, INT_MAX, &options->line_columns) ? 0 : complain(option, value, "a number");
  }
  if (is("--line-before")) {
    options->line_before = value;
  } else if (is("--line-after")) {
    options->line_after = value;
  } else if (is("--queue-path")) {
    options->queue_path = value;
  } else if (is("--needs")) {
    *append(options->needed) = value;
  } else {
    say("waiter: unknown option '%s'; see gpu-owner-waiter --help", option);
    return kExitUsage;
  }
  return 0;
}

template <typename Item>
bool make(List<Item>& list, int count) {
  list.items = static_cast<Item*>(calloc(static_cast<size_t>(count), sizeof(Item)));
  return list.items != nullptr;
}

}  // namespace

int parse_options(int count, char** arguments, Options* options) {
  if (!make(options->locks, count) || !make(options->ahead, count) || !make(options->leases, count) ||
      !make(options->needed, count)) {
    say("waiter: memory is used up");
    return kExitSystem;
  }
  int i = 1;
  for (; i < count && strcmp(arguments[i], "--") != 0; i++) {
    if (strcmp(arguments[i], "--help") == 0) return 0;
    if (strcmp(arguments[i], "--all") == 0) {
      options->all = true;
    } else if (i + 1 == count) {
      say("waiter: %s needs a value", arguments[i]);
      return kExitUsage;
    } else {
      if (const int code = parse_option(arguments[i], arguments[i + 1], options)) return code;
      i++;
    }
  }
  if (i + 1 >= count) {
    say("waiter: no program; see gpu-owner-waiter --help");
    return kExitUsage;
  }
  if (options->queue < 0 && (options->ahead.count > 0 || options->queue_path != nullptr)) {
    say("waiter: --ahead and --queue-path need --queue");
    return kExitUsage;
  }
  if (options->all && (options->ahead.count > 0 || options->locks.count == 0)) {
    say("waiter: --all needs --lock, and no --ahead");
    return kExitUsage;
  }
  options->program = arguments + i + 1;
  return 0;
}

void print_help() {
  if (write(STDOUT_FILENO, kHelp, sizeof kHelp - 1) < 0) return;
}

void say(const char* format, ...) {
  char line[1024] = "gpu-owner: ";
  const size_t start = strlen(line);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line + start, sizeof line - start - 1, format, arguments);
  va_end(arguments);
  // Paths are anybody's text, and end up on a terminal.
  for (char* c = line; *c != '\0'; c++) {
    if (static_cast<unsigned char>(*c) < 0x20 || *c == 0x7f) *c = '?';
  }
  strcat(line, "\n");
  if (write(STDERR_FILENO, line, strlen(line)) < 0) return;
}

}  // namespace waiter
