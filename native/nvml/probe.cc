#include "nvml/probe.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "process/futex.h"
#include "process/thread.h"

namespace gpu_owner::nvml {
namespace {

constexpr size_t kProbeStack = 256 * 1024;
constexpr int64_t kPause = 1'000'000'000;

Code take_snapshot(const Library& library, Device device, Memory& memory, std::vector<Process>& processes) {
  const Code code = library.memory(device, memory);
  if (code != SUCCESS && code != ERROR_NOT_SUPPORTED) return code;
  const Code listed = library.processes(device, Library::ProcessKind::compute, processes);
  return listed == ERROR_NOT_SUPPORTED ? SUCCESS : listed;
}

constexpr size_t kMaxRounds = 4096;

// The lower quartile: other processes on a busy machine make snapshots longer, and never shorter.
double quick_microseconds(std::vector<int64_t>& times) {
  const auto quarter = times.begin() + static_cast<ptrdiff_t>(times.size() / 4);
  std::nth_element(times.begin(), quarter, times.end());
  return static_cast<double>(*quarter) / 1000;
}

// Threads that take snapshots of a GPU each, in rounds: all begin one at once, once in each round. Without rounds, a
// lock that lets one thread pass many times before the other would not show.
struct Rounds {
  const Library* library;
  std::atomic<uint32_t> round{0};
  std::atomic<uint32_t> pending{0};
  std::atomic<bool> over{false};
  std::atomic<Code> code{SUCCESS};
};

struct SnapshotThread {
  Rounds* rounds;
  Device device;
  // When the last snapshot began and ended, in nanoseconds.
  int64_t start;
  int64_t end;
};

void time_snapshot(const Library& library, SnapshotThread& thread, std::atomic<Code>& code) {
  Memory memory;
  std::vector<Process> processes;
  thread.start = process::monotonic_nanoseconds();
  const Code answer = take_snapshot(library, thread.device, memory, processes);
  thread.end = process::monotonic_nanoseconds();
  if (answer != SUCCESS) code = answer;
}

void* run_snapshot_thread(void* pointer) {
  auto& thread = *static_cast<SnapshotThread*>(pointer);
  Rounds& rounds = *thread.rounds;
  for (uint32_t seen = 0;; seen++) {
    while (rounds.round.load() == seen) process::futex_wait(rounds.round, seen, kPause);
    if (rounds.over.load()) return nullptr;
    time_snapshot(*rounds.library, thread, rounds.code);
    if (rounds.pending.fetch_sub(1) == 1) process::futex_wake(rounds.pending);
  }
}

// From the first start to the last end: a thread that starts late has not waited for another one's snapshot.
int64_t span(const std::vector<SnapshotThread>& snapshot_threads) {
  int64_t start = snapshot_threads.front().start;
  int64_t end = snapshot_threads.front().end;
  for (const SnapshotThread& thread : snapshot_threads) {
    start = std::min(start, thread.start);
    end = std::max(end, thread.end);
  }
  return end - start;
}

struct OtherUser {
  const std::string* path;
  const std::string* uuid;
  int rounds;
  Code code = SUCCESS;
  double total = 0;
  std::atomic<bool> done{false};
};

void* run_other_user(void* pointer) {
  auto& user = *static_cast<OtherUser*>(pointer);
  for (int i = 0; i < user.rounds && user.code == SUCCESS; i++) {
    Library library;
    if (!library.load(*user.path)) {
      user.code = ERROR_LIBRARY_NOT_FOUND;
      break;
    }
    Device device = nullptr;
    Memory memory;
    std::vector<Process> processes;
    user.code = library.init();
    if (user.code != SUCCESS) break;
    user.code = library.device_handle(*user.uuid, device);
    if (user.code == SUCCESS) user.code = take_snapshot(library, device, memory, processes);
    if (user.code == SUCCESS) user.total = memory.total;
    const Code ended = library.shutdown();
    if (user.code == SUCCESS) user.code = ended;
  }
  user.done = true;
  return nullptr;
}

}  // namespace

SnapshotTimes measure_snapshots(const Library& library, const std::vector<std::string>& uuids, int milliseconds) {
  SnapshotTimes times;
  Rounds rounds;
  rounds.library = &library;
  std::vector<SnapshotThread> snapshot_threads;
  for (const std::string& uuid : uuids) {
    SnapshotThread thread = {&rounds, nullptr, 0, 0};
    times.code = library.device_handle(uuid, thread.device);
    if (times.code != SUCCESS) return times;
    snapshot_threads.push_back(thread);
  }
  // Calls `once`, which returns nanoseconds, for as long as there is time, and at least once.
  const auto measure = [&](auto once) {
    std::vector<int64_t> all;
    const int64_t end = process::monotonic_nanoseconds() + int64_t{milliseconds} * 1'000'000;
    do all.push_back(once());
    while (all.size() < kMaxRounds && rounds.code.load() == SUCCESS && process::monotonic_nanoseconds() < end);
    return quick_microseconds(all);
  };
  for (SnapshotThread& thread : snapshot_threads) {
    times.alone.push_back(measure([&] {
      time_snapshot(library, thread, rounds.code);
      return thread.end - thread.start;
    }));
  }
  std::vector<pthread_t> threads(snapshot_threads.size());
  uint32_t started = 0;
  for (; started < snapshot_threads.size(); started++) {
    if (process::start_thread(threads[started], kProbeStack, 0, run_snapshot_thread, &snapshot_threads[started]) != 0)
      break;
  }
  const auto begin_round = [&] {
    rounds.pending = started;
    rounds.round.fetch_add(1);
    process::futex_wake(rounds.round);
  };
  if (started < snapshot_threads.size()) rounds.code = ERROR_OPERATING_SYSTEM;
  if (rounds.code.load() == SUCCESS) {
    times.together = measure([&] {
      begin_round();
      for (uint32_t left; (left = rounds.pending.load()) != 0;) process::futex_wait(rounds.pending, left, kPause);
      return span(snapshot_threads);
    });
  }
  rounds.over = true;
  begin_round();
  for (uint32_t i = 0; i < started; i++) pthread_join(threads[i], nullptr);
  times.code = rounds.code.load();
  return times;
}

SecondUserResult use_beside(const Library& library, const std::string& path, const std::string& uuid, int rounds) {
  SecondUserResult result;
  Device device = nullptr;
  result.ours = library.device_handle(uuid, device);
  if (result.ours != SUCCESS) return result;
  OtherUser user;
  user.path = &path;
  user.uuid = &uuid;
  user.rounds = rounds;
  pthread_t thread;
  if (process::start_thread(thread, kProbeStack, 0, run_other_user, &user) != 0) {
    result.other = ERROR_OPERATING_SYSTEM;
    return result;
  }
  Memory memory;
  std::vector<Process> processes;
  bool last = false;
  // Once more after its end: what it has closed is closed for itself only.
  do {
    last = user.done;
    result.ours = take_snapshot(library, device, memory, processes);
  } while (result.ours == SUCCESS && !last);
  pthread_join(thread, nullptr);
  result.other = user.code;
  result.same_memory = memory.total == user.total || std::isnan(memory.total);
  return result;
}

}  // namespace gpu_owner::nvml
