#include "locks/held.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace gpu_owner::locks {
namespace {

// With so many open files, later ones aren't noted.
constexpr int kMost = 65536;
// By descriptor: which file it was; 0: none. Nobody says when it is closed, but then it is no file, or another one.
std::atomic<uint64_t> files[kMost];
std::atomic<int> end{0};

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
struct sigaction before[sizeof kSignals / sizeof *kSignals];

uint64_t file_of(int descriptor) {
  struct stat status;
  if (fstat(descriptor, &status) != 0) return 0;
  return (status.st_dev * 0x9e3779b97f4a7c15 ^ status.st_ino) | 1;
}

void abandon_and_end(int signal) {
  abandon_held();
  for (size_t i = 0; i < sizeof kSignals / sizeof *kSignals; i++) {
    if (kSignals[i] == signal) sigaction(signal, &before[i], nullptr);
  }
  raise(signal);  // comes as soon as this returns
}

}  // namespace

void note_held(int descriptor) {
  if (descriptor < 0 || descriptor >= kMost) return;
  files[descriptor].store(file_of(descriptor));
  int known = end.load();
  while (known <= descriptor && !end.compare_exchange_weak(known, descriptor + 1)) continue;
}

void abandon_held() {
  const int error = errno;
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int descriptor = 0; descriptor < end.load(); descriptor++) {
    const uint64_t file = files[descriptor].exchange(0);
    if (file == 0 || file_of(descriptor) != file) continue;
    if (nothing < 0 || dup3(nothing, descriptor, O_CLOEXEC) < 0) close(descriptor);
  }
  if (nothing >= 0) close(nothing);
  errno = error;
}

void abandon_held_at_signals() {
  for (size_t i = 0; i < sizeof kSignals / sizeof *kSignals; i++) {
    struct sigaction present;
    if (sigaction(kSignals[i], nullptr, &present) != 0 || present.sa_handler == abandon_and_end) continue;
    // A handler that is to run once only is Node.js's own, which tidies up the terminal and then dies of the signal.
    if (present.sa_handler != SIG_DFL && !(present.sa_flags & SA_RESETHAND)) continue;
    before[i] = present;
    struct sigaction ours = {};
    ours.sa_handler = abandon_and_end;
    ours.sa_flags = SA_RESETHAND | SA_RESTART;
    sigaction(kSignals[i], &ours, nullptr);
  }
}

}  // namespace gpu_owner::locks
