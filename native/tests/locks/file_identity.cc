// Whether a path still names the file that is open: removing a lock file takes others' locks out of sight.
#include <sys/stat.h>
#include <unistd.h>

#include "locks/files.h"
#include "support/directory.h"
#include "support/opened.h"
#include "test.h"

using namespace gpu_owner::locks;

namespace {

std::string identity_path() { return tests::path_of("file"); }

}  // namespace

TEST("the file that was opened is named by its path, and by its other names") {
  const int file = tests::opened().open_shared("file", 1);
  CHECK_EQUAL(names_same_file(file, identity_path().c_str()), 1);
  const std::string other = tests::path_of("other");
  REQUIRE_EQUAL(link(identity_path().c_str(), other.c_str()), 0);
  CHECK_EQUAL(names_same_file(file, other.c_str()), 1);
}

TEST("a file that was removed, replaced or renamed isn't") {
  const int file = tests::opened().open_shared("file", 1);
  unlink(identity_path().c_str());
  CHECK_EQUAL(names_same_file(file, identity_path().c_str()), 0);
  const int second = tests::opened().open_shared("file", 1);
  CHECK_EQUAL(names_same_file(file, identity_path().c_str()), 0);
  CHECK_EQUAL(names_same_file(second, identity_path().c_str()), 1);
  tests::write_file(tests::path_of("third"), "");
  REQUIRE_EQUAL(rename(tests::path_of("third").c_str(), identity_path().c_str()), 0);
  CHECK_EQUAL(names_same_file(second, identity_path().c_str()), 0);
}

TEST("a symbolic link to the file is another file") {
  const int file = tests::opened().open_shared("file", 1);
  REQUIRE_EQUAL(rename(identity_path().c_str(), tests::path_of("elsewhere").c_str()), 0);
  REQUIRE_EQUAL(symlink("elsewhere", identity_path().c_str()), 0);
  CHECK_EQUAL(names_same_file(file, identity_path().c_str()), 0);
}

TEST("nothing is named by a descriptor that isn't open") {
  CHECK_EQUAL(names_same_file(-1, identity_path().c_str()), 0);
}
