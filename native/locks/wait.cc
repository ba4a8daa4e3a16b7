#include "locks/wait.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "process/futex.h"
#include "process/thread.h"

namespace gpu_owner::locks {
namespace {

constexpr size_t kWaiterStack = 256 * 1024;
constexpr int64_t kRepeatSignal = 200'000;  // ns

void wake_up(int) {}

// Makes the signal ours if no other code in this process handles it. The handler is empty and without SA_RESTART: its
// run alone makes the blocked system call return EINTR.
bool take(int signal) {
  struct sigaction current;
  if (sigaction(signal, nullptr, &current) != 0 || current.sa_handler != SIG_DFL) return false;
  struct sigaction ours = {};
  ours.sa_handler = wake_up;
  return sigaction(signal, &ours, nullptr) == 0;
}

int choose_signal() {
  for (int signal = SIGRTMAX - 1; signal > SIGRTMIN; signal--) {
    if (take(signal)) return signal;
  }
  take(SIGSTKFLT);  // Linux never sends it
  return SIGSTKFLT;
}

int cancel_signal() {
  static const int signal = choose_signal();
  return signal;
}

}  // namespace

Waiter* Waiter::start(int descriptor, Kind kind, Mode mode, Range range, Done done, void* context) {
  const int signal = cancel_signal();
  process::UniqueFd duplicate(fcntl(descriptor, F_DUPFD_CLOEXEC, 3));
  if (!duplicate) return nullptr;
  auto* waiter = new Waiter;
  waiter->descriptor_ = std::move(duplicate);
  waiter->kind_ = kind;
  waiter->mode_ = mode;
  waiter->range_ = range;
  waiter->done_ = done;
  waiter->context_ = context;
  const int error = process::start_thread(waiter->thread_, kWaiterStack, signal, run, waiter);
  if (error == 0) return waiter;
  delete waiter;
  errno = error;
  return nullptr;
}

void* Waiter::run(void* pointer) {
  auto& self = *static_cast<Waiter*>(pointer);
  int error;
  do {
    error = self.cancelled_.load() ? ECANCELED : wait_lock(self.descriptor_.get(), self.kind_, self.mode_, self.range_);
  } while (error == EINTR);
  self.descriptor_.reset();
  self.done_(self.context_, error);
  self.over_.store(1);
  process::futex_wake(self.over_);
  return nullptr;
}

void Waiter::begin_cancel() {
  const bool before = cancelled_.exchange(true);
  if (!before && !over()) pthread_kill(thread_, cancel_signal());
}

void Waiter::cancel() {
  cancelled_.store(true);
  // A signal that comes between the thread's look at the flag and its system call is lost: repeat.
  while (!over()) {
    pthread_kill(thread_, cancel_signal());
    sleep(kRepeatSignal);
  }
}

void Waiter::sleep(int64_t nanoseconds) const { process::futex_wait(over_, 0, nanoseconds); }

void Waiter::join_and_delete() {
  pthread_join(thread_, nullptr);
  delete this;
}

}  // namespace gpu_owner::locks
