#include "keeper/group_signal_monitor.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "keeper/arguments.h"
#include "keeper/descendants.h"
#include "keeper/descriptors.h"
#include "keeper/signals.h"

namespace keeper {

struct GroupSignalMonitor::Note {
  unsigned count;
  pid_t sender;
};

namespace {

// A group's members get a signal within microseconds, or when a hypervisor gives the sender its processor back.
constexpr int kMinLooks = 20;
constexpr long kLookPauseNs = 500'000;
// A second and more, for one that has a signal, and no processor to note it on.
constexpr int kMaxLooks = 2'000;

}  // namespace

void GroupSignalMonitor::start() {
  const size_t size = (kLastSignal + 1) * sizeof(Note);
  void* shared = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return;
  notes_ = static_cast<Note*>(shared);
  const pid_t foreground = getpid();
  const pid_t pid = fork();
  if (pid > 0) pid_ = pid;
  if (pid != 0) return;

  prctl(PR_SET_NAME, "gpu-owner-group");
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != foreground) _exit(0);
  close_others(Options(), Keep::nothing, -1);
  sigset_t all;
  sigfillset(&all);
  while (true) {
    siginfo_t info;
    const int signal = sigwaitinfo(&all, &info);
    if (signal <= 0 || signal > kLastSignal) continue;
    __atomic_store_n(&notes_[signal].sender, info.si_pid, __ATOMIC_RELAXED);
    __atomic_add_fetch(&notes_[signal].count, 1, __ATOMIC_RELEASE);
  }
}

void GroupSignalMonitor::stop() {
  if (!pid_) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = 0;
}

bool GroupSignalMonitor::has_seen(int signal, pid_t sender, bool passed_on) {
  if (!pid_ || signal <= 0 || signal > kLastSignal) return false;
  for (int i = 1;; ++i) {
    const bool is_noting = i < kMaxLooks && is_running();  // asked before the look: what sleeps has noted everything
    const unsigned count = __atomic_load_n(&notes_[signal].count, __ATOMIC_ACQUIRE);
    const bool is_new = count != counted_[passed_on][signal];
    counted_[passed_on][signal] = count;
    if (is_new && __atomic_load_n(&notes_[signal].sender, __ATOMIC_RELAXED) == sender) return true;
    if (i >= kMinLooks && !is_noting) return false;
    const timespec pause = {0, kLookPauseNs};
    nanosleep(&pause, nullptr);
  }
}

bool GroupSignalMonitor::is_running() const {
  const char state = process_state(pid_);
  return state == 'R' || state == 'D';
}

}  // namespace keeper
