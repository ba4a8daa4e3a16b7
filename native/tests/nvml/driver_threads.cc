// Snapshots from several threads, one at a time, as the bindings take them.
#include <atomic>
#include <thread>
#include <vector>

#include "support/processes.h"
#include "support/snapshots.h"
#include "test.h"

using namespace gpu_owner::nvml;

TIMED_TEST("every thread gets whole samples") {
  const tests::SimulatedMachine machine("4");
  tests::opened_driver();
  std::atomic<int> good{0};
  const int looks = 1000 / tests::slowness();
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; i++) {
    threads.emplace_back([&] {
      for (int round = 0; round < looks; round++) {
        const tests::Samples samples = tests::snapshot();
        good += samples.size() == 4 && tests::health(samples) == "ok ok ok ok" && samples[3].memory.total > 0;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQUAL(good.load(), 6 * looks);
}

TIMED_TEST("also while a GPU begins and ceases to hang") {
  const tests::SimulatedMachine machine("4");
  tests::opened_driver();
  std::atomic<bool> end{false};
  std::atomic<int> bad{0}, looks{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; i++) {
    threads.emplace_back([&] {
      while (!end) {
        const std::string health = tests::health(tests::snapshot());
        bad += health != "ok ok ok ok" && health != "ok ok hangs ok";
        looks++;
      }
    });
  }
  tests::sleep_milliseconds(100);
  machine.set("gpu=2 hang=memory");
  tests::sleep_milliseconds(1500);
  machine.set("gpu=2 hang=off");
  tests::sleep_milliseconds(200);
  end = true;
  for (auto& thread : threads) thread.join();
  CHECK_EQUAL(bad.load(), 0);
  CHECK(looks.load() > 10);
  CHECK_EQUAL(tests::health(tests::snapshot()), "ok ok ok ok");
}
