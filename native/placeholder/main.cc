// gpu-owner-placeholder: keeps GPUs visibly taken for a command that has not reached them yet.
//
// `gpu-owner run` starts it after the claim, with CUDA_VISIBLE_DEVICES set. The placeholder ends when its standard
// input is closed, when the command's own processes show on the GPU, when memory in use rises, or when the time is
// up. On a GPU that is shared (--shared), only descendants of the parent process are the command's. A placeholder holds
// no lease: should the driver hang in it, no lock hangs with it. For workers, which start one command after the other,
// it waits with --idle until one has got under way.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "cuda/placeholder.h"
#include "nvml/library.h"
#include "process/futex.h"

namespace {

using namespace gpu_owner;

constexpr int kUsage = 64;
constexpr int kUnavailable = 69;
constexpr int64_t kSecond = 1'000'000'000;
constexpr int kPollMs = 250;
constexpr size_t kBytes = 1024 * 1024;        // of the allocation on each GPU
constexpr double kRise = 64.0 * 1024 * 1024;  // bytes: more than a driver's own fluctuation, less than a context

struct Options {
  std::string nvml, cuda;
  std::vector<std::string> uuids;
  int64_t seconds = 60;  // 0 = until standard input is closed
  bool idle = false;     // no command is under way as yet
  bool shared = false;   // other jobs have shares of the GPUs
  bool list = false;     // instead: print the UUIDs of CUDA's devices in CUDA's order
  uint64_t meter = 0;    // instead: print what the GPUs did since then, in microseconds since 1970
};

int usage(const char* problem) {
  fprintf(stderr, "gpu-owner-placeholder: %s\nThis program is started by gpu-owner, not by people.\n", problem);
  return kUsage;
}

bool parse(const std::vector<const char*>& words, Options& options, std::string& problem) {
  for (size_t i = 0; i < words.size(); i++) {
    const std::string name = words[i];
    if (name == "--list") {
      options.list = true;
      continue;
    }
    if (name == "--idle") {
      options.idle = true;
      continue;
    }
    if (name == "--shared") {
      options.shared = true;
      continue;
    }
    if (i + 1 == words.size()) {
      problem = name + " needs a value";
      return false;
    }
    const char* value = words[++i];
    if (name == "--nvml") {
      options.nvml = value;
    } else if (name == "--cuda") {
      options.cuda = value;
    } else if (name == "--uuid") {
      options.uuids.push_back(value);
    } else if (name == "--seconds") {
      options.seconds = strtoll(value, nullptr, 10);
    } else if (name == "--meter") {
      options.meter = strtoull(value, nullptr, 10);
    } else {
      problem = "unknown option " + name;
      return false;
    }
  }
  return true;
}

// One line on standard output tells how it went: "ready", "ready N" where CUDA doesn't show N of several MIG instances,
// or "failed CODE STAGE UUID TEXT"; the text is that of a library that can't be loaded.
int fail(int code, const char* stage, const std::string& uuid, const char* text) {
  printf("failed %d %s %s %s\n", code, stage, uuid.empty() ? "-" : uuid.c_str(), text);
  fflush(stdout);
  return kUnavailable;
}

int list(const cuda::Library& library) {
  int code = library.init();
  int count = 0;
  if (code == cuda::SUCCESS) code = library.device_count(count);
  for (int ordinal = 0; code == cuda::SUCCESS && ordinal < count; ordinal++) {
    cuda::Device device = 0;
    std::string uuid;
    code = library.device(ordinal, device);
    if (code == cuda::SUCCESS) code = library.uuid(device, uuid);
    if (code == cuda::SUCCESS) printf("GPU-%s\n", uuid.c_str());
  }
  return code == cuda::SUCCESS ? 0 : kUnavailable;
}

// Whether a process descends from another one, as far as /proc shows.
bool descends_from(unsigned pid, pid_t ancestor) {
  constexpr int kMaxAncestors = 100;
  // In a container, the ancestor may be process 1.
  for (int i = 0; i < kMaxAncestors && pid > 0; i++) {
    if (static_cast<pid_t>(pid) == ancestor) return true;
    char text[512];
    const int file = open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
    const ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    if (length <= 0) return false;
    text[length] = '\0';
    // A name may have parentheses in it.
    const char* end = strrchr(text, ')');
    if (end == nullptr || sscanf(end + 1, " %*c %u", &pid) != 1) return false;
  }
  return false;
}

// Bytes that descendants of the parent process use; -1: the driver doesn't tell.
int64_t used_by_family(nvml::Library& library, nvml::Device device) {
  std::vector<nvml::Process> list;
  if (library.processes(device, nvml::Library::ProcessKind::compute, list) != nvml::SUCCESS) return -1;
  int64_t used = 0;
  for (const nvml::Process& process : list) {
    if (!descends_from(process.pid, getppid())) continue;
    if (process.used_memory == nvml::kUnknownMemory) return -1;
    used += static_cast<int64_t>(process.used_memory);
  }
  return used;
}

// Prints a line for each GPU, in their order: when it was read, in microseconds since boot; its energy counter in mJ,
// the largest utilization in percent, and the memory in use in bytes. -1: unknown. A shared GPU has only the memory
// that descendants of the parent process use.
int meter(const Options& options) {
  nvml::Library library;
  if (!library.load(options.nvml) || library.init() != nvml::SUCCESS) return kUnavailable;
  for (const std::string& uuid : options.uuids) {
    nvml::Device device = nullptr;
    uint64_t energy = 0;
    uint32_t now = 0, before = 0;
    nvml::Memory memory;
    const bool found = library.device_handle(uuid, device) == nvml::SUCCESS;
    timespec time;
    clock_gettime(CLOCK_BOOTTIME, &time);
    const int64_t at = static_cast<int64_t>(time.tv_sec) * 1'000'000 + time.tv_nsec / 1000;
    const bool has_energy = found && library.energy_millijoules(device, energy) == nvml::SUCCESS;
    const bool has_use = found && library.utilization_percent(device, now) == nvml::SUCCESS;
    const bool has_memory = found && library.memory(device, memory) == nvml::SUCCESS;
    if (options.shared) {
      printf("%lld -1 -1 %lld\n", static_cast<long long>(at),
             found ? static_cast<long long>(used_by_family(library, device)) : -1);
      continue;
    }
    // Older drivers don't remember.
    if (has_use) library.peak_utilization_percent(device, options.meter, before);
    printf("%lld %lld %d %lld\n", static_cast<long long>(at), has_energy ? static_cast<long long>(energy) : -1,
           has_use ? static_cast<int>(std::max(now, before)) : -1,
           has_memory && memory.used >= 0 ? static_cast<long long>(memory.used) : -1);
  }
  fflush(stdout);
  return 0;
}

// The claimed GPUs through NVML, to notice when the command has arrived on them.
class Watch {
 public:
  bool open(const Options& options) {
    is_shared_ = options.shared;
    if (!library_.load(options.nvml) || library_.init() != nvml::SUCCESS) return false;
    for (const std::string& uuid : options.uuids) {
      nvml::Device device = nullptr;
      if (library_.device_handle(uuid, device) != nvml::SUCCESS) continue;
      library_.processes(device, nvml::Library::ProcessKind::compute, list_);
      std::vector<nvml::Process> known = list_;
      devices_.push_back({device, used(device), std::move(known), false});
    }
    return !devices_.empty();
  }

  // Whether another process, or its memory, has shown on every GPU.
  bool all_taken() {
    bool all = true;
    for (WatchedDevice& gpu : devices_) {
      if (!gpu.taken) gpu.taken = new_process(gpu) || (!is_shared_ && used(gpu.device) > gpu.baseline + kRise);
      all = all && gpu.taken;
    }
    return all;
  }

 private:
  struct WatchedDevice {
    nvml::Device device;
    double baseline;                   // bytes in use with this process's context
    std::vector<nvml::Process> known;  // ours among them, by the PID that a container's driver gives it
    bool taken;
  };

  // Bytes in use, without those of processes that only draw: a browser that grows isn't the command.
  double used(nvml::Device device) {
    nvml::Memory memory;
    if (library_.memory(device, memory) != nvml::SUCCESS) return 0;
    library_.processes(device, nvml::Library::ProcessKind::graphics, list_);
    for (const nvml::Process& process : list_) {
      if (process.used_memory != nvml::kUnknownMemory) memory.used -= static_cast<double>(process.used_memory);
    }
    return memory.used;
  }

  bool new_process(const WatchedDevice& gpu) {
    library_.processes(gpu.device, nvml::Library::ProcessKind::compute, list_);
    for (const nvml::Process& process : list_) {
      bool known = false;
      for (const nvml::Process& old : gpu.known) known = known || old.pid == process.pid;
      if (!known && (!is_shared_ || descends_from(process.pid, getppid()))) return true;
    }
    return false;
  }

  bool is_shared_ = false;
  nvml::Library library_;
  std::vector<WatchedDevice> devices_;
  std::vector<nvml::Process> list_;
};

// When a command got under way, or 0: none has. By `g` and `k` (keep) on standard input.
std::atomic<int64_t> going{0};
// Becomes readable when it changes. -1 where none can be had: then it is looked at now and then.
int changed = -1;

// Ends the process when standard input has been closed, also while the driver hangs in the main thread. The process's
// end gives the memory back, faster and more surely than calls to the driver.
void* end_with_input(void*) {
  char ignored[64];
  for (;;) {
    const ssize_t got = read(STDIN_FILENO, ignored, sizeof ignored);
    if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) _exit(0);
    if (got > 0) {
      going = ignored[got - 1] == 'g' ? process::monotonic_nanoseconds() : 0;
      eventfd_write(changed, 1);
    }
    if (got < 0 && errno == EAGAIN) {
      pollfd input = {STDIN_FILENO, POLLIN, 0};
      poll(&input, 1, -1);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_NAME, "gpu-owner-place");  // it may have been started by a descriptor's number
  Options options;
  std::string problem;
  // The terminal's Ctrl-C is for the command; the other end of standard input decides when to go.
  for (const int signal : {SIGINT, SIGQUIT, SIGHUP, SIGTSTP, SIGTTIN, SIGTTOU, SIGPIPE}) ::signal(signal, SIG_IGN);
  if (!parse(std::vector<const char*>(argv + 1, argv + argc), options, problem)) return usage(problem.c_str());
  if (options.uuids.empty() && !options.list) return usage("no --uuid given");

  if (options.meter > 0) _exit(meter(options));

  changed = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  pthread_t thread;
  if (!options.list && pthread_create(&thread, nullptr, end_with_input, nullptr) != 0)
    return usage("can't create a thread");

  cuda::Library library;
  if (!library.load(options.cuda)) {
    const std::string& missing = library.missing();
    if (!missing.empty()) return fail(cuda::ERROR_NOT_FOUND, missing.c_str(), "", "missing in the CUDA library");
    return fail(cuda::ERROR_NOT_FOUND, "load", "", dl::explain(library.attempts()).c_str());
  }
  if (options.list) return list(library);
  cuda::Placeholder placeholder;
  const auto failure = placeholder.take(library, options.uuids, kBytes);
  if (failure.code != cuda::SUCCESS) return fail(failure.code, failure.stage, failure.uuid, "");

  if (placeholder.hidden() > 0) {
    printf("ready %d\n", placeholder.hidden());
  } else {
    printf("ready\n");
  }
  fflush(stdout);
  // The output has no reader any more; the pipe must not stay open here, as its end is waited for.
  if (freopen("/dev/null", "w", stdout) == nullptr) close(STDOUT_FILENO);

  if (!options.idle) going = process::monotonic_nanoseconds();
  Watch watch;
  const bool watching = options.seconds > 0 && watch.open(options);
  for (;;) {
    // Where there is nothing to look at, a processor that sleeps stays asleep.
    const bool looking = options.seconds > 0 && going != 0;
    pollfd change = {changed, POLLIN, 0};
    eventfd_t count = 0;
    if (poll(&change, 1, looking || changed < 0 ? kPollMs : -1) > 0) eventfd_read(changed, &count);
    const int64_t since = going;
    if (since == 0 || options.seconds == 0) continue;
    if (process::monotonic_nanoseconds() > since + options.seconds * kSecond) break;
    if (watching && watch.all_taken()) break;
  }
  _exit(0);
}
