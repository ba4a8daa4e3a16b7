// Threads that look at several GPUs, and a second user of NVML in this process, on drivers that bear them and on
// others.
#include "nvml/probe.h"

#include "support/processes.h"
#include "support/simulator.h"
#include "support/snapshots.h"
#include "test.h"

using namespace gpu_owner::nvml;
using tests::SimulatedMachine;

namespace {

const std::vector<std::string> kBoth = {SimulatedMachine::uuid(0), SimulatedMachine::uuid(1)};

// How much longer a snapshot takes while the other GPU is read, too.
double slowdown(const SnapshotTimes& times) {
  REQUIRE_EQUAL(times.code, SUCCESS);
  REQUIRE_EQUAL(times.alone.size(), size_t{2});
  const double alone = times.alone[0] > times.alone[1] ? times.alone[0] : times.alone[1];
  return times.together / alone;
}

}  // namespace

TIMED_TEST("looks at two GPUs, side by side and one after the other") {
  if (tests::under_valgrind()) tests::skip("under valgrind only one thread runs at a time");
  const SimulatedMachine machine("2");
  const Library& library = tests::opened_driver().library();
  machine.set("latency=memory:10000");
  CHECK(slowdown(measure_snapshots(library, kBoth, 200)) < 1.5);
  machine.set("quirks=serial");
  CHECK(slowdown(measure_snapshots(library, kBoth, 200)) > 1.6);
}

TEST("a GPU that can't be looked at") {
  const SimulatedMachine machine("2");
  const Library& library = tests::opened_driver().library();
  machine.set("gpu=1 lost=on");
  CHECK_EQUAL(measure_snapshots(library, kBoth, 1).code, ERROR_GPU_IS_LOST);
  CHECK_EQUAL(use_beside(library, "", SimulatedMachine::uuid(7), 1).ours, ERROR_NOT_FOUND);
}

TEST("a second user of NVML comes and goes") {
  const SimulatedMachine machine("2");
  tests::opened_driver();
  const Library& library = tests::opened_driver().library();
  const SecondUserResult good = use_beside(library, library.path(), kBoth[0], 10);
  CHECK_EQUAL(good.other, SUCCESS);
  CHECK_EQUAL(good.ours, SUCCESS);
  CHECK(good.same_memory);
  CHECK_EQUAL(use_beside(library, "/nonexistent.so", kBoth[0], 1).other, ERROR_LIBRARY_NOT_FOUND);
  machine.set("quirks=uncounted-shutdown");
  const SecondUserResult bad = use_beside(library, library.path(), kBoth[0], 2);
  CHECK_EQUAL(bad.ours, ERROR_UNINITIALIZED);
}

TEST("the energy counter goes with the power") {
  const SimulatedMachine machine("1");
  const Library& library = tests::opened_driver().library();
  Device device = nullptr;
  REQUIRE_EQUAL(library.device_handle(SimulatedMachine::uuid(0), device), SUCCESS);
  machine.set("gpu=0 power=100000");  // watts
  uint64_t first = 0, second = 0;
  REQUIRE_EQUAL(library.energy_millijoules(device, first), SUCCESS);
  const auto changes = [&] { return library.energy_millijoules(device, second) == SUCCESS && second > first; };
  CHECK(tests::eventually(changes, 1000));
  machine.set("quirks=frozen-energy");
  REQUIRE_EQUAL(library.energy_millijoules(device, first), SUCCESS);
  CHECK(!tests::eventually(changes, 50));
}
