#include "simulator/faults.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cerrno>
#include <climits>

#include "process/futex.h"

namespace simulator {

using gpu_owner::process::monotonic_nanoseconds;

namespace {

void sleep_for(int64_t duration) {
  timespec pause = {static_cast<time_t>(duration / 1000000000), static_cast<long>(duration % 1000000000)};
  nanosleep(&pause, nullptr);
}

}  // namespace

void hang(const std::atomic<uint64_t>& mask, uint64_t bit) {
  while (mask.load(std::memory_order_relaxed) & bit) sleep_for(2000000);
}

void delay(uint32_t microseconds) {
  constexpr int64_t kOvershoot = 80000;  // how much longer than asked a sleep takes at most, on an idle machine
  const int64_t end = monotonic_nanoseconds() + int64_t{microseconds} * 1000;
  for (;;) {
    const int64_t left = end - monotonic_nanoseconds();
    if (left <= 0) return;
    if (left > kOvershoot + 20000) sleep_for(left - kOvershoot);
  }
}

void delay_one_by_one(uint32_t microseconds) {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&mutex);
  delay(microseconds);
  pthread_mutex_unlock(&mutex);
}

// Shared by processes, and absolute: FUTEX_WAIT_BITSET without FUTEX_PRIVATE_FLAG.
bool sleep_until_event(const Machine& machine, uint32_t count, const timespec& end) {
  return syscall(SYS_futex, &machine.header->event_count, FUTEX_WAIT_BITSET, count, &end, nullptr,
                 FUTEX_BITSET_MATCH_ANY) == 0 ||
         errno == EAGAIN;
}

void raise_xid(const Machine& machine, uint32_t gpu, uint32_t xid) {
  GpuState& state = machine.gpus[gpu];
  state.xids[state.xid_count % kXids] = xid;
  state.xid_count.fetch_add(1, std::memory_order_release);
  machine.header->event_count.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &machine.header->event_count, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace simulator
