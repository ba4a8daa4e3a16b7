// A value that the driver can't give is NaN, never 0, and takes nothing else with it.
#include <cmath>

#include "nvml/device.h"
#include "support/stub.h"
#include "test.h"

using namespace gpu_owner::nvml;
using tests::StubbedNvml;

namespace {

const Code kAboutTheValue[] = {ERROR_NOT_SUPPORTED, ERROR_NO_PERMISSION, ERROR_FUNCTION_NOT_FOUND, ERROR_NO_DATA,
                               ERROR_VERSION_MISMATCH};

// How many values of a sample are unknown.
int unknown(const Sample& sample) {
  int count = 0;
  const auto& [total, used, free, reserved] = sample.memory;
  for (const double value : {total, used, free, reserved}) count += std::isnan(value);
  for (const float value : {sample.power_milliwatts, sample.power_limit_milliwatts, sample.utilization_percent,
                            sample.temperature_celsius, sample.compute_mode, sample.display_active, sample.mig_mode}) {
    count += std::isnan(value);
  }
  return count;
}

}  // namespace

TEST("a new sample knows nothing") {
  Sample sample;
  CHECK_EQUAL(unknown(sample), 11);
  CHECK(!sample.processes_known);
  CHECK_EQUAL(sample.health, ERROR_UNINITIALIZED);
}

TEST("a sample of a GPU that answers everything") {
  StubbedNvml nvml("nvml-v3");
  nvml.stub.processes = 2;
  Gpu gpu(0);
  Sample sample;
  gpu.read(nvml.library, sample);
  CHECK_EQUAL(sample.health, SUCCESS);
  CHECK_EQUAL(unknown(sample), 0);
  CHECK_EQUAL(sample.power_milliwatts, 50'000);
  CHECK_EQUAL(sample.power_limit_milliwatts, 300'000);
  CHECK_EQUAL(sample.utilization_percent, 7);
  CHECK_EQUAL(sample.temperature_celsius, 41);
  CHECK_EQUAL(sample.compute_mode, 0);
  CHECK_EQUAL(sample.display_active, 0);
  CHECK_EQUAL(sample.mig_mode, 0);
  CHECK(sample.processes_known);
  CHECK_EQUAL(sample.compute.size(), 2u);
  CHECK_EQUAL(gpu.uuid(), "GPU-11111111-2222-3333-4444-555555555555");
  CHECK_EQUAL(gpu.name(), "Stub");
}

TEST("each value that is missing is NaN, and the others are there") {
  StubbedNvml nvml("nvml-v3");
  struct {
    int NvmlStub::Codes::* code;
    double Sample::* value;
  } const fields[] = {
      {&NvmlStub::Codes::power, &Sample::power_milliwatts},
      {&NvmlStub::Codes::power_limit, &Sample::power_limit_milliwatts},
      {&NvmlStub::Codes::utilization, &Sample::utilization_percent},
      {&NvmlStub::Codes::compute_mode, &Sample::compute_mode},
      {&NvmlStub::Codes::display, &Sample::display_active},
  };
  Gpu gpu(0);
  Sample sample;
  for (const auto& field : fields) {
    for (const Code code : kAboutTheValue) {
      nvml.stub.code = {};
      nvml.stub.code.*field.code = code;
      gpu.read(nvml.library, sample);
      CHECK_EQUAL(sample.health, SUCCESS);
      CHECK(std::isnan(sample.*field.value));
      CHECK_EQUAL(unknown(sample), 1);
    }
  }
}

TEST("memory and temperature are NaN when neither of their functions gives them") {
  StubbedNvml nvml("nvml-v3");
  Gpu gpu(0);
  Sample sample;
  for (const Code code : kAboutTheValue) {
    nvml.stub.code = {};
    nvml.stub.code.memory_v1 = nvml.stub.code.memory_v2 = code;
    nvml.stub.code.temperature = nvml.stub.code.temperature_v = code;
    gpu.read(nvml.library, sample);
    CHECK(std::isnan(sample.temperature_celsius));
    CHECK_EQUAL(unknown(sample), 5);
  }
}

TEST("a process list that is missing is unknown, not empty") {
  StubbedNvml nvml("nvml-v3");
  nvml.stub.processes = 2;
  Gpu gpu(0);
  Sample sample;
  for (const Code code : kAboutTheValue) {
    nvml.stub.code = {};
    nvml.stub.code.processes_v1 = nvml.stub.code.processes_v2 = nvml.stub.code.processes_v3 = code;
    gpu.read(nvml.library, sample);
    CHECK_EQUAL(sample.health, SUCCESS);
    CHECK(!sample.processes_known);
    CHECK(sample.compute.empty());
  }
}

TEST("a list that was given once is not kept when it is missing later") {
  StubbedNvml nvml("nvml-v3");
  nvml.stub.processes = 2;
  Gpu gpu(0);
  Sample sample;
  gpu.read(nvml.library, sample);
  CHECK_EQUAL(sample.compute.size(), 2u);
  nvml.stub.code.processes_v3 = ERROR_NO_PERMISSION;
  nvml.stub.code.power = ERROR_NOT_SUPPORTED;
  gpu.read(nvml.library, sample);
  CHECK(!sample.processes_known);
  CHECK(sample.compute.empty());
  CHECK(std::isnan(sample.power_milliwatts));
}

TEST("a GPU without graphics is known to have no graphics processes; one that hides them isn't") {
  StubbedNvml nvml("nvml-v3");
  Gpu gpu(0);
  Sample sample;
  for (const Code code : {ERROR_NOT_SUPPORTED, ERROR_FUNCTION_NOT_FOUND}) {
    nvml.stub.code.graphics = code;
    gpu.read(nvml.library, sample);
    CHECK(sample.processes_known);
  }
  for (const Code code : {ERROR_NO_PERMISSION, ERROR_NO_DATA, ERROR_INSUFFICIENT_SIZE}) {
    nvml.stub.code.graphics = code;
    gpu.read(nvml.library, sample);
    CHECK(!sample.processes_known);
  }
}
