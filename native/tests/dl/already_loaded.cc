// Asking whether a library is loaded doesn't load it.
#include "dl/library.h"
#include "support/processes.h"
#include "support/simulator.h"
#include "support/stub.h"
#include "test.h"

using namespace gpu_owner;

namespace {

bool mapped(const char* name) { return tests::contents_of("/proc/self/maps").find(name) != std::string::npos; }

}  // namespace

TEST("a library that nobody has loaded is not there, and still isn't after the question") {
  const std::string path = tests::stub_path("nvml-v3");
  CHECK(dl::already_loaded(path) == nullptr);
  CHECK(dl::already_loaded(path) == nullptr);
  CHECK(!mapped("nvml-v3"));
  CHECK(dl::already_loaded("libgpu-owner-missing.so.1") == nullptr);
}

TEST("a library that is loaded is found under the path it was loaded by") {
  const std::string path = tests::stub_path("nvml-v3");
  const auto opened = dl::open_first({path});
  CHECK(dl::already_loaded(path) == opened.handle);
}

TEST("a library that was asked for by its bare name is told with the file it came from") {
  CHECK_EQUAL(dl::loaded_from(nullptr), "");
  const auto opened = dl::open_first({"libc.so.6", "libc.so"});
  REQUIRE(opened.handle != nullptr);
  CHECK_EQUAL(dl::loaded_from(opened.handle)[0], '/');
  CHECK(dl::loaded_from(opened.handle) != opened.path);
  const std::string path = tests::stub_path("nvml-v3");
  CHECK_EQUAL(dl::loaded_from(dl::open_first({path}).handle), path);
}

TEST("a library that is loaded from anywhere is found under its soname") {
  CHECK(dl::already_loaded("libcuda.so.1") == nullptr);
  const auto opened = dl::open_first({tests::simulated_cuda()});
  REQUIRE(opened.handle != nullptr);
  CHECK(dl::already_loaded("libcuda.so.1") == opened.handle);
}
