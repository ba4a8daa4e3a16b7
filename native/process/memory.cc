#include "process/memory.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

// Sanitizers know a stack per thread, and this is none.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define GPU_OWNER_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define GPU_OWNER_SANITIZED
#endif
#endif

namespace gpu_owner::process {
namespace {

// System calls only, and not by the C library's functions for them: thread-local data are those of the thread that made it.
int wait_for_end(void* argument) {
  const long input = static_cast<long>(reinterpret_cast<intptr_t>(argument));
  // Otherwise it would keep leases and pipes open. Linux before 5.9 can't: then it does without.
  const bool alone = (input == 0 || syscall(SYS_close_range, 0, input - 1, 0) == 0) &&
                     syscall(SYS_close_range, input + 1, ~0U, 0) == 0;
  char nothing;
  if (alone) syscall(SYS_read, input, &nothing, 1);
  syscall(SYS_exit_group, 0);
  return 0;
}

// It doesn't know processes that share memory, and would end this one.
[[maybe_unused]] bool under_valgrind() {
  const char* preloaded = getenv("LD_PRELOAD");
  return preloaded != nullptr && strstr(preloaded, "/vgpreload_") != nullptr;
}

}  // namespace

SharedMemory::SharedMemory() {
#ifndef GPU_OWNER_SANITIZED
  if (under_valgrind()) return;
  int pipe[2];
  if (pipe2(pipe, O_CLOEXEC) != 0) return;
  alignas(64) static char stack[16384];
  // Without a signal at its end: it is no child that anybody else waits for. After the execution the kernel sends SIGCHLD.
  pid_ = clone(wait_for_end, stack + sizeof stack, CLONE_VM, reinterpret_cast<void*>(static_cast<intptr_t>(pipe[0])));
  close(pipe[0]);
  if (pid_ > 0) {
    end_ = pipe[1];
  } else {
    close(pipe[1]);
  }
#endif
}

SharedMemory::~SharedMemory() {
  if (end_ >= 0) close(end_);
  if (pid_ > 0) waitpid(pid_, nullptr, __WCLONE);
}

}  // namespace gpu_owner::process
