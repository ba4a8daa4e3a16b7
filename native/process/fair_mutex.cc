#include "process/fair_mutex.h"

namespace gpu_owner::process {

// False where no wait is needed: the caller holds it now.
bool FairMutex::join(Waiter& own) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (!held_) {
    held_ = true;
    return false;
  }
  (last_ == nullptr ? first_ : last_->next) = &own;
  last_ = &own;
  return true;
}

// False when the lock was granted meanwhile.
bool FairMutex::leave(Waiter& own) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (own.granted.load() != 0) return false;
  Waiter* before = nullptr;
  for (Waiter* waiter = first_; waiter != &own; waiter = waiter->next) before = waiter;
  (before == nullptr ? first_ : before->next) = own.next;
  if (last_ == &own) last_ = before;
  return true;
}

void FairMutex::unlock() {
  const std::atomic<uint32_t>* granted = nullptr;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    Waiter* next = first_;
    if (next == nullptr) {
      held_ = false;
      return;
    }
    // The mutex stays held: from now on by the next one.
    first_ = next->next;
    if (first_ == nullptr) last_ = nullptr;
    granted = &next->granted;
    next->granted.store(1);
  }
  // The waiter may be gone by now: the kernel only looks up who sleeps at this address.
  futex_wake(*granted);
}

int FairMutex::waiting() {
  const std::lock_guard<std::mutex> guard(mutex_);
  int count = 0;
  for (const Waiter* waiter = first_; waiter != nullptr; waiter = waiter->next) count++;
  return count;
}

}  // namespace gpu_owner::process
