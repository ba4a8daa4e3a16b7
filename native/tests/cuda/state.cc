// Whether CUDA is initialised in this process is found out without loading or initialising it.
#include "cuda/library.h"
#include "support/processes.h"
#include "support/simulator.h"
#include "support/stub.h"
#include "test.h"

using namespace gpu_owner::cuda;

namespace {

bool mapped() { return tests::contents_of("/proc/self/maps").find("libcuda.so.1") != std::string::npos; }

}  // namespace

TEST("the state is not loaded, then loaded, then initialised") {
  const tests::SimulatedMachine machine("2");
  CHECK_EQUAL(state(tests::simulated_cuda()), State::not_loaded);
  CHECK_EQUAL(state(""), State::not_loaded);
  CHECK(!mapped());
  Library library;
  REQUIRE(library.load(tests::simulated_cuda()));
  CHECK_EQUAL(state(tests::simulated_cuda()), State::loaded);
  CHECK_EQUAL(state(""), State::loaded);  // by its soname, wherever it came from
  CHECK_EQUAL(state(""), State::loaded);  // asking changes nothing
  CHECK_EQUAL(library.init(), SUCCESS);
  CHECK_EQUAL(state(tests::simulated_cuda()), State::initialized);
  CHECK_EQUAL(state(""), State::initialized);
}

TEST("a start that failed is none") {
  const tests::SimulatedMachine machine("2");
  machine.set("error=cuda-init:100");
  Library library;
  REQUIRE(library.load(tests::simulated_cuda()));
  CHECK_EQUAL(library.init(), ERROR_NO_DEVICE);
  CHECK_EQUAL(state(""), State::loaded);
}

TEST("without devices, CUDA finds none") {
  const tests::SimulatedMachine machine("2");
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  Library library;
  REQUIRE(library.load(tests::simulated_cuda()));
  CHECK_EQUAL(library.init(), ERROR_NO_DEVICE);
}

TEST("the library of the toolkit, which answers nothing, is none that was started") {
  const std::string path = tests::stub_path("cuda-of-toolkit");
  Library library;
  REQUIRE(library.load(path));
  CHECK_EQUAL(state(path), State::loaded);
}
