// Opening the driver: it may fail for several reasons, and succeed later.
#include <signal.h>
#include <unistd.h>

#include "nvml/driver.h"
#include "support/processes.h"
#include "support/snapshots.h"
#include "support/stopwatch.h"
#include "support/stub.h"
#include "test.h"

using namespace gpu_owner::nvml;
using Stage = Driver::Stage;

namespace {

const char* const kStub = "nvml-v3";

void interrupt_open_after(int milliseconds) {
  signal(SIGINT, [](int) {});
  tests::start([milliseconds] {
    tests::sleep_milliseconds(milliseconds);
    kill(getppid(), SIGINT);
    raise(SIGKILL);  // an exit would have valgrind miss what the threads hold that only the parent has
    return 0;
  });
}

}  // namespace

TEST("without a library: the places where it was looked for; later with one") {
  Driver& driver = Driver::instance();
  CHECK_EQUAL(driver.open("/nonexistent/libnvidia-ml.so.1").stage, Stage::load);
  CHECK_EQUAL(driver.library().attempts().size(), 1u);
  CHECK_EQUAL(driver.open("/nonexistent/libnvidia-ml.so.1").stage, Stage::load);
  CHECK_EQUAL(driver.open(tests::stub_path(kStub)).stage, Stage::ready);
  CHECK_EQUAL(driver.version(), "1.2.3");
  CHECK_EQUAL(driver.library().path(), tests::stub_path(kStub));
  CHECK_EQUAL(driver.library().file(), tests::stub_path(kStub));
}

TEST("with a library that lacks a function: its name; later with a whole one") {
  Driver& driver = Driver::instance();
  for (int i = 0; i < 2; i++) {
    CHECK_EQUAL(driver.open(tests::stub_path("nvml-without-uuid")).stage, Stage::symbol);
    CHECK_EQUAL(driver.library().missing(), "nvmlDeviceGetUUID");
  }
  CHECK_EQUAL(driver.open(tests::stub_path(kStub)).stage, Stage::ready);
  CHECK_EQUAL(driver.library().missing(), "");
}

TEST("a driver that doesn't start: its code; later it does") {
  NvmlStub& stub = tests::stub_of(kStub);
  Driver& driver = Driver::instance();
  stub.code.init = ERROR_DRIVER_NOT_LOADED;
  for (int i = 0; i < 3; i++) {
    const auto opened = driver.open(tests::stub_path(kStub));
    CHECK_EQUAL(opened.stage, Stage::init);
    CHECK_EQUAL(opened.code, ERROR_DRIVER_NOT_LOADED);
  }
  CHECK_EQUAL(stub.inits, 3);
  stub.code.init = SUCCESS;
  stub.code.count = ERROR_OPERATING_SYSTEM;
  const auto opened = driver.open(tests::stub_path(kStub));
  CHECK_EQUAL(opened.stage, Stage::count);
  CHECK_EQUAL(opened.code, ERROR_OPERATING_SYSTEM);
  stub.code.count = SUCCESS;
  CHECK_EQUAL(driver.open(tests::stub_path(kStub)).stage, Stage::ready);
  const int inits = stub.inits;
  CHECK_EQUAL(driver.open(tests::stub_path(kStub)).stage, Stage::ready);  // nothing more to do
  CHECK_EQUAL(stub.inits, inits);
}

TEST("no GPUs, and absurdly many") {
  NvmlStub& stub = tests::stub_of(kStub);
  stub.gpus = 0;
  static auto* none = new Driver;  // never destroyed: its thread waits for more
  CHECK_EQUAL(none->open(tests::stub_path(kStub)).stage, Stage::ready);
  tests::Samples samples;
  CHECK(none->take_snapshot(samples, nullptr, false));
  CHECK(samples.empty());
  stub.gpus = 0xffffffff;
  static auto* many = new Driver;
  CHECK_EQUAL(many->open(tests::stub_path(kStub)).stage, Stage::ready);
  CHECK(many->take_snapshot(samples, nullptr, false));
  CHECK_EQUAL(samples.size(), 1024u);
}

TIMED_TEST("a driver whose start hangs: a handled signal ends the wait at once, a later call goes on with it") {
  const tests::SimulatedMachine machine("2");
  machine.set("hang=init");
  Driver& driver = Driver::instance();
  const int after = 100 * tests::slowness();
  interrupt_open_after(after);
  const tests::Stopwatch watch;
  CHECK_EQUAL(driver.open(tests::simulated_nvml()).stage, Stage::interrupted);
  CHECK(watch.milliseconds() >= after - 10);
  CHECK(watch.milliseconds() < 3 * after);
  machine.set("hang=off");
  CHECK_EQUAL(driver.open(tests::simulated_nvml()).stage, Stage::ready);
  CHECK_EQUAL(tests::health(tests::snapshot()), "ok ok");
}

TIMED_TEST("a driver whose start hangs is given up on after three seconds, and had when it doesn't any longer") {
  const tests::SimulatedMachine machine("2");
  machine.set("hang=init");
  Driver& driver = Driver::instance();
  const tests::Stopwatch watch;
  CHECK_EQUAL(driver.open(tests::simulated_nvml()).stage, Stage::not_responding);
  CHECK(watch.milliseconds() >= 2900);
  CHECK(watch.milliseconds() < 3'500 * tests::slowness());
  machine.set("hang=off");
  CHECK_EQUAL(driver.open(tests::simulated_nvml()).stage, Stage::ready);
  CHECK_EQUAL(tests::health(tests::snapshot()), "ok ok");
}
