// Directories with a mode that the umask has no say in.
#pragma once

#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace gpu_owner::process {

// Has the mode from the first moment on: with chmod after it, the owner of the parent could have put another
// directory in its place. The umask belongs to the whole process, so a child has one of its own. `parent` as of
// mkdirat(2). 0 or -errno.
inline int make_directory(int parent, const char* name, mode_t mode) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  // As fork(), but without a signal at its end, which the program could take for that of a child of its own.
  const long child = syscall(SYS_clone, 0, nullptr, nullptr, nullptr, nullptr);
  if (child == 0) {
    umask(0);
    _exit(mkdirat(parent, name, mode) == 0 ? 0 : errno);
  }
  int status = 0;
  const bool ended = child > 0 && waitpid(static_cast<pid_t>(child), &status, __WALL) == child && WIFEXITED(status);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (ended) return -WEXITSTATUS(status);
  return mkdirat(parent, name, mode) == 0 ? 0 : -errno;
}

}  // namespace gpu_owner::process
