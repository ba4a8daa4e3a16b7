// Where libraries are looked for, and what is remembered of failed searches.
#include "dl/search.h"

#include <sys/stat.h>

#include <algorithm>

#include "dl/library.h"
#include "nvml/library.h"
#include "support/directory.h"
#include "support/stub.h"
#include "test.h"

using namespace gpu_owner;

TEST("the soname comes first, then known places, never the toolkit's stubs") {
  const auto candidates = dl::driver_library_candidates("libnvidia-ml.so.1");
  REQUIRE(candidates.size() > 3);
  CHECK_EQUAL(candidates[0], "libnvidia-ml.so.1");
  CHECK_EQUAL(candidates[1], "/usr/lib64/libnvidia-ml.so.1");
  const auto has = [&](const char* path) {
    return std::find(candidates.begin(), candidates.end(), path) != candidates.end();
  };
  CHECK(has("/usr/lib/wsl/lib/libnvidia-ml.so.1"));
  CHECK(has("/run/opengl-driver/lib/libnvidia-ml.so.1"));
  CHECK(has("/usr/local/nvidia/lib64/libnvidia-ml.so.1"));
  for (const std::string& path : candidates) {
    CHECK(path.find("stubs") == std::string::npos);
    CHECK(path.find("/usr/local/cuda") == std::string::npos);
    CHECK(path.find('*') == std::string::npos);  // patterns are resolved
  }
}

TEST("the first candidate that loads is taken, and what was tried before it is remembered in order") {
  const std::string garbage = tests::path_of("garbage.so");
  tests::write_file(garbage, "not a library");
  const auto opened = dl::open_first({"libgpu-owner-missing.so.1", "/nonexistent/libx.so", garbage,
                                      tests::stub_path("nvml-v2"), tests::stub_path("nvml-v3")});
  CHECK(opened.handle != nullptr);
  CHECK_EQUAL(opened.path, tests::stub_path("nvml-v2"));
  REQUIRE_EQUAL(opened.attempts.size(), 3u);
  CHECK_EQUAL(opened.attempts[0].path, "libgpu-owner-missing.so.1");
  CHECK_EQUAL(opened.attempts[1].path, "/nonexistent/libx.so");
  CHECK_EQUAL(opened.attempts[2].path, garbage);
  for (const auto& attempt : opened.attempts) CHECK(!attempt.error.empty());
  CHECK(opened.attempts[1].error.find("No such file") != std::string::npos);
}

TEST("nothing found: no handle, no path, and every attempt") {
  const auto opened = dl::open_first({"libgpu-owner-missing.so.1", tests::directory()});
  CHECK(opened.handle == nullptr);
  CHECK_EQUAL(opened.path, "");
  CHECK_EQUAL(opened.attempts.size(), 2u);
}

TEST("an explicit path is the only one looked at") {
  nvml::Library library;
  CHECK(!library.load("/nonexistent/libnvidia-ml.so.1"));
  CHECK_EQUAL(library.path(), "");
  CHECK_EQUAL(library.missing(), "");
  REQUIRE_EQUAL(library.attempts().size(), 1u);
  CHECK_EQUAL(library.attempts()[0].path, "/nonexistent/libnvidia-ml.so.1");
  CHECK(library.load(tests::stub_path("nvml-v3")));
  CHECK_EQUAL(library.path(), tests::stub_path("nvml-v3"));
  CHECK(library.attempts().empty());
}

TEST("without a path, all the usual places are looked at") {
  nvml::Library library;
  if (library.load("")) tests::skip("this machine has the driver's library");
  CHECK_EQUAL(library.attempts().size(), dl::driver_library_candidates("libnvidia-ml.so.1").size());
}

TEST("a symbol is resolved, or null") {
  const auto opened = dl::open_first({tests::stub_path("nvml-v3")});
  int (*function)() = nullptr;
  CHECK(dl::resolve(opened.handle, "nvmlInit_v2", function));
  CHECK(function != nullptr);
  CHECK(!dl::resolve(opened.handle, "nvmlNoSuchFunction", function));
  CHECK(function == nullptr);
}

TEST("libraries don't see each other's symbols") {
  const auto first = dl::open_first({tests::stub_path("nvml-v2")});
  const auto second = dl::open_first({tests::stub_path("nvml-v3")});
  CHECK(dl::symbol(first.handle, "stub") != dl::symbol(second.handle, "stub"));
  CHECK(dl::symbol(nullptr, "nvmlInit_v2") == nullptr);  // not in the process's own scope either
}
