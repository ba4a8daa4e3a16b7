#include "nvml/probe.h"

#include <atomic>
#include <cmath>

#include "process/futex.h"
#include "process/thread.h"

namespace gpu_owner::nvml {
namespace {

constexpr size_t kStack = 256 * 1024;

Code look(const Library& library, Device device, Memory& memory, std::vector<Process>& processes) {
  const Code code = library.memory(device, memory);
  if (code != SUCCESS && code != ERROR_NOT_SUPPORTED) return code;
  const Code listed = library.processes(device, Library::ProcessKind::compute, processes);
  return listed == ERROR_NOT_SUPPORTED ? SUCCESS : listed;
}

struct Looker {
  const Library* library;
  Device device;
  int64_t nanoseconds;
  Code code = SUCCESS;
  // A look's, in the mean: a lock that lets one thread pass many times before the other shows in no median.
  double microseconds = 0;
};

void* run_looker(void* pointer) {
  auto& looker = *static_cast<Looker*>(pointer);
  Memory memory;
  std::vector<Process> processes;
  const int64_t start = process::monotonic_nanoseconds();
  int64_t now = start;
  int looks = 0;
  for (; looker.code == SUCCESS && now < start + looker.nanoseconds; looks++) {
    looker.code = look(*looker.library, looker.device, memory, processes);
    now = process::monotonic_nanoseconds();
  }
  looker.microseconds = static_cast<double>(now - start) / looks / 1000;
  return nullptr;
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
  std::vector<Looker> lookers;
  for (const std::string& uuid : uuids) {
    Looker looker = {&library, nullptr, int64_t{milliseconds} * 1'000'000};
    times.code = library.device_handle(uuid, looker.device);
    if (times.code != SUCCESS) return times;
    lookers.push_back(looker);
  }
  const auto collect = [&](std::vector<double>& out) {
    for (const Looker& looker : lookers) {
      if (times.code == SUCCESS) times.code = looker.code;
      out.push_back(looker.microseconds);
    }
  };
  for (Looker& looker : lookers) run_looker(&looker);
  collect(times.alone);
  std::vector<pthread_t> threads(lookers.size());
  size_t started = 0;
  for (; started < lookers.size(); started++) {
    if (process::start_thread(threads[started], kStack, 0, run_looker, &lookers[started]) != 0) break;
  }
  for (size_t i = 0; i < started; i++) pthread_join(threads[i], nullptr);
  if (started < lookers.size()) times.code = ERROR_OPERATING_SYSTEM;
  collect(times.together);
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
