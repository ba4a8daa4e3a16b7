#include "keeper/descendants.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "keeper/clock.h"
#include "keeper/text.h"
#include "process/unique_fd.h"

namespace keeper {

namespace {

constexpr int64_t kEndTimeoutMs = 1000;
constexpr long kFirstPauseNs = 100'000;
constexpr long kMaxPauseNs = 4'000'000;

// Enough for any job worth a message; a caller that kills looks again until none is left.
constexpr int kMaxProcesses = 4096;
pid_t queue[kMaxProcesses];
int queued = 0;

void enqueue(pid_t pid) {
  if (pid > 0 && queued < kMaxProcesses) queue[queued++] = pid;
}

// A number that no PID can be stays one, and never turns into another or into a negative number, which means many
// processes.
void add_digit(pid_t* pid, char digit) { *pid = *pid > INT_MAX / 10 - 1 ? INT_MAX : *pid * 10 + (digit - '0'); }

ssize_t read_file(const char* path, char* data, size_t size) {
  const gpu_owner::process::UniqueFd file(open(path, O_RDONLY | O_CLOEXEC));
  if (!file) return -1;
  const ssize_t n = read(file.get(), data, size - 1);
  if (n >= 0) data[n] = '\0';
  return n;
}

// Children of one thread: numbers divided by spaces, possibly more than one read's worth.
bool enqueue_children_of_thread(pid_t pid, long thread) {
  Buffer<64> path;
  path.add("/proc/%d/task/%ld/children", pid, thread);
  const gpu_owner::process::UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return false;
  char data[4096];
  pid_t child = 0;
  ssize_t n = 0;
  while ((n = read(file.get(), data, sizeof data)) > 0) {
    for (ssize_t i = 0; i < n; ++i) {
      if (data[i] >= '0' && data[i] <= '9') {
        add_digit(&child, data[i]);
      } else if (child) {
        enqueue(child);
        child = 0;
      }
    }
  }
  if (child) enqueue(child);
  return true;
}

int enqueue_children(pid_t pid) {
  Buffer<32> path;
  path.add("/proc/%d/task", pid);
  DIR* threads = opendir(path.c_str());
  if (!threads) return 0;
  int count = 0;
  while (const dirent* entry = readdir(threads)) {
    long thread = 0;
    if (!parse_number(entry->d_name, INT_MAX, &thread)) continue;
    ++count;
    enqueue_children_of_thread(pid, thread);
  }
  closedir(threads);
  return count;
}

// The fields of /proc/PID/stat around the name, which may contain anything.
bool read_stat(pid_t pid, char* state, pid_t* parent, char name[16]) {
  Buffer<32> path;
  path.add("/proc/%d/stat", pid);
  char data[512];
  if (read_file(path.c_str(), data, sizeof data) <= 0) return false;
  char* open_bracket = strchr(data, '(');
  char* close_bracket = strrchr(data, ')');
  if (!open_bracket || !close_bracket || close_bracket < open_bracket) return false;
  // "(name) S 4711"
  if (close_bracket[1] != ' ' || !close_bracket[2] || close_bracket[3] != ' ') return false;
  *state = close_bracket[2];
  *parent = 0;
  for (const char* digit = close_bracket + 4; *digit >= '0' && *digit <= '9'; ++digit) {
    add_digit(parent, *digit);
  }
  *close_bracket = '\0';
  size_t length = strnlen(open_bracket + 1, 15);
  memcpy(name, open_bracket + 1, length);
  name[length] = '\0';
  for (char* c = name; *c; ++c) {
    if (*c < 0x20 || *c == 0x7f || *c == '"' || *c == '\\') *c = '?';
  }
  return true;
}

// Kernels built without lists of children: one pass over all processes for each generation.
void enqueue_by_parent() {
  for (int done = -1, size = 0; done != queued && size < kMaxProcesses; ++size) {
    done = queued;
    DIR* processes = opendir("/proc");
    if (!processes) return;
    while (const dirent* entry = readdir(processes)) {
      long pid = 0;
      char state = 0;
      char name[16];
      pid_t parent = 0;
      if (!parse_number(entry->d_name, INT_MAX, &pid)) continue;
      if (!read_stat(static_cast<pid_t>(pid), &state, &parent, name)) continue;
      bool is_known = false;
      bool is_child = false;
      for (int i = 0; i < queued; ++i) {
        is_known = is_known || queue[i] == pid;
        is_child = is_child || queue[i] == parent;
      }
      if (is_child && !is_known) enqueue(static_cast<pid_t>(pid));
    }
    closedir(processes);
  }
}

// A process whose first thread has ended looks like a zombie while its other threads run.
bool is_living(pid_t pid, int threads, Process* process) {
  char state = 0;
  pid_t parent = 0;
  process->pid = pid;
  process->running = false;
  if (!read_stat(pid, &state, &parent, process->name)) {
    strcpy(process->name, "?");
    return kill(pid, 0) == 0 || errno == EPERM;
  }
  process->running = state == 'R';
  return (state != 'Z' && state != 'X') || threads > 1;
}

template <typename Visit>
void visit_descendants(pid_t root, Visit visit) {
  Buffer<64> path;
  path.add("/proc/%d/task/%d/children", root, root);
  const bool has_lists = access(path.c_str(), R_OK) == 0;
  queued = 0;
  enqueue(root);
  if (!has_lists) enqueue_by_parent();
  for (int i = 0; i < queued; ++i) {
    const int threads = enqueue_children(queue[i]);
    Process process;
    if (i > 0 && is_living(queue[i], threads, &process)) visit(process);
  }
}

}  // namespace

void Descendants::look_up(pid_t root, pid_t excluded, pid_t excluded2) {
  count_ = 0;
  all_running_ = true;
  visit_descendants(root, [&](const Process& process) {
    if (process.pid == excluded || process.pid == excluded2) return;
    if (count_ < kListed) first_[count_] = process;
    ++count_;
    all_running_ = all_running_ && process.running;
  });
}

char process_state(pid_t pid) {
  char state = '\0';
  pid_t parent = 0;
  char name[16];
  return read_stat(pid, &state, &parent, name) ? state : '\0';
}

int signal_descendants(pid_t root, int signal) {
  int count = 0;
  visit_descendants(root, [&](const Process& process) {
    kill(process.pid, signal);
    ++count;
  });
  return count;
}

bool adopt_descendants() { return prctl(PR_SET_CHILD_SUBREAPER, 1) == 0; }

bool adopts_descendants() {
  int adopts = 0;
  return prctl(PR_GET_CHILD_SUBREAPER, &adopts) == 0 && adopts;
}

void end_child(pid_t child) {
  // Where it isn't ours, its number may be another process's by now.
  if (child <= 0 || waitpid(child, nullptr, WNOHANG) != 0) return;
  kill(child, SIGKILL);
  const int64_t end = now_ms() + kEndTimeoutMs;
  timespec pause = {0, kFirstPauseNs};
  while (waitpid(child, nullptr, WNOHANG) == 0 && now_ms() < end) {
    nanosleep(&pause, nullptr);
    if (pause.tv_nsec < kMaxPauseNs) pause.tv_nsec *= 2;
  }
}

}  // namespace keeper
