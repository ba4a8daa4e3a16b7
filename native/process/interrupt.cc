#include "process/interrupt.h"

#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "process/futex.h"

namespace gpu_owner::process {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
constexpr int kCount = 3;

struct sigaction previous[kCount];
bool wrapped[kCount];
int depth = 0;  // main thread only
std::atomic<int> arrived{0};

void note_and_pass_on(int signal, siginfo_t* info, void* context) {
  arrived.store(signal);
  for (int i = 0; i < kCount; i++) {
    if (kSignals[i] != signal) continue;
    if (previous[i].sa_flags & SA_SIGINFO) {
      previous[i].sa_sigaction(signal, info, context);
    } else {
      previous[i].sa_handler(signal);
    }
  }
}

}  // namespace

bool is_main_thread() {
  static thread_local const bool main = syscall(SYS_gettid) == getpid();
  return main;
}

Interrupt::Interrupt() : on_main_thread_(is_main_thread()) {
  if (!on_main_thread_ || depth++ > 0) return;
  arrived.store(0);
  for (int i = 0; i < kCount; i++) {
    wrapped[i] = sigaction(kSignals[i], nullptr, &previous[i]) == 0 && previous[i].sa_handler != SIG_DFL &&
                 previous[i].sa_handler != SIG_IGN;
    // A handler that is to run once only is Node.js's own, which tidies up the terminal and then dies of the signal.
    if (previous[i].sa_flags & SA_RESETHAND) wrapped[i] = false;
    if (!wrapped[i]) continue;
    struct sigaction ours = previous[i];
    ours.sa_sigaction = note_and_pass_on;
    ours.sa_flags = (previous[i].sa_flags & ~SA_RESTART) | SA_SIGINFO;
    sigaction(kSignals[i], &ours, nullptr);
  }
}

Interrupt::~Interrupt() {
  if (!on_main_thread_ || --depth > 0) return;
  for (int i = 0; i < kCount; i++) {
    struct sigaction current;
    if (!wrapped[i] || sigaction(kSignals[i], nullptr, &current) != 0) continue;
    // Changes that the program made meanwhile, perhaps in its handler, stay.
    if (current.sa_sigaction == note_and_pass_on) sigaction(kSignals[i], &previous[i], nullptr);
  }
}

int Interrupt::signal() const { return on_main_thread_ ? arrived.load() : 0; }

bool interruptible_sleep(int64_t nanoseconds) {
  const Interrupt interrupt;
  const int64_t end = monotonic_nanoseconds() + nanoseconds;
  for (int64_t left = nanoseconds; left > 0; left = end - monotonic_nanoseconds()) {
    if (interrupt.signal() != 0) return false;
    const timespec slice = {0, static_cast<long>(std::min(left, kMaxSleep))};
    nanosleep(&slice, nullptr);
  }
  return interrupt.signal() == 0;
}

}  // namespace gpu_owner::process
