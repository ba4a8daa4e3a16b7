#include "process/turns.h"

namespace gpu_owner::process {

// False where there is nobody to wait for: it is held by who asked.
bool Turns::join(Place& own) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (!held_) {
    held_ = true;
    return false;
  }
  (last_ == nullptr ? first_ : last_->next) = &own;
  last_ = &own;
  return true;
}

// False when its turn has come meanwhile.
bool Turns::leave(Place& own) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (own.turn.load() != 0) return false;
  Place* before = nullptr;
  for (Place* place = first_; place != &own; place = place->next) before = place;
  (before == nullptr ? first_ : before->next) = own.next;
  if (last_ == &own) last_ = before;
  return true;
}

void Turns::unlock() {
  const std::atomic<uint32_t>* turn = nullptr;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    Place* next = first_;
    if (next == nullptr) {
      held_ = false;
      return;
    }
    // It stays held: from now on by who is next.
    first_ = next->next;
    if (first_ == nullptr) last_ = nullptr;
    turn = &next->turn;
    next->turn.store(1);
  }
  // Who has seen that already may have left its place: the kernel only looks up who sleeps at this address.
  futex_wake(*turn);
}

int Turns::waiting() {
  const std::lock_guard<std::mutex> guard(mutex_);
  int count = 0;
  for (const Place* place = first_; place != nullptr; place = place->next) count++;
  return count;
}

}  // namespace gpu_owner::process
