// Snapshots of healthy machines, and at machines where a GPU is unwell but answers.
#include <cmath>

#include "support/processes.h"
#include "support/snapshots.h"
#include "support/stopwatch.h"
#include "test.h"

using namespace gpu_owner::nvml;
using tests::Samples;
using tests::snapshot;

namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

}  // namespace

TEST("every GPU with what never changes and what does") {
  const tests::SimulatedMachine machine("4");
  Driver& driver = tests::opened_driver();
  CHECK_EQUAL(driver.descriptions().size(), 4u);
  CHECK_EQUAL(driver.descriptions()[0].uuid, "");  // nothing is attached before it is looked at
  const Samples samples = snapshot();
  CHECK_EQUAL(tests::health(samples), "ok ok ok ok");
  for (int i = 0; i < 4; i++) {
    const auto& description = driver.descriptions()[static_cast<size_t>(i)];
    const Sample& sample = samples[static_cast<size_t>(i)];
    CHECK_EQUAL(description.uuid, tests::SimulatedMachine::uuid(i));
    CHECK_EQUAL(description.name, "Simulated GPU");
    CHECK(!description.pci_bus_id.empty());
    CHECK_EQUAL(sample.memory.total, 80 * kGiB);
    CHECK_EQUAL(sample.utilization_percent, 0);
    CHECK_EQUAL(sample.compute_mode, 0);
    CHECK_EQUAL(sample.mig_mode, 0);
    CHECK(sample.processes_known);
    CHECK(sample.compute.empty());
  }
}

TEST("a process on a GPU is seen from its start to its end") {
  const tests::SimulatedMachine machine("2");
  tests::opened_driver();
  const double before = snapshot()[1].memory.used;
  const pid_t process = machine.occupy(1, "2GiB");
  Samples samples = snapshot();
  REQUIRE_EQUAL(samples[1].compute.size(), 1u);
  CHECK_EQUAL(samples[1].compute[0].pid, static_cast<uint32_t>(process));
  CHECK(static_cast<double>(samples[1].compute[0].used_memory) >= 2 * kGiB);
  CHECK(samples[1].memory.used >= before + 2 * kGiB);
  CHECK(samples[0].compute.empty());
  tests::kill_and_wait(process);
  snapshot(samples);
  CHECK(samples[1].compute.empty());
  CHECK_EQUAL(samples[1].memory.used, before);
}

TEST("a snapshot of some GPUs leaves the samples of the others alone") {
  const tests::SimulatedMachine machine("4");
  tests::opened_driver();
  const std::vector<uint32_t> some = {1, 3, 99};
  Samples samples = snapshot(&some);
  REQUIRE_EQUAL(samples.size(), 4u);
  CHECK_EQUAL(tests::health(samples), "1 ok 1 ok");  // UNINITIALIZED
  CHECK(std::isnan(samples[0].memory.total));
  CHECK_EQUAL(tests::opened_driver().descriptions()[0].uuid, "");
  CHECK(!tests::opened_driver().descriptions()[1].uuid.empty());
  snapshot(samples);
  machine.set("gpu=all power=123");
  snapshot(samples, &some);
  CHECK_EQUAL(samples[1].power_milliwatts, 123'000);
  CHECK(samples[0].power_milliwatts != 123'000);
  const std::vector<uint32_t> none;
  machine.set("gpu=all power=99");
  snapshot(samples, &none);
  CHECK_EQUAL(samples[1].power_milliwatts, 123'000);
}

TEST("a lost GPU, one that needs a reset, one without permission: the others are reported") {
  const tests::SimulatedMachine machine("5");
  tests::opened_driver();
  machine.set("gpu=0 no-permission=on gpu=1 lost=on gpu=3 reset-required=on");
  CHECK_EQUAL(tests::health(snapshot()), "4 15 ok 16 ok");
  machine.set("gpu=0 no-permission=off gpu=1 lost=off gpu=3 reset-required=off");
  CHECK_EQUAL(tests::health(snapshot()), "ok ok ok ok ok");
  CHECK_EQUAL(Driver::instance().descriptions()[0].uuid, tests::SimulatedMachine::uuid(0));
  machine.set("gpu=4 lost=on");  // one that is attached
  CHECK_EQUAL(tests::health(snapshot()), "ok ok ok ok 15");
  CHECK_EQUAL(Driver::instance().descriptions()[4].uuid, tests::SimulatedMachine::uuid(4));
}

TEST("what one GPU doesn't support is unknown for it alone") {
  const tests::SimulatedMachine machine("2");
  tests::opened_driver();
  machine.set("gpu=1 unsupported=power,temperature");
  const Samples samples = snapshot();
  CHECK_EQUAL(tests::health(samples), "ok ok");
  CHECK(!std::isnan(samples[0].power_milliwatts));
  CHECK(std::isnan(samples[1].power_milliwatts));
  CHECK(std::isnan(samples[1].temperature_celsius));
  CHECK(!std::isnan(samples[1].utilization_percent));
}

TEST("drivers of every age") {
  for (const char* name : {"old-driver", "oldest-driver", "early-r535", "h200x16", "mixed"}) {
    const int code = tests::end_of(tests::start([name] {
      const tests::SimulatedMachine machine(name);
      tests::opened_driver();
      const pid_t process = machine.occupy(1, "1GiB");
      const Samples samples = snapshot();
      for (const Sample& sample : samples) CHECK_EQUAL(sample.health, SUCCESS);
      REQUIRE_EQUAL(samples[1].compute.size(), 1u);
      CHECK_EQUAL(samples[1].compute[0].pid, static_cast<uint32_t>(process));
      CHECK(static_cast<double>(samples[1].compute[0].used_memory) >= kGiB);
      tests::kill_and_wait(process);
      tests::end_test();
      return 0;
    }));
    if (!CHECK_EQUAL(code, 0)) tests::fail(__FILE__, __LINE__, name);
  }
}

TEST("WSL: processes and utilization are unknown, memory isn't") {
  const tests::SimulatedMachine machine("wsl");
  tests::opened_driver();
  const Samples samples = snapshot();
  CHECK_EQUAL(tests::health(samples), "ok");
  CHECK(!samples[0].processes_known);
  CHECK(std::isnan(samples[0].utilization_percent));
  CHECK(samples[0].memory.used > 0);
}

TIMED_TEST("many snapshots cost no threads and no descriptors") {
  const tests::SimulatedMachine machine("8");
  tests::opened_driver();
  Samples samples = snapshot();
  const int descriptors = tests::open_descriptors(), threads = tests::threads();
  for (int i = 0; i < 5000 / tests::slowness(); i++) {
    snapshot(samples);
    REQUIRE_EQUAL(samples[7].health, SUCCESS);
    if (i % 500 == 0) tests::sleep_milliseconds(2);  // the worker has gone to sleep by then
  }
  CHECK_EQUAL(tests::open_descriptors(), descriptors);
  CHECK(tests::eventually([&] { return tests::threads() <= threads; }, 5000));
}
