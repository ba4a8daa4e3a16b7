#include "locks/held.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "process/unique_fd.h"

namespace gpu_owner::locks {
namespace {

// Upper bound on noted open files.
constexpr int kMaxDescriptors = 65536;
// By descriptor. A closed one stays noted, but has no lock any longer.
std::atomic<bool> noted[kMaxDescriptors];
std::atomic<int> end{0};

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
struct sigaction before[sizeof kSignals / sizeof *kSignals];

// Whether a lock of the kinds that are taken here belongs to its open file. True where the kernel doesn't tell.
bool has_lock(int descriptor) {
  char path[] = "/proc/self/fdinfo/\0\0\0\0\0\0\0\0";
  char* digit = path + sizeof "/proc/self/fdinfo/" - 1;
  int power = 1;
  while (descriptor / power > 9) power *= 10;
  for (; power > 0; power /= 10) *digit++ = static_cast<char>('0' + descriptor / power % 10);
  const process::UniqueFd info(open(path, O_RDONLY | O_CLOEXEC));
  if (!info) return errno != ENOENT;
  char text[4096];
  const ssize_t length = read(info.get(), text, sizeof text - 1);
  text[length > 0 ? length : 0] = '\0';
  return strstr(text, "OFDLCK") != nullptr || strstr(text, "FLOCK") != nullptr;
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
  if (descriptor < 0 || descriptor >= kMaxDescriptors) return;
  noted[descriptor].store(true);
  int known = end.load();
  while (known <= descriptor && !end.compare_exchange_weak(known, descriptor + 1)) continue;
}

void abandon_held() {
  const int error = errno;
  process::UniqueFd nothing(open("/dev/null", O_RDWR | O_CLOEXEC));
  for (int descriptor = 0; descriptor < end.load(); descriptor++) {
    if (!noted[descriptor].exchange(false) || !has_lock(descriptor)) continue;
    if (!nothing || dup3(nothing.get(), descriptor, O_CLOEXEC) < 0) close(descriptor);
  }
  nothing.reset();
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
    struct sigaction replaced;
    sigaction(kSignals[i], &ours, &replaced);
    // The program may have begun to handle it since: this may be another thread.
    if (replaced.sa_handler != present.sa_handler) sigaction(kSignals[i], &replaced, nullptr);
  }
}

}  // namespace gpu_owner::locks
