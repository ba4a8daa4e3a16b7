// Units of memory as bytes of a file: the kernel adds up what open files have locked.
#include "locks/units.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <vector>

#include "locks/locks.h"
#include "support/directory.h"
#include "test.h"

using namespace gpu_owner::locks;

namespace {

constexpr int64_t kFirst = int64_t{1} << 51;
constexpr Range kAll = {kFirst, 100};

int open_units() {
  static const std::string path = tests::path_of("units");
  return tests::open_file(path.c_str());
}

int64_t taken_beside(int descriptor) {
  std::vector<Range> taken;
  CHECK_EQUAL(taken_units(descriptor, kAll, taken), 0);
  int64_t sum = 0;
  int64_t end = kFirst;
  for (const Range& each : taken) {
    CHECK(each.start >= end);
    end = each.start + each.length;
    sum += each.length;
  }
  return sum;
}

}  // namespace

TEST("units add up to what there is, the lowest free ones first, and are free when a file is closed") {
  const int reader = open_units();
  const int first = open_units();
  const int second = open_units();
  const int third = open_units();
  CHECK_EQUAL(take_units(first, kAll, 40), kFirst);
  CHECK_EQUAL(take_units(second, kAll, 40), kFirst + 40);
  CHECK_EQUAL(taken_beside(reader), 80);
  CHECK_EQUAL(taken_beside(first), 40);
  CHECK_EQUAL(take_units(third, kAll, 21), -EAGAIN);
  CHECK_EQUAL(taken_beside(reader), 80);  // all or none
  CHECK_EQUAL(take_units(third, kAll, 20), kFirst + 80);
  CHECK_EQUAL(taken_beside(reader), 100);
  close(second);
  CHECK_EQUAL(taken_beside(reader), 60);
  close(first);
  close(third);
  close(reader);
}

TEST("units are taken from several free ranges, whatever the order in which they were locked") {
  const int reader = open_units();
  std::vector<int> files;
  for (int i = 0; i < 10; i++) files.push_back(open_units());
  for (const int i : {7, 2, 9, 0, 4, 1, 8, 3, 6, 5}) {
    CHECK_EQUAL(try_lock(files[i], Kind::ofd, Mode::exclusive, {kFirst + 10 * i, 10}), 0);
  }
  for (const int i : {1, 4, 8}) close(files[i]);
  CHECK_EQUAL(taken_beside(reader), 70);
  const int file = open_units();
  CHECK_EQUAL(take_units(file, kAll, 31), -EAGAIN);
  CHECK_EQUAL(take_units(file, kAll, 25), kFirst + 10);
  CHECK_EQUAL(taken_beside(reader), 95);
  std::vector<Range> taken;
  CHECK_EQUAL(taken_units(file, kAll, taken), 0);
  CHECK_EQUAL(taken.size(), size_t{7});
  for (const int i : {0, 2, 3, 5, 6, 7, 9}) close(files[i]);
  close(file);
  CHECK_EQUAL(taken_beside(reader), 0);
  close(reader);
}

TEST("a lock to the end of all bytes leaves no units, and a lock beside them takes none") {
  const int other = open_units();
  const int file = open_units();
  CHECK_EQUAL(try_lock(other, Kind::ofd, Mode::shared, {0, 1}), 0);
  CHECK_EQUAL(try_lock(other, Kind::ofd, Mode::exclusive, {kFirst + 90, 0}), 0);
  CHECK_EQUAL(taken_beside(file), 10);
  CHECK_EQUAL(take_units(file, kAll, 91), -EAGAIN);
  CHECK_EQUAL(take_units(file, kAll, 90), kFirst);
  close(other);
  close(file);
}

TEST("a file that is only readable takes no units") {
  const std::string path = tests::path_of("units");
  const int file = open(path.c_str(), O_RDONLY);
  CHECK_EQUAL(take_units(file, kAll, 1), -EBADF);
  close(file);
}
