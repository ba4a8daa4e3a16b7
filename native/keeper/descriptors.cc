#include "keeper/descriptors.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include "keeper/arguments.h"
#include "keeper/text.h"
#include "process/unique_fd.h"

namespace keeper {

namespace {

using gpu_owner::process::UniqueFd;

constexpr int kFirstInherited = 200;

void raise_all(DescriptorList* list) {
  for (int i = 0; i < list->count; ++i) {
    if (list->fds[i] >= kFirstInherited) continue;
    const int raised = fcntl(list->fds[i], F_DUPFD, kFirstInherited);
    if (raised < 0) continue;
    close(list->fds[i]);
    list->fds[i] = raised;
  }
}

void set_close_on_exec(int fd) { fcntl(fd, F_SETFD, FD_CLOEXEC); }

}  // namespace

void occupy_standard_descriptors() {
  for (;;) {
    UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
    if (!null || null.get() > STDERR_FILENO) return;
    null.release();
  }
}

void raise_inherited(Options* options) {
  raise_all(&options->leases);
  raise_all(&options->shared);
  raise_all(&options->inherited);
}

void mark_close_on_exec(const Options& options) {
  for (int i = 0; i < options.held.count; ++i) set_close_on_exec(options.held.fds[i]);
  if (options.placeholder >= 0) set_close_on_exec(options.placeholder);
  if (options.control >= 0) set_close_on_exec(options.control);
  if (options.job >= 0) set_close_on_exec(options.job);
  if (options.log >= 0) set_close_on_exec(options.log);
  if (options.usage.fd >= 0) set_close_on_exec(options.usage.fd);
  if (options.meter.program >= 0) set_close_on_exec(options.meter.program);
}

void redirect_to_null(int first, int last) {
  UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  for (int fd = first; fd <= last; ++fd) {
    if (null) {
      dup2(null.get(), fd);
    } else {
      close(fd);
    }
  }
  if (null.get() <= STDERR_FILENO) null.release();
}

void close_others(const Options& options, Keep keep, int also, int also2) {
  DIR* directory = opendir("/proc/self/fd");
  if (!directory) return;
  while (const dirent* entry = readdir(directory)) {
    long number = 0;
    if (!parse_number(entry->d_name, INT_MAX, &number)) continue;
    const int fd = static_cast<int>(number);
    if (fd == dirfd(directory) || fd == also || fd == also2) continue;
    if (keep != Keep::nothing && fd <= STDERR_FILENO) continue;
    if (keep == Keep::leases || keep == Keep::leases_and_placeholder) {
      if (options.leases.contains(fd) || options.shared.contains(fd)) continue;
      if (options.inherited.contains(fd) || options.held.contains(fd)) continue;
      if (fd == options.job || fd == options.log || fd == options.usage.fd) continue;
      if (fd == options.meter.program) continue;
      if (keep == Keep::leases_and_placeholder && fd == options.placeholder) continue;
    }
    close(fd);
  }
  closedir(directory);
}

void close_descriptor(int* fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

}  // namespace keeper
