#include "support/stub.h"

#include <dlfcn.h>

#include "test.h"

namespace tests {

std::string stub_path(const std::string& name) { return std::string(STUB_DIRECTORY "/lib") + name + ".so"; }

NvmlStub& stub_of(const std::string& name) {
  void* handle = dlopen(stub_path(name).c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE(handle != nullptr);
  void* stub = dlsym(handle, "stub");
  REQUIRE(stub != nullptr);
  return *static_cast<NvmlStub*>(stub);
}

StubbedNvml::StubbedNvml(const std::string& name) : stub(stub_of(name)) {
  REQUIRE(library.load(stub_path(name)));
  REQUIRE_EQUAL(library.init(), gpu_owner::nvml::SUCCESS);
  REQUIRE_EQUAL(library.device_handle(0, device), gpu_owner::nvml::SUCCESS);
}

}  // namespace tests
