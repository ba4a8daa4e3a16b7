// How a wait for a lock ended.
#pragma once

#include <atomic>

#include "support/processes.h"

namespace tests {

class Outcome {
 public:
  // For Waiter::start, with the address of an Outcome.
  static void note(void* self, int error) {
    auto* outcome = static_cast<Outcome*>(self);
    outcome->error_ = error;
    outcome->calls_.fetch_add(1);
  }

  bool known() const { return calls_.load() > 0; }
  int calls() const { return calls_.load(); }
  int error() const { return error_; }
  bool wait() const {
    return eventually([this] { return known(); });
  }

 private:
  int error_ = -1;
  std::atomic<int> calls_{0};
};

}  // namespace tests
