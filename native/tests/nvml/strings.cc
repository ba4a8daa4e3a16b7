// Strings come in buffers of fixed length, and nothing promises that they end in it.
#include <string.h>

#include "support/stub.h"
#include "test.h"

using namespace gpu_owner::nvml;
using tests::StubbedNvml;

TEST("strings that the driver doesn't terminate are cut at the end of their buffer") {
  StubbedNvml nvml("nvml-v3");
  nvml.stub.unterminated = true;
  std::string text;
  CHECK_EQUAL(nvml.library.uuid(nvml.device, text), SUCCESS);
  CHECK_EQUAL(text, std::string(kStringSize, 'x'));
  CHECK_EQUAL(nvml.library.name(nvml.device, text), SUCCESS);
  CHECK_EQUAL(text, std::string(kStringSize, 'x'));
  CHECK_EQUAL(nvml.library.driver_version(text), SUCCESS);
  CHECK_EQUAL(text, std::string(kStringSize, 'x'));
  CHECK_EQUAL(nvml.library.pci_bus_id(nvml.device, text), SUCCESS);
  CHECK_EQUAL(text, std::string(sizeof(PciInfo::bus_id), 'x'));
}

TEST("a string stays as it was when the driver doesn't give it") {
  StubbedNvml nvml("nvml-v3");
  nvml.stub.code.name = ERROR_NOT_SUPPORTED;
  std::string text = "before";
  CHECK_EQUAL(nvml.library.name(nvml.device, text), ERROR_NOT_SUPPORTED);
  CHECK_EQUAL(text, "before");
}

TEST("every code has words") {
  for (int code = -1; code < 1000; code++) CHECK(strlen(code_text(code)) > 0);
  CHECK_EQUAL(code_text(ERROR_GPU_IS_LOST), "the GPU has fallen off the bus");
}
