#include "keeper/inherited.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "keeper/exit_codes.h"

namespace keeper {
namespace {

void print_ignored_signals() {
  uint64_t mask = 0;
  for (int signal = 1; signal <= 64; signal++) {
    struct sigaction action;
    if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) mask |= uint64_t{1} << (signal - 1);
  }
  printf("sigign=%016llx", static_cast<unsigned long long>(mask));
}

void print_open_files_limit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  if (limit.rlim_cur == RLIM_INFINITY) {
    printf(" nofile=unlimited");
  } else {
    printf(" nofile=%llu", static_cast<unsigned long long>(limit.rlim_cur));
  }
}

// Leaves out 0, 1 and 2, this program's own, and the script, which some shells leave open.
void print_descriptors(const char* script) {
  struct stat ours;
  const bool known = stat(script, &ours) == 0;
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) return;
  const char* separator = " fds=";
  while (const dirent* entry = readdir(directory)) {
    const int descriptor = atoi(entry->d_name);  // 0 for "." and ".."
    if (descriptor <= STDERR_FILENO || descriptor == dirfd(directory)) continue;
    struct stat theirs;
    if (known && fstat(descriptor, &theirs) == 0 && theirs.st_ino == ours.st_ino && theirs.st_dev == ours.st_dev)
      continue;
    printf("%s%d", separator, descriptor);
    separator = ",";
  }
}

// Shells drop what isn't of the form NAME=value, too.
bool can_be_named(const char* entry) {
  if (*entry == '=' || isdigit(static_cast<unsigned char>(*entry))) return false;
  while (isalnum(static_cast<unsigned char>(*entry)) || *entry == '_') entry++;
  return *entry == '=';
}

void print_unnameable(const char* shell) {
  constexpr size_t kDigitsPerLine = 64 << 10;
  // Arguments and environment of a process have 6 MiB at most. Untouched pages cost nothing.
  static char environment[8 << 20];
  char path[64];
  snprintf(path, sizeof path, "/proc/%s/environ", shell);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  size_t size = 0;
  for (ssize_t got; (got = read(file, environment + size, sizeof environment - 1 - size)) > 0;)
    size += static_cast<size_t>(got);
  size_t digits = 0;
  for (const char* entry = environment; entry < environment + size; entry++) {
    const bool wanted = !can_be_named(entry);
    for (;; entry++) {
      if (wanted) {
        putchar_unlocked("0123456789abcdef"[*entry >> 4 & 15]);
        putchar_unlocked("0123456789abcdef"[*entry & 15]);
        digits += 2;
        if (digits % kDigitsPerLine == 0) putchar_unlocked('\n');
      }
      if (*entry == '\0') break;
    }
  }
  if (digits % kDigitsPerLine != 0) putchar_unlocked('\n');
}

}  // namespace

int print_inherited(const char* script, const char* shell) {
  print_ignored_signals();
  print_open_files_limit();
  print_descriptors(script);
  putchar('\n');
  if (shell != nullptr) print_unnameable(shell);
  return fflush(stdout) == 0 ? 0 : kExitOutput;
}

}  // namespace keeper
