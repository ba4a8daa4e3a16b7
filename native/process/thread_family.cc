#include "process/thread_family.h"

#include <pthread.h>
#include <signal.h>

#include "process/descriptors.h"
#include "process/futex.h"

namespace gpu_owner::process {
namespace {

constexpr int64_t kAnHour = 3'600'000'000'000;
constexpr int64_t kTryAgain = 100'000'000;
// There may be one per GPU, so not the 8 MiB that is usual; and few of that size are kept for the next ones.
constexpr size_t kStack = 1024 * 1024;

bool start_detached(void* (*function)(void*), void* argument) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);  // inherited: the process's signals are for other threads
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, kStack);
  pthread_t thread;
  const int error = pthread_create(&thread, &attributes, function, argument);
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error == 0;
}

}  // namespace

bool ThreadFamily::run(void (*function)(void*), void* argument) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!started_ && !(started_ = start_detached(parent, this))) return false;
    orders_.push_back({function, argument});
  }
  ordered_.fetch_add(1);
  futex_wake(ordered_);
  return true;
}

// The parent never calls the driver, so it can always give birth, also when all its children are stuck.
void* ThreadFamily::parent(void* pointer) {
  auto& self = *static_cast<ThreadFamily*>(pointer);
  leave_descriptor_table();
  std::vector<Order> orders;
  for (;;) {
    const uint32_t seen = self.ordered_.load();
    {
      const std::lock_guard<std::mutex> lock(self.mutex_);
      orders.insert(orders.end(), self.orders_.begin(), self.orders_.end());
      self.orders_.clear();
    }
    // Whoever waits for one that is late gives up in time, but it holds what it was given until it has run.
    std::vector<Order> late;
    for (const Order& order : orders) {
      auto* copy = new Order(order);
      if (start_detached(child, copy)) continue;
      delete copy;
      late.push_back(order);
    }
    orders.swap(late);
    futex_wait(self.ordered_, seen, orders.empty() ? kAnHour : kTryAgain);
  }
  return nullptr;
}

void* ThreadFamily::child(void* pointer) {
  const Order order = *static_cast<Order*>(pointer);
  delete static_cast<Order*>(pointer);
  order.function(order.argument);
  return nullptr;
}

}  // namespace gpu_owner::process
