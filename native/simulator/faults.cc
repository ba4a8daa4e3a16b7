#include "simulator/faults.h"

#include <pthread.h>
#include <ctime>

namespace simulator {
namespace {

int64_t nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

void sleepFor(int64_t duration) {
  timespec pause = {static_cast<time_t>(duration / 1000000000), static_cast<long>(duration % 1000000000)};
  nanosleep(&pause, nullptr);
}

}  // namespace

void hang(const std::atomic<uint64_t>& mask, uint64_t bit) {
  while (mask.load(std::memory_order_relaxed) & bit) sleepFor(2000000);
}

void delay(uint32_t microseconds) {
  constexpr int64_t kOvershoot = 80000;  // what a sleep takes longer than asked, at most, on an idle machine
  const int64_t end = nanoseconds() + int64_t{microseconds} * 1000;
  for (;;) {
    const int64_t left = end - nanoseconds();
    if (left <= 0) return;
    if (left > kOvershoot + 20000) sleepFor(left - kOvershoot);
  }
}

void delayOneByOne(uint32_t microseconds) {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&mutex);
  delay(microseconds);
  pthread_mutex_unlock(&mutex);
}

}  // namespace simulator
