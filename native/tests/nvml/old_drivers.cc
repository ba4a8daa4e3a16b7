// Drivers of several ages lack functions, or have them with other structures: the library settles that.
#include <cmath>

#include "support/stub.h"
#include "test.h"

using namespace gpu_owner::nvml;
using tests::StubbedNvml;

namespace {

constexpr double kMiB = 1024 * 1024;

void check_two_processes(const StubbedNvml& nvml) {
  std::vector<Process> list;
  REQUIRE_EQUAL(nvml.library.processes(nvml.device, Library::ProcessKind::compute, list), SUCCESS);
  REQUIRE_EQUAL(list.size(), 2u);
  for (uint32_t i = 0; i < 2; i++) {
    CHECK_EQUAL(list[i].pid, 1000 + i);
    CHECK_EQUAL(static_cast<double>(list[i].used_memory), (i + 1) * kMiB);
    // Without MIG, or in an entry that has no room for them.
    CHECK_EQUAL(list[i].gpu_instance, ~0u);
    CHECK_EQUAL(list[i].compute_instance, ~0u);
  }
}

}  // namespace

TEST("functions without suffix, process entries of 16 bytes, used memory that includes what is reserved") {
  StubbedNvml nvml("nvml-unsuffixed");
  nvml.stub.processes = 2;
  check_two_processes(nvml);
  Memory memory;
  REQUIRE_EQUAL(nvml.library.memory(nvml.device, memory), SUCCESS);
  CHECK_EQUAL(memory.total, 100);
  CHECK_EQUAL(memory.free, 70);
  CHECK_EQUAL(memory.used, 30);
  CHECK(std::isnan(memory.reserved));
  std::string bus;
  REQUIRE_EQUAL(nvml.library.pci_bus_id(nvml.device, bus), SUCCESS);
  CHECK_EQUAL(bus, "00000000:01:00.0");
}

TEST("_v2 process lists have entries of 24 bytes; used memory excludes what is reserved") {
  StubbedNvml nvml("nvml-v2");
  nvml.stub.processes = 2;
  check_two_processes(nvml);
  CHECK_EQUAL(nvml.stub.v2_calls, 1);
  CHECK_EQUAL(nvml.stub.v1_calls, 0);
  Memory memory;
  REQUIRE_EQUAL(nvml.library.memory(nvml.device, memory), SUCCESS);
  CHECK_EQUAL(memory.used, 20);
  CHECK_EQUAL(memory.reserved, 10);
}

TEST("_v3 process lists have entries of 24 bytes") {
  StubbedNvml nvml("nvml-v3");
  nvml.stub.processes = 2;
  check_two_processes(nvml);
  CHECK_EQUAL(nvml.stub.v3_calls, 1);
  CHECK_EQUAL(nvml.stub.v2_calls + nvml.stub.v1_calls, 0);
}

TEST("the _v3 process lists of early R535 drivers have entries of 32 bytes") {
  StubbedNvml nvml("nvml-early-r535");
  nvml.stub.processes = 2;
  check_two_processes(nvml);
  CHECK_EQUAL(nvml.stub.v3_calls, 1);
}

TEST("later R535 drivers have entries of 24 bytes") {
  StubbedNvml nvml("nvml-r535");
  nvml.stub.processes = 2;
  check_two_processes(nvml);
}

TEST("a function that exists and returns FUNCTION_NOT_FOUND is as good as missing") {
  StubbedNvml nvml("nvml-v3");
  nvml.stub.processes = 2;
  nvml.stub.code.processes_v3 = ERROR_FUNCTION_NOT_FOUND;
  check_two_processes(nvml);
  CHECK_EQUAL(nvml.stub.v2_calls, 1);
  nvml.stub.code.processes_v2 = ERROR_FUNCTION_NOT_FOUND;
  check_two_processes(nvml);
  CHECK_EQUAL(nvml.stub.v1_calls, 1);

  nvml.stub.code.memory_v2 = ERROR_FUNCTION_NOT_FOUND;
  Memory memory;
  REQUIRE_EQUAL(nvml.library.memory(nvml.device, memory), SUCCESS);
  CHECK_EQUAL(memory.used, 30);

  int32_t celsius = 0;
  CHECK_EQUAL(nvml.library.temperature_celsius(nvml.device, celsius), SUCCESS);
  CHECK_EQUAL(celsius, 41);
  nvml.stub.code.temperature_v = ERROR_FUNCTION_NOT_FOUND;
  CHECK_EQUAL(nvml.library.temperature_celsius(nvml.device, celsius), SUCCESS);
  CHECK_EQUAL(celsius, 40);
}

TEST("where every process list is missing, the answer is FUNCTION_NOT_FOUND and not an empty list") {
  StubbedNvml nvml("nvml-v3");
  nvml.stub.processes = 2;
  nvml.stub.code.processes_v3 = nvml.stub.code.processes_v2 = nvml.stub.code.processes_v1 = ERROR_FUNCTION_NOT_FOUND;
  std::vector<Process> list(5);
  CHECK_EQUAL(nvml.library.processes(nvml.device, Library::ProcessKind::compute, list), ERROR_FUNCTION_NOT_FOUND);
  CHECK(list.empty());
}

TEST("memory falls back when the structure's version isn't known, but not on other errors") {
  StubbedNvml nvml("nvml-v3");
  Memory memory;
  for (const int code : {ERROR_VERSION_MISMATCH, ERROR_NOT_SUPPORTED}) {
    nvml.stub.code.memory_v2 = code;
    REQUIRE_EQUAL(nvml.library.memory(nvml.device, memory), SUCCESS);
    CHECK_EQUAL(memory.used, 30);
    CHECK(std::isnan(memory.reserved));
  }
  nvml.stub.code.memory_v2 = ERROR_GPU_IS_LOST;
  CHECK_EQUAL(nvml.library.memory(nvml.device, memory), ERROR_GPU_IS_LOST);
}

TEST("a library that lacks what every NVML has is refused, and says what") {
  Library library;
  CHECK(!library.load(tests::stub_path("nvml-without-uuid")));
  CHECK_EQUAL(library.missing(), "nvmlDeviceGetUUID");
  CHECK_EQUAL(library.path(), tests::stub_path("nvml-without-uuid"));
  // A whole one can be loaded after it.
  CHECK(library.load(tests::stub_path("nvml-v2")));
  CHECK_EQUAL(library.missing(), "");
}
