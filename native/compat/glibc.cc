// Functions that old systems' libraries don't have, see glibc.h. Everything here is hidden: it serves only the binary
// that it is linked into.
#ifdef GPU_OWNER_COMPAT_GLIBC

#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GPU_OWNER_HIDDEN __attribute__((visibility("hidden")))

struct stat;
struct stat64;

extern "C" {

// Up to glibc 2.32 these were no functions of libc.so.6, but wrappers linked into every program. On 64-bit systems
// the kernel's structures and glibc's are the same.
#define GPU_OWNER_STAT(suffix)                                                                                 \
  GPU_OWNER_HIDDEN int stat##suffix(const char* path, struct stat##suffix* out) {                              \
    return static_cast<int>(syscall(SYS_newfstatat, AT_FDCWD, path, out, 0));                                  \
  }                                                                                                            \
  GPU_OWNER_HIDDEN int lstat##suffix(const char* path, struct stat##suffix* out) {                             \
    return static_cast<int>(syscall(SYS_newfstatat, AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW));                \
  }                                                                                                            \
  GPU_OWNER_HIDDEN int fstat##suffix(int descriptor, struct stat##suffix* out) {                               \
    return static_cast<int>(syscall(SYS_fstat, descriptor, out));                                              \
  }                                                                                                            \
  GPU_OWNER_HIDDEN int fstatat##suffix(int directory, const char* path, struct stat##suffix* out, int flags) { \
    return static_cast<int>(syscall(SYS_newfstatat, directory, path, out, flags));                             \
  }
GPU_OWNER_STAT()
GPU_OWNER_STAT(64)

// libstdc++ reads it to do without atomic operations while there is one thread; "no" is always right (glibc 2.32).
GPU_OWNER_HIDDEN char __libc_single_threaded = 0;

// Called by `new T[n]` and std::vector for an absurd n (GCC 11), here where exceptions are off anyway. Nothing of
// libstdc++ is called, so that executables that don't need it otherwise start without it.
[[noreturn]] GPU_OWNER_HIDDEN void gpu_owner_throw_bad_array_new_length() __asm__(
    "_ZSt28__throw_bad_array_new_lengthv");
void gpu_owner_throw_bad_array_new_length() { abort(); }
}

#endif
