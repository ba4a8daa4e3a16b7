// Ctrl-C while the main thread waits for the driver.
#include <signal.h>
#include <unistd.h>

#include "support/processes.h"
#include "support/snapshots.h"
#include "support/stopwatch.h"
#include "test.h"

using namespace gpu_owner::nvml;
using tests::health;
using tests::Samples;

namespace {

volatile sig_atomic_t handled = 0;

// Sends this process a SIGINT, which it handles, some time from now.
void interrupt_after(int milliseconds) {
  struct sigaction action = {};
  action.sa_handler = [](int) { handled = 1; };
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  tests::start([milliseconds] {
    tests::sleep_milliseconds(milliseconds);
    kill(getppid(), SIGINT);
    raise(SIGKILL);  // an exit would have valgrind miss what the threads hold that only the parent has
    return 0;
  });
}

bool snapshot_on_main_thread(Samples& samples) { return Driver::instance().take_snapshot(samples, nullptr, true); }

// Looks at a machine of which a GPU hangs, and is interrupted after that time.
void check_interrupted(int after) {
  const tests::SimulatedMachine machine("4");
  tests::opened_driver();
  Samples samples;
  CHECK(snapshot_on_main_thread(samples));
  machine.set("gpu=1,2 hang=memory");
  interrupt_after(after);
  const tests::Stopwatch watch;
  CHECK(!snapshot_on_main_thread(samples));
  CHECK_EQUAL(handled, 1);
  CHECK(watch.milliseconds() >= after - 10);
  CHECK(watch.milliseconds() < (after + 100) * tests::slowness());
  // Later looks work, with the hang and without.
  CHECK(snapshot_on_main_thread(samples));
  CHECK_EQUAL(health(samples), "ok hangs hangs ok");
  machine.set("gpu=1,2 hang=off");
  CHECK(tests::eventually([&] { return snapshot_on_main_thread(samples) && health(samples) == "ok ok ok ok"; }, 1000));
}

}  // namespace

TIMED_TEST("while the first GPU that hangs is waited for") { check_interrupted(200); }

TIMED_TEST("when the others have long answered") { check_interrupted(700); }

TIMED_TEST("again and again, and the hang ends between") {
  const tests::SimulatedMachine machine("2");
  tests::opened_driver();
  Samples samples;
  CHECK(snapshot_on_main_thread(samples));
  machine.set("gpu=0 hang=memory");
  for (int i = 0; i < 3; i++) {
    interrupt_after(50);
    CHECK(!snapshot_on_main_thread(samples));
  }
  machine.set("gpu=0 hang=off");
  CHECK(snapshot_on_main_thread(samples));
  CHECK_EQUAL(health(samples), "ok ok");
}

TIMED_TEST("a slow machine whose snapshot was interrupted is asked again") {
  const tests::SimulatedMachine machine("4");
  tests::opened_driver();
  machine.set("latency=power:400000");
  interrupt_after(200);
  Samples samples;
  CHECK(!snapshot_on_main_thread(samples));
  CHECK(snapshot_on_main_thread(samples));
  CHECK_EQUAL(health(samples), "ok ok ok ok");
}

TIMED_TEST("a snapshot by another thread is not interrupted") {
  const tests::SimulatedMachine machine("2");
  tests::opened_driver();
  machine.set("gpu=0 hang=memory");
  interrupt_after(100);
  CHECK_EQUAL(health(tests::snapshot()), "hangs ok");
  CHECK_EQUAL(handled, 1);
}
