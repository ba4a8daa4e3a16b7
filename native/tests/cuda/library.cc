// The CUDA library of several ages, and calls that leave the caller's state alone.
#include "cuda/library.h"

#include <dlfcn.h>
#include <string.h>

#include "support/simulator.h"
#include "support/stub.h"
#include "test.h"

using namespace gpu_owner::cuda;

TEST("functions without suffix do where there are no others") {
  Library library;
  REQUIRE(library.load(tests::stub_path("cuda-unsuffixed")));
  CHECK_EQUAL(library.path(), tests::stub_path("cuda-unsuffixed"));
  CHECK_EQUAL(library.init(), SUCCESS);
  int count = 0;
  CHECK_EQUAL(library.device_count(count), SUCCESS);
  CHECK_EQUAL(count, 1);
  Device device = -1;
  CHECK_EQUAL(library.device(0, device), SUCCESS);
  std::string uuid;
  CHECK_EQUAL(library.uuid(device, uuid), SUCCESS);
  CHECK_EQUAL(uuid, "00010203-0405-0607-0809-0a0b0c0d0eff");
  Context context = nullptr;
  CHECK_EQUAL(library.retain_primary(device, context), SUCCESS);
  Pointer pointer = 0;
  CHECK_EQUAL(library.allocate(context, 100, pointer), SUCCESS);
  CHECK_EQUAL(library.free(context, pointer), SUCCESS);
  CHECK_EQUAL(library.release_primary(device), SUCCESS);
}

TEST("the version that the driver supports is told without initialising CUDA, or not at all") {
  Library library;
  CHECK_EQUAL(library.supported_version(), 0);
  CHECK_EQUAL(library.file(), "");
  REQUIRE(library.load(tests::simulated_cuda()));
  CHECK_EQUAL(library.file(), tests::simulated_cuda());
  CHECK(library.supported_version() >= 10000);
  CHECK(state(tests::simulated_cuda()) == State::loaded);
  Library older;
  REQUIRE(older.load(tests::stub_path("cuda-unsuffixed")));
  CHECK_EQUAL(older.supported_version(), 0);
}

TEST("a library that lacks a function is refused, and says which, also when asked again") {
  Library library;
  for (int i = 0; i < 2; i++) {
    CHECK(!library.load(tests::stub_path("cuda-without-allocation")));
    CHECK_EQUAL(library.missing(), "cuMemAlloc_v2");
  }
}

TEST("without a library: where it was looked for; later with one") {
  Library library;
  CHECK(!library.load("/nonexistent/libcuda.so.1"));
  REQUIRE_EQUAL(library.attempts().size(), 1u);
  CHECK_EQUAL(library.attempts()[0].path, "/nonexistent/libcuda.so.1");
  CHECK(library.load(tests::simulated_cuda()));
  CHECK(library.load("/nonexistent/libcuda.so.1"));  // once is enough
  CHECK_EQUAL(library.path(), tests::simulated_cuda());
}

TEST("functions of a library that isn't loaded are missing") {
  const Library library;
  CHECK_EQUAL(library.init(), ERROR_NOT_FOUND);
  int count;
  CHECK_EQUAL(library.device_count(count), ERROR_NOT_FOUND);
}

TEST("the context that the caller had current stays current") {
  const tests::SimulatedMachine machine("2");
  Library library;
  REQUIRE(library.load(tests::simulated_cuda()));
  REQUIRE_EQUAL(library.init(), SUCCESS);
  void* handle = dlopen(tests::simulated_cuda().c_str(), RTLD_NOW);
  const auto current = [handle] {
    Context context = nullptr;
    reinterpret_cast<int (*)(Context*)>(dlsym(handle, "cuCtxGetCurrent"))(&context);
    return context;
  };
  Context first = nullptr, second = nullptr;
  CHECK_EQUAL(library.retain_primary(0, first), SUCCESS);
  CHECK_EQUAL(library.retain_primary(1, second), SUCCESS);
  Pointer pointer = 0;
  CHECK_EQUAL(library.allocate(second, 1024, pointer), SUCCESS);
  CHECK(current() == nullptr);
  reinterpret_cast<int (*)(Context)>(dlsym(handle, "cuCtxSetCurrent"))(first);
  Pointer more = 0;
  CHECK_EQUAL(library.allocate(second, size_t{1} << 40, more), ERROR_OUT_OF_MEMORY);
  CHECK(current() == first);
  CHECK_EQUAL(library.free(second, pointer), SUCCESS);
  CHECK(current() == first);
}
