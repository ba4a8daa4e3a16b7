#include "nvml/probe.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "process/futex.h"
#include "process/thread.h"

namespace gpu_owner::nvml {
namespace {

constexpr size_t kStack = 256 * 1024;
constexpr int64_t kPause = 1'000'000'000;

Code look(const Library& library, Device device, Memory& memory, std::vector<Process>& processes) {
  const Code code = library.memory(device, memory);
  if (code != SUCCESS && code != ERROR_NOT_SUPPORTED) return code;
  const Code listed = library.processes(device, Library::ProcessKind::compute, processes);
  return listed == ERROR_NOT_SUPPORTED ? SUCCESS : listed;
}

constexpr size_t kMaxRounds = 4096;

// The lower quartile: other processes on a busy machine make looks longer, and never shorter.
double quick_microseconds(std::vector<int64_t>& times) {
  const auto quarter = times.begin() + static_cast<ptrdiff_t>(times.size() / 4);
  std::nth_element(times.begin(), quarter, times.end());
  return static_cast<double>(*quarter) / 1000;
}

// Threads that look at a GPU each, in rounds: all begin a look at once, once in each round. In looks without rounds, a
// lock that lets one thread pass many times before the other would not show.
struct Rounds {
  const Library* library;
  std::atomic<uint32_t> round{0};
  std::atomic<uint32_t> looking{0};
  std::atomic<bool> over{false};
  std::atomic<Code> code{SUCCESS};
};

struct Looker {
  Rounds* rounds;
  Device device;
  // When the last look began and ended, in nanoseconds.
  int64_t start;
  int64_t end;
};

void time_look(const Library& library, Looker& looker, std::atomic<Code>& code) {
  Memory memory;
  std::vector<Process> processes;
  looker.start = process::monotonic_nanoseconds();
  const Code answer = look(library, looker.device, memory, processes);
  looker.end = process::monotonic_nanoseconds();
  if (answer != SUCCESS) code = answer;
}

void* run_looker(void* pointer) {
  auto& looker = *static_cast<Looker*>(pointer);
  Rounds& rounds = *looker.rounds;
  for (uint32_t seen = 0;; seen++) {
    while (rounds.round.load() == seen) process::futex_wait(rounds.round, seen, kPause);
    if (rounds.over.load()) return nullptr;
    time_look(*rounds.library, looker, rounds.code);
    if (rounds.looking.fetch_sub(1) == 1) process::futex_wake(rounds.looking);
  }
}

// From the first start to the last end: a thread that starts late has not waited for another one's look.
int64_t span(const std::vector<Looker>& lookers) {
  int64_t start = lookers.front().start;
  int64_t end = lookers.front().end;
  for (const Looker& looker : lookers) {
    start = std::min(start, looker.start);
    end = std::max(end, looker.end);
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
    if (user.code == SUCCESS) user.code = look(library, device, memory, processes);
    if (user.code == SUCCESS) user.total = memory.total;
    const Code ended = library.shutdown();
    if (user.code == SUCCESS) user.code = ended;
  }
  user.done = true;
  return nullptr;
}

}  // namespace

LookTimes measure_looks(const Library& library, const std::vector<std::string>& uuids, int milliseconds) {
  LookTimes times;
  Rounds rounds;
  rounds.library = &library;
  std::vector<Looker> lookers;
  for (const std::string& uuid : uuids) {
    Looker looker = {&rounds, nullptr, 0, 0};
    times.code = library.device_handle(uuid, looker.device);
    if (times.code != SUCCESS) return times;
    lookers.push_back(looker);
  }
  // Calls `once`, which returns nanoseconds, for as long as there is time, and at least once.
  const auto measure = [&](auto once) {
    std::vector<int64_t> all;
    const int64_t end = process::monotonic_nanoseconds() + int64_t{milliseconds} * 1'000'000;
    do all.push_back(once());
    while (all.size() < kMaxRounds && rounds.code.load() == SUCCESS && process::monotonic_nanoseconds() < end);
    return quick_microseconds(all);
  };
  for (Looker& looker : lookers) {
    times.alone.push_back(measure([&] {
      time_look(library, looker, rounds.code);
      return looker.end - looker.start;
    }));
  }
  std::vector<pthread_t> threads(lookers.size());
  uint32_t started = 0;
  for (; started < lookers.size(); started++) {
    if (process::start_thread(threads[started], kStack, 0, run_looker, &lookers[started]) != 0) break;
  }
  const auto begin_round = [&] {
    rounds.looking = started;
    rounds.round.fetch_add(1);
    process::futex_wake(rounds.round);
  };
  if (started < lookers.size()) rounds.code = ERROR_OPERATING_SYSTEM;
  if (rounds.code.load() == SUCCESS) {
    times.together = measure([&] {
      begin_round();
      for (uint32_t left; (left = rounds.looking.load()) != 0;) process::futex_wait(rounds.looking, left, kPause);
      return span(lookers);
    });
  }
  rounds.over = true;
  begin_round();
  for (uint32_t i = 0; i < started; i++) pthread_join(threads[i], nullptr);
  times.code = rounds.code.load();
  return times;
}

Neighbours use_beside(const Library& library, const std::string& path, const std::string& uuid, int rounds) {
  Neighbours result;
  Device device = nullptr;
  result.ours = library.device_handle(uuid, device);
  if (result.ours != SUCCESS) return result;
  OtherUser user;
  user.path = &path;
  user.uuid = &uuid;
  user.rounds = rounds;
  pthread_t thread;
  if (process::start_thread(thread, kStack, 0, run_other_user, &user) != 0) {
    result.other = ERROR_OPERATING_SYSTEM;
    return result;
  }
  Memory memory;
  std::vector<Process> processes;
  bool last = false;
  // Once more after its end: what it has closed is closed for itself only.
  do {
    last = user.done;
    result.ours = look(library, device, memory, processes);
  } while (result.ours == SUCCESS && !last);
  pthread_join(thread, nullptr);
  result.other = user.code;
  result.same_memory = memory.total == user.total || std::isnan(memory.total);
  return result;
}

}  // namespace gpu_owner::nvml
