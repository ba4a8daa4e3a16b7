// How many instructions the native part needs for what claims do all the time, counted by valgrind's callgrind: the
// same on every machine, however busy it is. A change that makes something cheaper lowers the bounds. Calls of the
// driver and of the system are counted by test/integration/costs.test.ts.
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "locks/directory.h"
#include "locks/files.h"
#include "locks/locks.h"
#include "locks/wait_queue.h"
#include "support/directory.h"
#include "support/processes.h"
#include "support/snapshots.h"
#include "support/stub.h"
#include "test.h"

using namespace gpu_owner;

namespace {

constexpr int kTimes = 50;
constexpr int kGpus = 8;
constexpr int kProcesses = 2;
constexpr int kWaiters = 200;
constexpr int64_t kRecord = 4096;

std::string in(const std::string& directory, const std::string& name) { return directory + "/" + name; }

// The lease of a GPU, taken as lib/claims/locks/lease.ts does, and given back.
void lease(const locks::Directory& directory, const std::string& path, const std::string& record) {
  const int file = directory.open_shared("lease", kRecord);
  REQUIRE(file >= 0);
  REQUIRE_EQUAL(locks::try_lock(file, locks::Kind::ofd, locks::Mode::exclusive, {0, 1}), 0);
  REQUIRE_EQUAL(locks::names_same_file(file, path.c_str()), 1);
  REQUIRE_EQUAL(locks::try_lock(file, locks::Kind::ofd, locks::Mode::exclusive, {1234, 1}), 0);
  REQUIRE_EQUAL(locks::try_lock(file, locks::Kind::flock, locks::Mode::shared, {}), 0);
  REQUIRE_EQUAL(locks::write_block(file, record.data(), kRecord), 0);
  REQUIRE_EQUAL(locks::write_block(file, record.data(), kRecord), 0);
  close(file);
}

void join(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR);
  REQUIRE_EQUAL(locks::join_queue(file), kWaiters);
  close(file);
}

void read_line(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY);
  std::vector<int64_t> places;
  REQUIRE_EQUAL(locks::taken_slots(file, 0, 0, places), 0);
  REQUIRE_EQUAL(places.size(), kWaiters);
  close(file);
}

struct Bound {
  const char* what;
  int64_t counted;  // instructions each time, with g++ 12
  double room;      // how many times that may be needed; a question or a copy more takes more than that
};
constexpr Bound kBounds[] = {
    {"asking 8 GPUs", 10626, 1.03},
    {"a snapshot of 8 GPUs, by a thread", 15790, 1.1},
    {"a lease, taken and given back", 865, 1.1},
    {"joining a queue of 200", 20221, 1.1},
    {"reading a queue of 200", 37538, 1.1},
};
// Compilers and C libraries differ.
#if defined(__clang__) || __GNUC__ != 12
constexpr double kMinRoom = 1.3;
#else
constexpr double kMinRoom = 1;
#endif

}  // namespace

// Callgrind writes down what it has counted since the last time, whenever this is entered.
extern "C" __attribute__((noinline, used)) void costs_mark() { asm volatile(""); }

namespace {

template <typename Act>
void measure(Act act) {
  act();  // the first time does more
  costs_mark();
  for (int i = 0; i < kTimes; i++) act();
  costs_mark();
}

}  // namespace

// Runs everything that is counted, in the order of the bounds. DIRECTORY
PROGRAM(instructions) {
  REQUIRE_EQUAL(count, 1);
  const std::string directory = arguments[0];
  const std::string line = in(directory, "line"), path = in(directory, "lease");
  const std::string record(kRecord, ' ');
  // On one processor no thread spins while waiting, which would take as many instructions as there is time.
  cpu_set_t processors;
  REQUIRE_EQUAL(sched_getaffinity(0, sizeof processors, &processors), 0);
  int first = 0;
  while (!CPU_ISSET(first, &processors)) first++;
  CPU_ZERO(&processors);
  CPU_SET(first, &processors);
  REQUIRE_EQUAL(sched_setaffinity(0, sizeof processors, &processors), 0);

  const tests::StubbedNvml stubbed("nvml-v3");  // the simulator would take three times as many as who asks
  stubbed.stub.gpus = kGpus;
  stubbed.stub.processes = kProcesses;
  tests::Samples samples(kGpus);
  std::deque<nvml::Gpu> gpus;
  for (uint32_t gpu = 0; gpu < kGpus; gpu++) gpus.emplace_back(gpu);
  measure([&] {
    for (nvml::Gpu& gpu : gpus) gpu.read(stubbed.library, samples[gpu.index()]);
  });
  REQUIRE_EQUAL(nvml::Driver::instance().open(tests::stub_path("nvml-v3")).stage, nvml::Driver::Stage::ready);
  measure([&] { tests::snapshot(samples); });
  CHECK_EQUAL(tests::health(samples), "ok ok ok ok ok ok ok ok");
  CHECK_EQUAL(samples.back().compute.size(), kProcesses);

  locks::Directory opened;
  REQUIRE_EQUAL(opened.open(directory), 0);
  measure([&] { lease(opened, path, record); });

  std::vector<int> waiters;
  for (int i = 0; i < kWaiters; i++) {
    waiters.push_back(tests::open_file(line));
    REQUIRE_EQUAL(locks::join_queue(waiters.back()), i);
  }
  measure([&] { join(line); });
  measure([&] { read_line(line); });
  tests::end_test();
}

namespace {

// Reads callgrind's count for one part: the instructions of all threads.
int64_t counted(const std::string& path) {
  const std::string text = tests::contents_of(path);
  const size_t at = text.find("\nsummary: ");
  return at == std::string::npos ? -1 : atoll(text.c_str() + at + strlen("\nsummary: "));
}

bool exists(const char* program) {
  const pid_t process = tests::start([&] {
    const int nothing = open("/dev/null", O_WRONLY);
    dup2(nothing, STDOUT_FILENO);
    execlp(program, program, "--version", nullptr);
    return 127;
  });
  return tests::end_of(process) == 0;
}

}  // namespace

TIMED_TEST("what claims do all the time takes no more instructions than it used to") {
#if !defined(__x86_64__)
  tests::skip("the bounds are for x86-64");
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
  tests::skip("the bounds are for optimised code without sanitizers");
#endif
  if (!exists("valgrind")) tests::skip("valgrind is not installed");
  const std::string out = tests::path_of("counts"), option = "--callgrind-out-file=" + out,
                    locks = tests::path_of("locks");
  REQUIRE_EQUAL(locks::Directory().make(locks, 01777), 0);
  const pid_t process = tests::start([&] {
    execlp("valgrind", "valgrind", "-q", "--tool=callgrind", "--dump-before=costs_mark", option.c_str(),
           tests::own_path().c_str(), "--program", "instructions", locks.c_str(), nullptr);
    return 127;
  });
  REQUIRE_EQUAL(tests::end_of(process), 0);
  int dump = 0;
  for (const Bound& bound : kBounds) {
    dump += 2;  // the one before has what isn't measured
    const int64_t each = counted(out + "." + std::to_string(dump)) / kTimes;
    const auto most = static_cast<int64_t>(static_cast<double>(bound.counted) * std::max(bound.room, kMinRoom));
    if (each > 0 && each <= most) continue;
    const std::string what = std::string(bound.what) + ": " + std::to_string(each) + " instructions, at most ";
    tests::fail(__FILE__, __LINE__, what + std::to_string(most));
  }
}
