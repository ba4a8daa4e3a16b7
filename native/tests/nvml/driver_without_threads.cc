// A process that may not start another thread can't ask; when it may again, it can.
#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

#include "support/mount.h"
#include "support/processes.h"
#include "support/snapshots.h"
#include "support/stopwatch.h"
#include "test.h"

using namespace gpu_owner::nvml;

namespace {

void allow_threads(bool yes) {
  rlimit limit;
  REQUIRE_EQUAL(getrlimit(RLIMIT_NPROC, &limit), 0);
  limit.rlim_cur = yes ? limit.rlim_max : 0;
  REQUIRE_EQUAL(setrlimit(RLIMIT_NPROC, &limit), 0);
}

std::string health_in_time() {
  const tests::Stopwatch watch;
  const std::string text = tests::health(tests::snapshot());
  CHECK(watch.milliseconds() < 1500 * tests::slowness());
  return text;
}

}  // namespace

TIMED_TEST("GPUs that nobody could ask are said not to respond, and are asked by the next snapshot") {
  const tests::SimulatedMachine machine("3");
  machine.set("hang=off");                     // makes the machine
  if (geteuid() == 0) tests::become_nobody();  // the limit isn't for root
  tests::opened_driver();
  CHECK_EQUAL(health_in_time(), "ok ok ok");
  machine.set("gpu=0 hang=memory");
  allow_threads(false);
  CHECK_EQUAL(health_in_time(), "hangs hangs hangs");  // the thread that hangs would have to be replaced
  CHECK_EQUAL(health_in_time(), "hangs hangs hangs");
  allow_threads(true);
  CHECK_EQUAL(health_in_time(), "hangs ok ok");
  machine.set("gpu=0 hang=off");
  CHECK(tests::eventually([] { return tests::health(tests::snapshot()) == "ok ok ok"; }, 1000));
}

TIMED_TEST("the driver can't be started without a thread, but later with one") {
  const tests::SimulatedMachine machine("2");
  machine.set("hang=off");
  if (geteuid() == 0) tests::become_nobody();
  allow_threads(false);
  Driver& driver = Driver::instance();
  const Driver::Opened opened = driver.open(tests::simulated_nvml());
  CHECK_EQUAL(opened.stage, Driver::Stage::no_thread);
  CHECK_EQUAL(opened.code, EAGAIN);
  allow_threads(true);
  CHECK_EQUAL(driver.open(tests::simulated_nvml()).stage, Driver::Stage::ready);
  CHECK_EQUAL(health_in_time(), "ok ok");
}
