// Some return codes are about the value that was asked for, others about the whole GPU.
#include "nvml/device.h"
#include "support/stub.h"
#include "test.h"

using namespace gpu_owner::nvml;
using tests::StubbedNvml;

namespace {

const Code kAboutTheGpu[] = {ERROR_GPU_IS_LOST,        ERROR_RESET_REQUIRED,         ERROR_IRQ_ISSUE,
                             ERROR_INSUFFICIENT_POWER, ERROR_DRIVER_NOT_LOADED,      ERROR_LIBRARY_NOT_FOUND,
                             ERROR_OPERATING_SYSTEM,   ERROR_LIB_RM_VERSION_MISMATCH};

}  // namespace

TEST("a code about the GPU from any call is its health") {
  StubbedNvml nvml("nvml-v3");
  Gpu gpu(0);
  Sample sample;
  for (const auto call :
       {&NvmlStub::Codes::memory_v2, &NvmlStub::Codes::power, &NvmlStub::Codes::power_limit,
        &NvmlStub::Codes::utilization, &NvmlStub::Codes::temperature_v, &NvmlStub::Codes::compute_mode,
        &NvmlStub::Codes::display, &NvmlStub::Codes::mig, &NvmlStub::Codes::processes_v3, &NvmlStub::Codes::graphics}) {
    for (const Code code : kAboutTheGpu) {
      nvml.stub.code = {};
      nvml.stub.code.*call = code;
      gpu.read(nvml.library, sample);
      CHECK_EQUAL(sample.health, code);
    }
  }
}

TEST("an unknown error is about the GPU where it is about memory or processes, not where it is about a sensor") {
  StubbedNvml nvml("nvml-v3");
  Gpu gpu(0);
  Sample sample;
  for (const auto call : {&NvmlStub::Codes::power, &NvmlStub::Codes::power_limit, &NvmlStub::Codes::utilization,
                          &NvmlStub::Codes::temperature_v}) {
    nvml.stub.code = {};
    nvml.stub.code.*call = ERROR_UNKNOWN;
    gpu.read(nvml.library, sample);
    CHECK_EQUAL(sample.health, SUCCESS);
  }
  for (const auto call : {&NvmlStub::Codes::memory_v2, &NvmlStub::Codes::processes_v3}) {
    nvml.stub.code = {};
    nvml.stub.code.*call = ERROR_UNKNOWN;
    gpu.read(nvml.library, sample);
    CHECK_EQUAL(sample.health, ERROR_UNKNOWN);
  }
}

TEST("the first such code is kept") {
  StubbedNvml nvml("nvml-v3");
  nvml.stub.code.memory_v2 = ERROR_RESET_REQUIRED;
  nvml.stub.code.power = ERROR_GPU_IS_LOST;
  Gpu gpu(0);
  Sample sample;
  gpu.read(nvml.library, sample);
  CHECK_EQUAL(sample.health, ERROR_RESET_REQUIRED);
}

TEST("a GPU that recovers is healthy again") {
  StubbedNvml nvml("nvml-v3");
  Gpu gpu(0);
  Sample sample;
  nvml.stub.code.memory_v2 = ERROR_GPU_IS_LOST;
  gpu.read(nvml.library, sample);
  CHECK_EQUAL(sample.health, ERROR_GPU_IS_LOST);
  nvml.stub.code.memory_v2 = SUCCESS;
  gpu.read(nvml.library, sample);
  CHECK_EQUAL(sample.health, SUCCESS);
}

TEST("NO_PERMISSION is about the GPU where its handle is asked for, and the handle is asked for again") {
  StubbedNvml nvml("nvml-v3");
  Gpu gpu(0);
  Sample sample;
  nvml.stub.code.handle = ERROR_NO_PERMISSION;
  gpu.read(nvml.library, sample);
  CHECK_EQUAL(sample.health, ERROR_NO_PERMISSION);
  CHECK_EQUAL(gpu.uuid(), "");
  nvml.stub.code.handle = SUCCESS;
  gpu.read(nvml.library, sample);
  CHECK_EQUAL(sample.health, SUCCESS);
  CHECK(!gpu.uuid().empty());
}

TEST("a GPU without a UUID can't be used; one without a name or bus id can") {
  StubbedNvml nvml("nvml-v3");
  Sample sample;
  nvml.stub.code.uuid = ERROR_NOT_SUPPORTED;
  Gpu nameless(0);
  nameless.read(nvml.library, sample);
  CHECK_EQUAL(sample.health, ERROR_NOT_SUPPORTED);
  nvml.stub.code.uuid = SUCCESS;
  nvml.stub.code.name = nvml.stub.code.pci = ERROR_NOT_SUPPORTED;
  Gpu gpu(0);
  gpu.read(nvml.library, sample);
  CHECK_EQUAL(sample.health, SUCCESS);
  CHECK_EQUAL(gpu.name(), "");
  CHECK_EQUAL(gpu.pci_bus_id(), "");
}

TEST("memory or MIG mode that can't be read for another reason than that there is none is about the GPU") {
  StubbedNvml nvml("nvml-v3");
  Gpu gpu(0);
  Sample sample;
  for (const auto call : {&NvmlStub::Codes::memory_v2, &NvmlStub::Codes::mig}) {
    for (int number = 1; number <= 30; number++) {
      const auto code = static_cast<Code>(number);
      nvml.stub.code = {};
      nvml.stub.code.*call = code;
      // Where the newer function lacks, the older one is asked.
      if (call == &NvmlStub::Codes::memory_v2) nvml.stub.code.memory_v1 = code;
      gpu.read(nvml.library, sample);
      const bool absent =
          code == ERROR_NOT_SUPPORTED || code == ERROR_FUNCTION_NOT_FOUND || code == ERROR_VERSION_MISMATCH;
      CHECK_EQUAL(sample.health, absent ? SUCCESS : code);
    }
  }
}
