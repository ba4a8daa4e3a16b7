// Runs the tests: native_tests [PATTERN…]     a test runs if `group: title` contains one of the patterns
//                 native_tests --list
//                 native_tests --part I/N         the I-th of N parts, from 0: each N-th test
// The group of a test is its file below native/tests without the ending, e.g. locks/probe.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <vector>

#include "support/directory.h"
#include "test.h"

namespace tests {
namespace {

constexpr int kFailed = 1;
constexpr int kSkipped = 77;
constexpr int kSecondsPerTest = 30;

struct NamedProgram {
  const char* name;
  int (*run)(int, char**);
};

std::vector<Test>& all_tests() {
  static auto* all = new std::vector<Test>;
  return *all;
}

std::vector<NamedProgram>& all_programs() {
  static auto* all = new std::vector<NamedProgram>;
  return *all;
}

// In the test's own process.
bool failed = false;
std::string own_name;

std::string group_of(const char* file) {
  const std::string path = file;
  const std::string root = "native/tests/";
  const size_t start = path.rfind(root);
  const size_t first = start == std::string::npos ? 0 : start + root.size();
  return path.substr(first, path.rfind('.') - first);
}

int64_t milliseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

[[noreturn]] void run_here(const Test& test, const std::string& name) {
  own_name = name;
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  close(nothing);
  test.run();
  end_test();
}

// The wait status, or -1 if the time was up.
int wait_for(pid_t process) {
  const int64_t end = milliseconds() + int64_t{kSecondsPerTest} * 1000 * slowness();
  for (int pause = 200'000;; pause = pause < 5'000'000 ? pause * 2 : pause) {
    int status;
    if (waitpid(process, &status, WNOHANG) == process) return status;
    if (milliseconds() > end) return -1;
    const timespec time = {0, pause};
    nanosleep(&time, nullptr);
  }
}

enum class Outcome { passed, failed, skipped };

Outcome run(const Test& test, const std::string& name) {
  fflush(nullptr);
  mkdir(directory().c_str(), 0755);  // some tests become another user
  const int64_t start = milliseconds();
  const pid_t process = fork();
  if (process < 0) {
    printf("FAILED   %s: fork: %s\n", name.c_str(), strerror(errno));
    return Outcome::failed;
  }
  if (process == 0) run_here(test, name);
  setpgid(process, process);
  const int status = wait_for(process);
  kill(-process, SIGKILL);  // the test, if it hangs, and what it has left behind
  if (status == -1) waitpid(process, nullptr, 0);
  remove_all(directory());
  const auto took = static_cast<int>(milliseconds() - start);
  if (status != -1 && WIFEXITED(status) && WEXITSTATUS(status) == kSkipped) return Outcome::skipped;
  if (status == 0) {
    printf("ok       %s (%d ms)\n", name.c_str(), took);
    return Outcome::passed;
  }
  printf("FAILED   %s (%d ms)", name.c_str(), took);
  if (status == -1) printf(": it hung");
  if (status != -1 && WIFSIGNALED(status)) printf(": signal %d", WTERMSIG(status));
  if (status != -1 && WIFEXITED(status) && WEXITSTATUS(status) != kFailed)
    printf(": exit code %d", WEXITSTATUS(status));
  printf("\n");
  return Outcome::failed;
}

// Whether more threads want to run than there are processors.
bool machine_is_busy() {
  int now = 0;
  double minute = 0;
  FILE* file = fopen("/proc/loadavg", "re");
  if (file == nullptr || fscanf(file, "%lf %*f %*f %d", &minute, &now) != 2) now = 0;
  if (file != nullptr) fclose(file);
  const auto processors = static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN));
  return minute > processors || now > processors;
}

Outcome run_tries(const Test& test, const std::string& name) {
  for (int left = test.tries;; left--) {
    const Outcome outcome = run(test, name);
    if (outcome != Outcome::failed || left <= 1 || !machine_is_busy()) return outcome;
    printf("again, because the machine is busy:\n");
  }
}

// Each `of`-th test from `first`.
struct Part {
  int first = 0;
  int of = 1;
};

bool wanted(const std::string& name, int count, char** patterns) {
  for (int i = 1; i < count; i++) {
    if (name.find(patterns[i]) != std::string::npos) return true;
  }
  return count < 2;
}

// Closes what the caller has left open: tests count descriptors.
void close_inherited() {
  DIR* directory = opendir("/proc/self/fd");
  std::vector<int> open_ones;
  while (const dirent* entry = directory != nullptr ? readdir(directory) : nullptr)
    open_ones.push_back(atoi(entry->d_name));
  if (directory != nullptr) closedir(directory);
  for (const int descriptor : open_ones) {
    if (descriptor > STDERR_FILENO && fcntl(descriptor, F_GETFD) == 0) close(descriptor);
  }
}

int run_all(int count, char** arguments) {
  close_inherited();
  // The caller may be using a simulated machine, or another driver than the usual.
  for (const char* name :
       {"GPU_OWNER_SIMULATE", "GPU_OWNER_SIMULATE_DIR", "GPU_OWNER_NVML_LIBRARY", "GPU_OWNER_CUDA_LIBRARY",
        "GPU_OWNER_LOCK_DIR", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}) {
    unsetenv(name);
  }
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const bool list = count == 2 && strcmp(arguments[1], "--list") == 0;
  const char* temporary = getenv("TMPDIR");
  std::string root = std::string(temporary != nullptr ? temporary : "/tmp") + "/gpu-owner-tests-XXXXXX";
  if (!list && mkdtemp(root.data()) == nullptr) {
    printf("%s: %s\n", root.c_str(), strerror(errno));
    return 1;
  }
  if (!list) chmod(root.c_str(), 0755);
  set_directory(root + "/test");
  Part part;
  if (count == 3 && strcmp(arguments[1], "--part") == 0 && sscanf(arguments[2], "%d/%d", &part.first, &part.of) == 2)
    count = 1;
  int totals[3] = {};
  int index = 0;
  for (const Test& test : all_tests()) {
    if (index++ % part.of != part.first) continue;
    const std::string name = group_of(test.file) + ": " + test.title;
    if (list) printf("%s\n", name.c_str());
    if (!list && wanted(name, count, arguments)) totals[static_cast<int>(run_tries(test, name))]++;
  }
  if (list) return 0;
  remove_all(root);
  const auto [passed, failures, skipped] = totals;
  if (skipped > 0) printf("%d skipped\n", skipped);
  if (passed + failures + skipped == 0) printf("no test has such a name; --list prints all\n");
  printf("%d passed, %d failed\n", passed, failures);
  return failures > 0 || passed + skipped == 0 ? 1 : 0;
}

}  // namespace

Registration::Registration(const char* file, const char* title, void (*run)(), int tries) {
  all_tests().push_back({file, title, run, tries});
}

Program::Program(const char* name, int (*run)(int, char**)) { all_programs().push_back({name, run}); }

void fail(const char* file, int line, const std::string& what) {
  failed = true;
  fprintf(stderr, "  %s.cc:%d: %s\n", group_of(file).c_str(), line, what.c_str());
}

void end_test() {
  fflush(nullptr);
  exit(failed ? kFailed : 0);
}

void skip(const std::string& why) {
  if (failed) end_test();
  printf("skipped  %s: %s\n", own_name.c_str(), why.c_str());
  fflush(nullptr);
  exit(kSkipped);
}

int slowness() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 4;
#else
  return under_valgrind() ? 8 : 1;
#endif
}

bool under_valgrind() {
  const char* preloaded = getenv("LD_PRELOAD");
  return preloaded != nullptr && strstr(preloaded, "vgpreload") != nullptr;
}

}  // namespace tests

int main(int count, char** arguments) {
  if (count > 2 && strcmp(arguments[1], "--program") == 0) {
    for (const auto& program : tests::all_programs()) {
      if (strcmp(program.name, arguments[2]) == 0) return program.run(count - 3, arguments + 3);
    }
    return 127;
  }
  return tests::run_all(count, arguments);
}
