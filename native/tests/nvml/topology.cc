// How GPUs are connected: what of it is known, and drivers that fail or don't answer.
#include <string>

#include "nvml/driver.h"
#include "support/directory.h"
#include "support/processes.h"
#include "support/snapshots.h"
#include "support/stopwatch.h"
#include "test.h"

using namespace gpu_owner::nvml;

namespace {

// A simulated machine that a file describes.
struct DescribedMachine {
  explicit DescribedMachine(const std::string& text)
      : path(tests::path_of("machine.conf")), machine((tests::write_file(path, text), path.c_str())) {
    tests::opened_driver();
    tests::snapshot();
  }

  const std::string path;
  const tests::SimulatedMachine machine;
};

const char kFour[] = "[gpu]\nname = NVIDIA A100 80GB PCIe\ncount = 4\n";

// "40+4" for a level and the NVLinks of each pair, with "s" where they lead to a switch; "?" where it isn't known.
std::string connections() {
  Topology topology;
  if (!Driver::instance().read_topology(topology, true)) return "no answer";
  std::string text;
  for (size_t i = 0; i < topology.places.size(); i++) {
    for (size_t j = i + 1; j < topology.places.size(); j++) {
      const Connection& connection = topology.between(i, j);
      const auto number = [](int32_t value) { return value < 0 ? std::string("?") : std::to_string(value); };
      text += (text.empty() ? "" : " ") + number(connection.level) + "+" + number(connection.nvlinks) +
              (connection.by_switch ? "s" : "");
      CHECK_EQUAL(topology.between(j, i).level, connection.level);
    }
  }
  return text;
}

}  // namespace

TIMED_TEST("two bridges, and one that is down") {
  const DescribedMachine machine(std::string("bridge = 0-2 4\nbridge = 1-3 2 down\n") + kFour);
  CHECK_EQUAL(connections(), "10+0 40+4 40+0 40+0 40+0 10+0");
  Topology topology;
  REQUIRE(Driver::instance().read_topology(topology, true));
  CHECK_EQUAL(topology.places[0].active_links, 4);
  CHECK_EQUAL(topology.places[0].inactive_links, 0);
  CHECK_EQUAL(topology.places[3].active_links, 0);
  CHECK_EQUAL(topology.places[3].inactive_links, 2);
  CHECK_EQUAL(topology.places[3].nodes.size(), 1u);
  CHECK(!topology.places[3].cpus.empty());
}

TIMED_TEST("NVSwitches join all") {
  const DescribedMachine machine("[gpu]\nname = NVIDIA H200\ncount = 8\nswitch = 0\n");
  const std::string each = "10+18s";
  std::string all = each;
  for (int i = 1; i < 28; i++) all += " " + each;
  CHECK_EQUAL(connections(), all);
}

TIMED_TEST("what the driver doesn't tell is unknown, and takes nothing else with it") {
  const DescribedMachine machine(std::string("bridge = 0-2 4\n") + kFour);
  machine.machine.set("error=topology:999");
  CHECK_EQUAL(connections(), "?+0 ?+4 ?+0 ?+0 ?+0 ?+0");
  machine.machine.set("error=topology:0");
  machine.machine.set("error=nvlink:999");
  CHECK_EQUAL(connections(), "10+? 40+? 40+? 40+? 40+? 10+?");
  machine.machine.set("error=nvlink:0");
  CHECK_EQUAL(connections(), "10+0 40+4 40+0 40+0 40+0 10+0");
}

TIMED_TEST("a driver that doesn't answer is given up on, and asked again when it does") {
  const DescribedMachine machine(kFour);
  machine.machine.set("gpu=1 hang=topology");
  const tests::Stopwatch watch;
  CHECK_EQUAL(connections(), "no answer");
  CHECK(watch.milliseconds() < 1500.0 * tests::slowness());
  CHECK_EQUAL(connections(), "no answer");
  CHECK(Driver::instance().has_call_out());
  machine.machine.set("gpu=1 hang=off");
  CHECK(tests::eventually([] { return connections() == "10+0 40+0 40+0 40+0 40+0 10+0"; }, 1000));
}
