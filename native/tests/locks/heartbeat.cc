// A heartbeat shows that its process lives, and tells its owner of those that stop and of leases that aren't held.
#include "locks/heartbeat.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "locks/files.h"
#include "locks/locks.h"
#include "process/futex.h"
#include "support/directory.h"
#include "test.h"

using namespace gpu_owner::locks;

namespace {

constexpr int64_t kPeriod = 20, kLifeless = 300;

std::atomic<int> lifeless{0}, changed{0};

void tell(void*, Heartbeat::News news) { (news == Heartbeat::News::lifeless ? lifeless : changed)++; }

int file() {
  static const std::string path = tests::path_of("line");
  return tests::open_file(path.c_str());
}

int lease() {
  static const std::string path = tests::path_of("lease");
  return tests::open_file(path.c_str());
}

bool comes(const std::atomic<int>& news) {
  for (int i = 0; i < 500 * tests::slowness() && news == 0; i++) usleep(10'000);
  return news > 0;
}

Heartbeat::Watch watch_of(int lease, int64_t quiet) {
  Heartbeat::Watch watch;
  watch.leases.emplace_back(lease);
  watch.quiet = quiet;
  return watch;
}

}  // namespace

TEST("what was never written, garbage and times from elsewhere are no sign of life") {
  const int descriptor = file();
  CHECK(!is_alive(descriptor, 0, kLifeless));
  for (const char* text :
       {"never                           ", "-1                              ", "99999999999999                  ",
        "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"}) {
    CHECK_EQUAL(pwrite(descriptor, text, kHeartbeatSize, 0), kHeartbeatSize);
    CHECK(!is_alive(descriptor, 0, kLifeless));
  }
  CHECK_EQUAL(write_heartbeat(descriptor, 0), 0);
  CHECK(is_alive(descriptor, 0, 10'000));
}

TEST("a heartbeat can say how long it counts, for a minute at most") {
  const int descriptor = file();
  CHECK_EQUAL(write_heartbeat(descriptor, 0, Pulse::rests, 30'000), 0);
  usleep(2'000);
  CHECK(is_alive(descriptor, 0, 1));
  CHECK(!is_waking(descriptor, 0));
  CHECK_EQUAL(write_heartbeat(descriptor, 0, Pulse::wakes, 30'000), 0);
  CHECK(is_waking(descriptor, 0));
  std::string text = "\n" + std::to_string(gpu_owner::process::monotonic_milliseconds() - 70'000) + " 999999999";
  text.resize(kHeartbeatSize, ' ');
  CHECK_EQUAL(pwrite(descriptor, text.data(), kHeartbeatSize, 0), kHeartbeatSize);
  CHECK(!is_alive(descriptor, 0, 1));
}

TIMED_TEST("a heartbeat goes on until it is ended, and is none soon after") {
  const int descriptor = file();
  Heartbeat* heartbeat = Heartbeat::start(descriptor, 64, kPeriod, kLifeless, tell, nullptr);
  REQUIRE(heartbeat != nullptr);
  CHECK(is_alive(descriptor, 64, 10'000));  // from the first moment on
  usleep(2 * kLifeless * 1000);
  CHECK(is_alive(descriptor, 64, kLifeless * tests::slowness()));
  heartbeat->end();
  usleep(2 * kLifeless * 1000);
  CHECK(!is_alive(descriptor, 64, kLifeless));
}

TEST("the end of a watched heartbeat is told once") {
  const int descriptor = file();
  write_heartbeat(descriptor, 32);
  Heartbeat* heartbeat = Heartbeat::start(descriptor, 0, kPeriod, kLifeless, tell, nullptr);
  heartbeat->watch({{32}, {}, 0});
  CHECK(comes(lifeless));
  usleep(5 * kPeriod * 1000);
  CHECK_EQUAL(lifeless.load(), 1);
  CHECK_EQUAL(changed.load(), 0);
  heartbeat->end();
}

TEST("a stopped process's heartbeat stops with it") {
  const int descriptor = file();
  const pid_t child = fork();
  if (child == 0) {
    Heartbeat::start(descriptor, 32, kPeriod, kLifeless, tell, nullptr);
    pause();
    _exit(0);
  }
  while (!is_alive(descriptor, 32, kLifeless)) usleep(1000);
  Heartbeat* heartbeat = Heartbeat::start(descriptor, 0, kPeriod, kLifeless, tell, nullptr);
  kill(child, SIGSTOP);
  heartbeat->watch({{32}, {}, 0});
  CHECK(comes(lifeless));
  heartbeat->end();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST("a lease that nobody holds is told of when the quiet time is over, one that is held is not") {
  const int held = lease();
  CHECK_EQUAL(try_lock(held, Kind::ofd, Mode::exclusive, {0, 1}), 0);
  Heartbeat* heartbeat = Heartbeat::start(file(), 0, kPeriod, kLifeless, tell, nullptr);
  heartbeat->watch(watch_of(lease(), 0));
  usleep(5 * kPeriod * 1000);
  CHECK_EQUAL(changed.load(), 0);
  close(held);
  CHECK(comes(changed));
  changed = 0;
  heartbeat->watch(watch_of(lease(), 3'600'000));
  usleep(5 * kPeriod * 1000);
  CHECK_EQUAL(changed.load(), 0);
  heartbeat->end();
}

TEST("bookings that have changed since are told of once") {
  const int descriptor = file();
  Heartbeat* heartbeat = Heartbeat::start(descriptor, 0, kPeriod, kLifeless, tell, nullptr);
  heartbeat->watch({{}, {}, 0, 0});
  usleep(5 * kPeriod * 1000);
  CHECK_EQUAL(changed.load(), 0);
  CHECK_EQUAL(write_heartbeat(descriptor, kBookingsOffset), 0);
  CHECK(comes(changed));
  usleep(5 * kPeriod * 1000);
  CHECK_EQUAL(changed.load(), 1);
  heartbeat->end();
}

TEST("what is watched is closed with the next watch, and at the end") {
  Heartbeat* heartbeat = Heartbeat::start(file(), 0, kPeriod, kLifeless, tell, nullptr);
  const int first = lease(), second = lease();
  heartbeat->watch(watch_of(first, 3'600'000));
  CHECK(fcntl(first, F_GETFD) >= 0);
  heartbeat->watch(watch_of(second, 3'600'000));
  CHECK(fcntl(first, F_GETFD) < 0);
  heartbeat->end();
  CHECK(fcntl(second, F_GETFD) < 0);
}
