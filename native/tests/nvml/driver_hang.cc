// GPUs for which the driver doesn't answer: given up on in time, the others reported, had again when they answer.
#include <errno.h>
#include <unistd.h>

#include "locks/locks.h"
#include "support/directory.h"
#include "support/processes.h"
#include "support/snapshots.h"
#include "support/stopwatch.h"
#include "test.h"

using namespace gpu_owner;
using namespace gpu_owner::nvml;
using tests::health;
using tests::Samples;
using tests::snapshot;

namespace {

// Time that a snapshot may take however many GPUs hang, and when those are known.
const double kLimit = 1500.0 * tests::slowness();
const double kKnown = 300.0 * tests::slowness();

std::string health_within(double milliseconds) {
  const tests::Stopwatch watch;
  const std::string text = health(snapshot());
  if (watch.milliseconds() >= milliseconds) {
    tests::fail(__FILE__, __LINE__, "took " + std::to_string(watch.milliseconds()) + " ms: " + text);
  }
  return text;
}

bool recovers(const std::string& expected) {
  return tests::eventually([&] { return health(snapshot()) == expected; }, 1000);
}

}  // namespace

TIMED_TEST("one GPU hangs") {
  const tests::SimulatedMachine machine("4");
  tests::opened_driver();
  CHECK_EQUAL(health(snapshot()), "ok ok ok ok");
  const int threads = tests::threads();
  machine.set("gpu=1 hang=memory");
  CHECK_EQUAL(health_within(kLimit), "ok hangs ok ok");
  for (int i = 0; i < 20; i++) REQUIRE_EQUAL(health_within(kKnown), "ok hangs ok ok");
  machine.set("gpu=1 hang=off");
  CHECK(recovers("ok ok ok ok"));
  CHECK(tests::eventually([&] { return tests::threads() <= threads; }));
}

TIMED_TEST("it hangs again later") {
  const tests::SimulatedMachine machine("2");
  tests::opened_driver();
  for (int i = 0; i < 2; i++) {
    machine.set("gpu=0 hang=processes");
    CHECK_EQUAL(health_within(kLimit), "hangs ok");
    machine.set("gpu=0 hang=off");
    CHECK(recovers("ok ok"));
  }
}

TIMED_TEST("two GPUs hang") {
  const tests::SimulatedMachine machine("6");
  tests::opened_driver();
  machine.set("gpu=1,4 hang=power");
  CHECK_EQUAL(health_within(kLimit), "ok hangs ok ok hangs ok");
  CHECK_EQUAL(health_within(kKnown), "ok hangs ok ok hangs ok");
  machine.set("gpu=1 hang=off");
  CHECK(recovers("ok ok ok ok hangs ok"));
  machine.set("gpu=4 hang=off");
  CHECK(recovers("ok ok ok ok ok ok"));
}

TIMED_TEST("all GPUs hang") {
  const tests::SimulatedMachine machine("8");
  tests::opened_driver();
  machine.set("hang=memory");
  CHECK_EQUAL(health_within(kLimit), "hangs hangs hangs hangs hangs hangs hangs hangs");
  CHECK_EQUAL(health_within(kKnown), "hangs hangs hangs hangs hangs hangs hangs hangs");
  machine.set("hang=off");
  CHECK(recovers("ok ok ok ok ok ok ok ok"));
}

TIMED_TEST("a GPU hangs when its handle is asked for: nothing is known of it until it answers") {
  const tests::SimulatedMachine machine("3");
  machine.set("gpu=2 hang=handle");
  Driver& driver = tests::opened_driver();
  CHECK_EQUAL(health_within(kLimit), "ok ok hangs");
  CHECK_EQUAL(driver.descriptions()[2].uuid, "");
  CHECK_EQUAL(driver.descriptions()[1].uuid, tests::SimulatedMachine::uuid(1));
  machine.set("gpu=2 hang=off");
  CHECK(recovers("ok ok ok"));
  CHECK_EQUAL(driver.descriptions()[2].uuid, tests::SimulatedMachine::uuid(2));
}

TIMED_TEST("a known hang costs the others nothing, and a snapshot that leaves it out doesn't meet it") {
  const tests::SimulatedMachine machine("3");
  tests::opened_driver();
  Samples samples = snapshot();
  machine.set("gpu=0 hang=memory");
  const std::vector<uint32_t> others = {1, 2};
  const tests::Stopwatch watch;
  snapshot(samples, &others);
  CHECK(watch.milliseconds() < kKnown);
  CHECK_EQUAL(health(samples), "ok ok ok");  // the first as it was
}

TIMED_TEST("one GPU hangs while another is known to") {
  const tests::SimulatedMachine machine("3");
  tests::opened_driver();
  machine.set("gpu=0 hang=memory");
  CHECK_EQUAL(health_within(kLimit), "hangs ok ok");
  machine.set("gpu=1 hang=memory");
  CHECK_EQUAL(health_within(kLimit), "hangs hangs ok");
  machine.set("gpu=0,1 hang=off");
  CHECK(recovers("ok ok ok"));
}

TIMED_TEST("GPUs that are slow, but answer, are waited for") {
  const tests::SimulatedMachine machine("4");
  tests::opened_driver();
  machine.set("latency=power:400000,memory:500000,temperature:600000");
  const tests::Stopwatch watch;
  CHECK_EQUAL(health(snapshot()), "ok ok ok ok");
  CHECK(watch.milliseconds() >= 1500);  // each takes more than any single call may take
}

TIMED_TEST("GPUs that are slow are asked side by side, from the first snapshot on") {
  const tests::SimulatedMachine machine("16");
  tests::opened_driver();
  machine.set("latency=power:100000");
  for (int i = 0; i < 3; i++) {
    const tests::Stopwatch watch;
    const Samples samples = snapshot();
    CHECK(watch.milliseconds() < 16 * 100 / 2);
    for (const Sample& sample : samples) CHECK_EQUAL(sample.health, SUCCESS);
  }
  machine.set("latency=off");
  snapshot();
  const int threads = tests::threads();  // the last that helped may be on its way out
  for (int i = 0; i < 20; i++) snapshot();
  CHECK(tests::threads() <= threads);
}

TIMED_TEST("one GPU hangs while others are slow, and others hang in a snapshot side by side") {
  const tests::SimulatedMachine machine("6");
  tests::opened_driver();
  machine.set("latency=power:20000");
  CHECK_EQUAL(health(snapshot()), "ok ok ok ok ok ok");
  machine.set("gpu=2 hang=memory");
  CHECK_EQUAL(health_within(kLimit), "ok ok hangs ok ok ok");
  CHECK_EQUAL(health_within(kKnown), "ok ok hangs ok ok ok");
  machine.set("gpu=0,5 hang=memory");
  CHECK_EQUAL(health_within(kLimit), "hangs ok hangs ok ok hangs");
  machine.set("gpu=all hang=off");
  CHECK(recovers("ok ok ok ok ok ok"));
}

TIMED_TEST("calls that return at the moment when they are given up on") {
  const tests::SimulatedMachine machine("2");
  tests::opened_driver();
  snapshot();
  for (const int milliseconds : {798, 800, 801}) {
    machine.set("gpu=0 latency=memory:" + std::to_string(milliseconds * 1000));
    const Samples samples = snapshot();
    CHECK(samples[0].health == SUCCESS || samples[0].health == kNotResponding);
    CHECK_EQUAL(samples[1].health, SUCCESS);
    machine.set("gpu=0 latency=off");
    CHECK(recovers("ok ok"));
  }
}

TIMED_TEST("a process with a call that hangs ends at once, and its locks end when it closes them") {
  const tests::SimulatedMachine machine("2");
  tests::Channel channel;
  const pid_t process = tests::start([&] {
    tests::opened_driver();
    const int file = tests::open_file(tests::path_of("lock"));
    locks::try_lock(file, locks::Kind::ofd, locks::Mode::exclusive, {0, 1});
    machine.set("gpu=0 hang=memory");
    if (health(snapshot()) != "hangs ok") return 1;
    close(file);
    const int other = tests::open_file(tests::path_of("lock"));
    if (locks::try_lock(other, locks::Kind::ofd, locks::Mode::exclusive, {0, 1}) != 0) return 2;
    channel.say();
    exit(3);
  });
  CHECK(channel.hear() != 0);
  const tests::Stopwatch watch;
  CHECK_EQUAL(tests::end_of(process), 3);
  CHECK(watch.milliseconds() < kKnown);
}
