// gpu-owner-inherited: tells the launcher, a shell script, what Node.js or the shell itself would destroy. It does at once what
// takes the shell hundreds of calls and another program, see bin/gpu-owner.cjs:
//
//   gpu-owner-inherited SCRIPT            ignored signals, limit of open files and descriptors that it has inherited
//   gpu-owner-inherited SCRIPT PID        and variables that PID, a shell, was started with but can't name: as
//                                       hexadecimal digits, with the NUL behind each, in lines of 65536
//
// A shell's child has inherited what the shell has. This needs neither a C library nor the loader, which would take twice as
// long as all of the rest: it talks to the kernel, and is linked statically.
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "x86-64 and arm64 only; elsewhere the launcher does without"
#endif

namespace {

long call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0) {
#ifdef __x86_64__
  long result;
  register long fourth __asm__("r10") = d;
  register long fifth __asm__("r8") = e;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
                   : "rcx", "r11", "memory");
  return result;
#else
  register long code __asm__("x8") = number;
  register long first __asm__("x0") = a;
  register long second __asm__("x1") = b;
  register long third __asm__("x2") = c;
  register long fourth __asm__("x3") = d;
  register long fifth __asm__("x4") = e;
  __asm__ volatile("svc 0" : "+r"(first) : "r"(code), "r"(second), "r"(third), "r"(fourth), "r"(fifth) : "memory");
  return first;
#endif
}

long pointer(const void *address) { return reinterpret_cast<long>(address); }

constexpr long standard_output = 1;
constexpr long last_standard = 2;
constexpr int signals = 64;
constexpr long open_files = 7;  // RLIMIT_NOFILE
constexpr long ignored = 1;     // SIG_IGN

// Arguments and environment of a process have 6 MiB at most. What isn't touched costs nothing.
char environment[8 << 20];
char line[16 << 10];
size_t length = 0;

void add(char c) {
  if (length < sizeof line) line[length++] = c;
}

void add(const char *text) {
  while (*text) add(*text++);
}

void add_number(uint64_t number) {
  char digits[20];
  int count = 0;
  do {
    digits[count++] = static_cast<char>('0' + number % 10);
    number /= 10;
  } while (number > 0);
  while (count > 0) add(digits[--count]);
}

void write_all(const char *text, size_t size) {
  while (size > 0) {
    const long written = call(SYS_write, standard_output, pointer(text), static_cast<long>(size));
    if (written <= 0) return;
    text += written;
    size -= static_cast<size_t>(written);
  }
}

void add_ignored_signals() {
  // As the kernel has it: the handler, flags, a function of the C library's, and a mask.
  struct {
    long handler;
    uint64_t rest[3];
  } action;
  uint64_t mask = 0;
  for (int signal = 1; signal <= signals; ++signal) {
    if (call(SYS_rt_sigaction, signal, 0, pointer(&action), 8) == 0 && action.handler == ignored) {
      mask |= uint64_t{1} << (signal - 1);
    }
  }
  add("sigign=");
  for (int shift = 60; shift >= 0; shift -= 4) add("0123456789abcdef"[mask >> shift & 15]);
}

void add_open_files() {
  uint64_t limits[2];
  if (call(SYS_prlimit64, 0, open_files, 0, pointer(limits)) != 0) return;
  add(" nofile=");
  if (limits[0] == ~uint64_t{0}) {
    add("unlimited");
  } else {
    add_number(limits[0]);
  }
}

struct Identity {
  uint64_t inode = 0, device = 0;
};

// Of a path, or of the descriptor where the path is empty. False where the kernel doesn't tell.
bool identify(long descriptor, const char *path, Identity *identity) {
  uint64_t file[32];  // struct statx
  constexpr long empty_path = 0x1000;
  constexpr long wanted = 0x100;  // the inode
  if (call(SYS_statx, descriptor, pointer(path), empty_path, wanted, pointer(file)) != 0) return false;
  identity->inode = file[4];
  identity->device = file[17];
  return true;
}

// Besides 0, 1 and 2; neither our own nor the script, which some shells leave open.
void add_descriptors(const char *script) {
  Identity ours, theirs;
  const bool known = identify(AT_FDCWD, script, &ours);
  const long directory = call(SYS_openat, AT_FDCWD, pointer("/proc/self/fd"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return;
  alignas(8) static char entries[32 << 10];
  bool first = true;
  for (long size; (size = call(SYS_getdents64, directory, pointer(entries), sizeof entries)) > 0;) {
    uint16_t entry_size;
    for (long at = 0; at < size; at += entry_size) {
      // An inode's and an offset's 8 bytes, the size of the entry, its type, and its name.
      entry_size = *reinterpret_cast<const uint16_t *>(entries + at + 16);
      const char *name = entries + at + 19;
      long descriptor = 0;
      for (const char *digit = name; *digit; ++digit) descriptor = descriptor * 10 + (*digit - '0');
      if (*name == '.' || descriptor <= last_standard || descriptor == directory) continue;
      if (known && identify(descriptor, "", &theirs) && theirs.inode == ours.inode && theirs.device == ours.device) continue;
      add(first ? " fds=" : ",");
      add_number(static_cast<uint64_t>(descriptor));
      first = false;
    }
  }
}

// Shells drop what isn't of the form NAME=value, too.
bool can_be_named(const char *entry) {
  if (*entry == '=' || (*entry >= '0' && *entry <= '9')) return false;
  for (; *entry && *entry != '='; ++entry) {
    const char lower = static_cast<char>(*entry | 0x20);
    if (!((lower >= 'a' && lower <= 'z') || (*entry >= '0' && *entry <= '9') || *entry == '_')) return false;
  }
  return *entry == '=';
}

constexpr size_t digits_per_line = 64 << 10;
char digits[digits_per_line + 1];
size_t digit_count = 0;

void write_digits() {
  if (digit_count == 0) return;
  digits[digit_count] = '\n';
  write_all(digits, digit_count + 1);
  digit_count = 0;
}

void write_unnameable(const char *shell) {
  length = 0;
  add("/proc/");
  add(shell);
  add("/environ");
  add('\0');
  const long file = call(SYS_openat, AT_FDCWD, pointer(line), O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  size_t size = 0;
  for (long got; size < sizeof environment - 1; size += static_cast<size_t>(got)) {
    got = call(SYS_read, file, pointer(environment + size), static_cast<long>(sizeof environment - 1 - size));
    if (got <= 0) break;
  }
  for (const char *entry = environment; entry < environment + size;) {
    const bool wanted = !can_be_named(entry);
    const char *byte = entry;
    do {
      if (wanted) {
        digits[digit_count++] = "0123456789abcdef"[*byte >> 4 & 15];
        digits[digit_count++] = "0123456789abcdef"[*byte & 15];
        if (digit_count == digits_per_line) write_digits();
      }
    } while (*byte++);
    entry = byte;
  }
  write_digits();
}

}  // namespace

// Called by the few instructions below, with what the kernel has put on the stack: the number of arguments, and these.
extern "C" [[noreturn]] __attribute__((used, visibility("hidden"))) void gpu_owner_inherited(const long *stack) {
  const long count = *stack;
  const char *const *arguments = reinterpret_cast<const char *const *>(stack + 1);
  if (count == 2 || count == 3) {
    add_ignored_signals();
    add_open_files();
    add_descriptors(arguments[1]);
    add('\n');
    write_all(line, length);
    if (count == 3) write_unnameable(arguments[2]);
  }
  for (;;) call(SYS_exit_group, count == 2 || count == 3 ? 0 : 64);
}

#ifdef __x86_64__
__asm__(".globl _start\n_start: xor %ebp, %ebp\nmov %rsp, %rdi\nand $-16, %rsp\ncall gpu_owner_inherited\n");
#else
__asm__(".globl _start\n_start: mov x29, #0\nmov x0, sp\nbl gpu_owner_inherited\n");
#endif
