// Process lists grow while they are read, and a sick driver may say anything about their length.
#include "nvml/device.h"
#include "support/stub.h"
#include "test.h"

using namespace gpu_owner::nvml;
using tests::StubbedNvml;

namespace {

Code compute(const StubbedNvml& nvml, std::vector<Process>& list) {
  return nvml.library.processes(nvml.device, Library::ProcessKind::compute, list);
}

}  // namespace

TEST("a list of the usual length takes one call") {
  StubbedNvml nvml("nvml-v3");
  nvml.stub.processes = 30;
  std::vector<Process> list;
  CHECK_EQUAL(compute(nvml, list), SUCCESS);
  CHECK_EQUAL(list.size(), 30u);
  CHECK_EQUAL(nvml.stub.v3_calls, 1);
}

TEST("no processes: success with an empty list") {
  StubbedNvml nvml("nvml-v3");
  std::vector<Process> list(3);
  CHECK_EQUAL(compute(nvml, list), SUCCESS);
  CHECK(list.empty());
}

TEST("lists around the first buffer's length, and far longer ones, are complete for every entry size") {
  for (const char* driver : {"nvml-unsuffixed", "nvml-v2", "nvml-v3", "nvml-early-r535"}) {
    StubbedNvml nvml(driver);
    std::vector<Process> list;
    compute(nvml, list);
    const uint32_t room = nvml.stub.first_room;
    CHECK(room > 0);
    for (const uint32_t length : {1u, room - 1, room, room + 1, room * 2 + 1, 5000u}) {
      nvml.stub.processes = length;
      CHECK_EQUAL(compute(nvml, list), SUCCESS);
      REQUIRE_EQUAL(list.size(), length);
      for (uint32_t i = 0; i < length; i++) REQUIRE_EQUAL(list[i].pid, 1000 + i);
      REQUIRE_EQUAL(list[length - 1].used_memory, uint64_t{length} << 20);
    }
  }
}

TEST("processes that start while the list is read are waited for with a larger buffer") {
  StubbedNvml nvml("nvml-v3");
  nvml.stub.processes = 100;
  nvml.stub.growth = 60;  // more than once outgrows what was asked for
  std::vector<Process> list;
  CHECK_EQUAL(compute(nvml, list), SUCCESS);
  CHECK(list.size() >= 160);
  CHECK(nvml.stub.v3_calls >= 2);
}

TEST("a list that outgrows every buffer is given up on") {
  StubbedNvml nvml("nvml-v3");
  nvml.stub.processes = 100;
  nvml.stub.growth = 100'000;
  std::vector<Process> list(1);
  CHECK_EQUAL(compute(nvml, list), ERROR_INSUFFICIENT_SIZE);
  CHECK(list.empty());
  CHECK(nvml.stub.v3_calls < 100);
}

TEST("a driver that wants an absurd number of entries is not believed") {
  StubbedNvml nvml("nvml-v3");
  std::vector<Process> list;
  for (const uint32_t needed : {65'536u, 1u << 28, 0x80000000u, 0xffffffffu}) {
    nvml.stub.pretended_needed = needed;
    CHECK_EQUAL(compute(nvml, list), ERROR_INSUFFICIENT_SIZE);
    CHECK(list.empty());
  }
}

TEST("a driver for which no buffer is ever big enough ends") {
  StubbedNvml nvml("nvml-v3");
  std::vector<Process> list;
  for (const uint32_t needed : {0u, 1u, 64u, 1000u}) {
    nvml.stub.needs_nothing = true;
    nvml.stub.pretended_needed = needed;
    nvml.stub.v3_calls = 0;
    CHECK_EQUAL(compute(nvml, list), ERROR_INSUFFICIENT_SIZE);
    CHECK(nvml.stub.v3_calls < 100);
  }
}

TEST("a driver that claims more entries than there was room for gets nothing read beyond it") {
  for (const char* driver : {"nvml-unsuffixed", "nvml-v3", "nvml-early-r535"}) {
    for (const uint32_t processes : {3u, 100u}) {  // into the first buffer, and into a larger one
      for (const uint32_t pretended : {200u, 70'000u, 0x7fffffffu, 0xffffffffu}) {
        StubbedNvml nvml(driver);
        nvml.stub.processes = processes;
        nvml.stub.pretended_count = pretended;
        std::vector<Process> list;
        compute(nvml, list);
        CHECK(list.size() <= 200);
      }
    }
  }
}

TEST("the memory of a process that the driver can't tell stays unknown") {
  for (const char* driver : {"nvml-unsuffixed", "nvml-v2", "nvml-v3"}) {
    StubbedNvml nvml(driver);
    nvml.stub.processes = 1;
    nvml.stub.memory_unknown = true;
    std::vector<Process> list;
    CHECK_EQUAL(compute(nvml, list), SUCCESS);
    REQUIRE_EQUAL(list.size(), 1u);
    CHECK_EQUAL(list[0].used_memory, kUnknownMemory);
  }
}

TEST("clients of an MPS server count as computing, once each, for every entry size") {
  for (const char* driver : {"nvml-unsuffixed", "nvml-v2", "nvml-v3", "nvml-early-r535"}) {
    StubbedNvml nvml(driver);
    nvml.stub.processes = 3;  // 1000 to 1002
    nvml.stub.mps_first = 1002;
    nvml.stub.mps = 100;
    Gpu gpu(0);
    Sample sample;
    gpu.read(nvml.library, sample);
    CHECK(sample.processes_known);
    REQUIRE_EQUAL(sample.compute.size(), 102u);
    CHECK_EQUAL(sample.compute[2].used_memory, uint64_t{3} << 20);
    for (uint32_t i = 0; i < 102; i++) REQUIRE_EQUAL(sample.compute[i].pid, 1000 + i);
    CHECK_EQUAL(sample.compute[101].used_memory, uint64_t{5} << 20);
  }
}

TEST(
    "an idle GPU is not asked for clients of an MPS server, and a driver that can't list them still lists the others") {
  StubbedNvml nvml("nvml-v3");
  nvml.stub.mps = 2;
  Gpu gpu(0);
  Sample sample;
  gpu.read(nvml.library, sample);
  CHECK_EQUAL(nvml.stub.mps_calls, 0);
  nvml.stub.processes = 1;
  for (const Code code : {ERROR_NOT_SUPPORTED, ERROR_NO_PERMISSION, ERROR_UNKNOWN}) {
    nvml.stub.mps_code = code;
    gpu.read(nvml.library, sample);
    CHECK(sample.processes_known);
    CHECK_EQUAL(sample.health, SUCCESS);
    CHECK_EQUAL(sample.compute.size(), 1u);
  }
}
