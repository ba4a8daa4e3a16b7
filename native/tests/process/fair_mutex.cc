// FairMutex: one at a time, in order.
#include "process/fair_mutex.h"

#include <atomic>
#include <thread>
#include <vector>

#include "support/processes.h"
#include "test.h"

using gpu_owner::process::FairMutex;

namespace {

template <typename Condition>
void wait_for(const Condition& holds) {
  while (!holds()) tests::sleep_milliseconds(1);
}

}  // namespace

TEST("one at a time") {
  FairMutex mutex;
  int held = 0;  // not atomic: ThreadSanitizer looks on
  std::vector<std::thread> threads;
  const int rounds = 20'000 / tests::slowness();
  for (int i = 0; i < 4; i++) {
    threads.emplace_back([&] {
      for (int round = 0; round < rounds; round++) {
        mutex.lock();
        held++;
        mutex.unlock();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQUAL(held, 4 * rounds);
  CHECK(mutex.try_lock());
}

TEST("in the order in which they came; who gives up is left out") {
  FairMutex mutex;
  mutex.lock();
  CHECK(!mutex.try_lock());
  std::atomic<int> gone{0};
  std::atomic<bool> give_up{false};
  std::vector<int> order;
  std::vector<std::thread> threads;
  for (int i = 0; i < 5; i++) {
    const bool leaves = i % 2 == 0;  // the first, one in the middle, the last
    threads.emplace_back([&, i, leaves] {
      if (!mutex.lock_unless([&] { return leaves && give_up; })) {
        gone++;
        return;
      }
      order.push_back(i);
      mutex.unlock();
    });
    wait_for([&] { return mutex.waiting() == i + 1; });
  }
  give_up = true;
  wait_for([&] { return gone == 3; });
  mutex.unlock();
  for (auto& thread : threads) thread.join();
  CHECK(order == (std::vector<int>{1, 3}));
  CHECK(mutex.try_lock());
}

TEST("who takes it again at once comes after all who wait") {
  FairMutex mutex;
  mutex.lock();
  std::atomic<int> passed{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; i++) {
    threads.emplace_back([&] {
      mutex.lock();
      passed++;
      mutex.unlock();
    });
  }
  wait_for([&] { return mutex.waiting() == 3; });
  mutex.unlock();
  mutex.lock();
  CHECK_EQUAL(passed.load(), 3);
  mutex.unlock();
  for (auto& thread : threads) thread.join();
}
