// A directory that others may change, opened for one statement.
#pragma once

#include "locks/directory.h"
#include "support/directory.h"
#include "test.h"

namespace tests {

inline gpu_owner::locks::Directory opened(const std::string& path = directory()) {
  gpu_owner::locks::Directory result;
  REQUIRE_EQUAL(result.open(path), 0);
  return result;
}

}  // namespace tests
