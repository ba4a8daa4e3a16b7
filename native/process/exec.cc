#include "process/exec.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "process/futex.h"
#include "process/unique_fd.h"

namespace gpu_owner::process {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (const std::string& text : strings) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> own_arguments() {
  std::string all;
  const UniqueFd file(open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC));
  if (!file) return {};
  char buffer[4096];
  for (ssize_t got; (got = read(file.get(), buffer, sizeof buffer)) > 0;) all.append(buffer, static_cast<size_t>(got));
  std::vector<std::string> list;
  for (size_t start = 0; start < all.size();) {
    list.emplace_back(all.c_str() + start);
    start += list.back().size() + 1;
  }
  return list;
}

// Which a new program would find open, apart from the standard streams.
std::vector<int> inheritable_descriptors() {
  std::vector<int> list;
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) return list;
  while (const dirent* entry = readdir(directory)) {
    const int descriptor = atoi(entry->d_name);
    if (descriptor > STDERR_FILENO && fcntl(descriptor, F_GETFD) == 0) list.push_back(descriptor);
  }
  closedir(directory);
  return list;
}

std::string dropped_name(size_t i) { return "GPU_OWNER_DROPPED_" + std::to_string(i); }

void remove(std::vector<std::string>& variables, const std::string& name) {
  const auto is_named = [&](const std::string& entry) {
    return entry.compare(0, name.size(), name) == 0 && (entry.size() == name.size() || entry[name.size()] == '=');
  };
  variables.erase(std::remove_if(variables.begin(), variables.end(), is_named), variables.end());
}

int digit_value(char digit) { return digit >= 'a' ? digit - 'a' + 10 : digit - '0'; }

// As shells do, which pass on what they can name.
bool can_be_named(const std::string& entry) {
  const size_t length = entry.find('=');
  if (length == 0 || length == std::string::npos || (entry[0] >= '0' && entry[0] <= '9')) return false;
  return std::all_of(entry.begin(), entry.begin() + static_cast<ptrdiff_t>(length), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

// False where there are fewer.
bool append_own(std::vector<std::string>& arguments, size_t own) {
  const std::vector<std::string> ours = own_arguments();
  if (own > ours.size()) return false;
  arguments.insert(arguments.end(), ours.end() - static_cast<ptrdiff_t>(own), ours.end());
  return true;
}

void let_inherit(const std::vector<int>& inherited) {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; descriptor++) fcntl(descriptor, F_SETFD, 0);
  for (const int descriptor : inherited) fcntl(descriptor, F_SETFD, 0);
}

// The signals and session of a new program.
class SpawnAttributes {
 public:
  enum class Signals { blocked, unblocked };
  enum class Dispositions { inherited, fresh };

  SpawnAttributes(Signals signals, Dispositions dispositions, short more = 0) {
    posix_spawnattr_init(&attributes_);
    sigset_t mask, all;
    sigfillset(&all);
    signals == Signals::blocked ? sigfillset(&mask) : sigemptyset(&mask);
    posix_spawnattr_setsigmask(&attributes_, &mask);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    const int fresh = dispositions == Dispositions::fresh ? POSIX_SPAWN_SETSIGDEF : 0;
    posix_spawnattr_setflags(&attributes_, static_cast<short>(POSIX_SPAWN_SETSIGMASK | fresh | more));
  }
  SpawnAttributes(const SpawnAttributes&) = delete;
  ~SpawnAttributes() { posix_spawnattr_destroy(&attributes_); }

  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_;
};

// The descriptors of a new program: only those of this process that are put somewhere.
class SpawnActions {
 public:
  SpawnActions() { posix_spawn_file_actions_init(&actions_); }
  SpawnActions(const SpawnActions&) = delete;
  ~SpawnActions() { posix_spawn_file_actions_destroy(&actions_); }

  void open_null(int place) { posix_spawn_file_actions_addopen(&actions_, place, "/dev/null", O_RDONLY, 0); }

  void put(int descriptor, int place) { posix_spawn_file_actions_adddup2(&actions_, descriptor, place); }

  // All that a new program would find open, apart from places from `first` up to but not including `end`.
  void close_others(int first = 0, int end = 0) {
    for (const int descriptor : inheritable_descriptors()) {
      const bool is_placed = descriptor >= first && descriptor < end;
      if (!is_placed) posix_spawn_file_actions_addclose(&actions_, descriptor);
    }
  }

  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

// Where a program's standard output and error go.
struct Output {
  int output, errors;
};

// Starts a program that has nothing of this process but `output`, and `descriptors` as the numbers from `first` on.
// 0 or errno.
int spawn_with(const std::string& path, const std::vector<std::string>& arguments,
               const std::vector<std::string>& environment, Output output, int first,
               const std::vector<int>& descriptors, const SpawnAttributes& attributes, int& pid) {
  SpawnActions actions;
  actions.open_null(STDIN_FILENO);
  actions.put(output.output, STDOUT_FILENO);
  actions.put(output.errors, STDERR_FILENO);
  int number = first;
  for (const int descriptor : descriptors) actions.put(descriptor, number++);
  actions.close_others(first, number);
  const std::vector<char*> list = pointers(arguments);
  const std::vector<char*> variables = pointers(environment);
  return posix_spawn(&pid, path.c_str(), actions.get(), attributes.get(), list.data(), variables.data());
}

constexpr int kPassedOn[] = {SIGINT,  SIGTERM,  SIGHUP,  SIGQUIT, SIGUSR1, SIGUSR2,
                             SIGALRM, SIGWINCH, SIGCONT, SIGTSTP, SIGTTIN, SIGTTOU};
std::atomic<pid_t> proxied_child{0};  // whom this process stands for
std::atomic<uint64_t> early{0};       // signals that came before there was one
std::atomic<bool> suspended{false};   // by the terminal

void tell(pid_t child, int signal, pid_t sender) {
  sigval value;
  value.sival_int = sender << 8 | signal;
  sigqueue(child, SIGRTMAX, value);
}

void pass_on(int signal, siginfo_t* info, void*) {
  const bool from_terminal = info->si_code == SI_KERNEL;
  if (from_terminal && signal == SIGTSTP) suspended.store(true);
  // To the whole group, the child included, except that the terminal's hangup goes to the session's leader alone.
  if (from_terminal && !((signal == SIGHUP || signal == SIGCONT) && getsid(0) == getpid())) return;
  const int error = errno;
  const uint64_t bit = uint64_t{1} << signal;
  early.fetch_or(bit);
  const pid_t child = proxied_child.load();
  // The one that takes it back passes it on: this, or proxy_child(), which has just begun.
  if (child != 0 && (early.fetch_and(~bit) & bit)) {
    tell(child, signal, from_terminal ? 0 : info->si_pid);
  }
  errno = error;
}

}  // namespace

std::vector<std::string> environment(size_t dropped, const std::vector<std::string>& changes) {
  std::string digits;
  for (size_t i = 0; i < dropped; i++) {
    const char* value = getenv(dropped_name(i).c_str());
    if (value != nullptr) digits += value;
  }
  std::vector<std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; entry++) variables.emplace_back(*entry);
  for (size_t i = 0; i < dropped; i++) remove(variables, dropped_name(i));
  std::string entry;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    const char byte = static_cast<char>(digit_value(digits[i]) << 4 | digit_value(digits[i + 1]));
    if (byte != 0) {
      entry += byte;
      continue;
    }
    if (!can_be_named(entry)) variables.push_back(entry);
    entry.clear();
  }
  for (const std::string& change : changes) {
    remove(variables, change.substr(0, change.find('=')));
    if (change.find('=') != std::string::npos) variables.push_back(change);
  }
  return variables;
}

int exec(const std::string& path, std::vector<std::string> arguments, size_t own, const std::vector<int>& inherited,
         size_t dropped) {
  if (!append_own(arguments, own)) return -EINVAL;
  const std::vector<char*> list = pointers(arguments);
  const std::vector<std::string> variables = environment(dropped);
  const std::vector<char*> variable_list = pointers(variables);
  let_inherit(inherited);
  struct sigaction before[_NSIG] = {};  // some can't be asked for
  for (int signal = 1; signal < _NSIG; signal++) {
    struct sigaction standard = {};
    standard.sa_handler = SIG_DFL;
    if (sigaction(signal, nullptr, &before[signal]) == 0 && before[signal].sa_handler == SIG_IGN) {
      sigaction(signal, &standard, nullptr);
    }
  }
  sigset_t none, mask;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, &mask);
  execve(path.c_str(), list.data(), variable_list.data());
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  for (int signal = 1; signal < _NSIG; signal++) {
    if (before[signal].sa_handler == SIG_IGN) sigaction(signal, &before[signal], nullptr);
  }
  return -error;
}

int exec_in_child(const std::string& path, std::vector<std::string> arguments, size_t own,
                  const std::vector<int>& inherited, size_t dropped) {
  if (!append_own(arguments, own)) return -EINVAL;
  const std::vector<char*> list = pointers(arguments);
  const std::vector<std::string> variables = environment(dropped);
  const std::vector<char*> variable_list = pointers(variables);
  let_inherit(inherited);
  struct sigaction action = {};
  action.sa_sigaction = pass_on;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  for (const int signal : kPassedOn) sigaction(signal, &action, nullptr);
  signal(SIGCHLD, SIG_DFL);  // where children are ignored, none could be waited for
  const SpawnAttributes attributes(SpawnAttributes::Signals::unblocked, SpawnAttributes::Dispositions::fresh);
  pid_t child;
  const int error = posix_spawn(&child, path.c_str(), nullptr, attributes.get(), list.data(), variable_list.data());
  return error == 0 ? child : -error;
}

void proxy_child(int child) {
  proxied_child.store(child);
  for (const int signal : kPassedOn) {
    if (early.fetch_and(~(uint64_t{1} << signal)) >> signal & 1) tell(child, signal, 0);
  }
  for (const int descriptor : inheritable_descriptors()) close(descriptor);
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; descriptor++) {
    if (nothing < 0 || dup2(nothing, descriptor) < 0) close(descriptor);
  }
  for (;;) {
    int status = 0;
    const pid_t changed = waitpid(-1, &status, WUNTRACED);
    if (changed < 0 && errno != EINTR) _exit(EX_SOFTWARE);
    if (changed != child) continue;
    if (WIFEXITED(status)) _exit(WEXITSTATUS(status));
    if (WIFSIGNALED(status)) {
      signal(WTERMSIG(status), SIG_DFL);
      raise(WTERMSIG(status));
      _exit(128 + WTERMSIG(status));
    }
    if (suspended.exchange(false)) kill(child, SIGCONT);
  }
}

Spawned spawn(const std::string& path, const std::vector<std::string>& arguments,
              const std::vector<std::string>* environment) {
  Spawned spawned;
  FdPair input = FdPair::pipe();
  if (!input) return {errno};
  FdPair output = FdPair::pipe();
  if (!output) return {errno};
  SpawnActions actions;
  actions.put(input.first.get(), STDIN_FILENO);
  actions.put(output.second.get(), STDOUT_FILENO);
  // A lease, or the end of a pipe, must not live on in the helper.
  actions.close_others();
  const SpawnAttributes attributes(SpawnAttributes::Signals::unblocked, SpawnAttributes::Dispositions::inherited);
  const std::vector<char*> list = pointers(arguments);
  std::vector<char*> variables;
  if (environment != nullptr) variables = pointers(*environment);
  spawned.error = posix_spawn(&spawned.pid, path.c_str(), actions.get(), attributes.get(), list.data(),
                              environment == nullptr ? environ : variables.data());
  if (spawned.error != 0) return spawned;
  spawned.input = input.second.release();
  spawned.output = output.first.release();
  return spawned;
}

Started start(const std::string& path, const std::vector<std::string>& arguments,
              const std::vector<std::string>& environment, int output, int first, const std::vector<int>& descriptors) {
  Started started;
  FdPair ends = FdPair::sockets();
  if (!ends) return {errno};
  // Not every C library's dup2 onto the same number clears close-on-exec.
  if (ends.second.get() == first) ends.second.reset(fcntl(first, F_DUPFD_CLOEXEC, first + 1));
  // The terminal's Ctrl-C is for this process: it decides what becomes of the other.
  const SpawnAttributes attributes(SpawnAttributes::Signals::blocked, SpawnAttributes::Dispositions::inherited);
  std::vector<int> given = {ends.second.get()};
  given.insert(given.end(), descriptors.begin(), descriptors.end());
  started.error = spawn_with(path, arguments, environment, {output, output}, first, given, attributes, started.pid);
  if (started.error == 0) started.control = ends.first.release();
  return started;
}

Detached start_detached(const std::string& path, const std::vector<std::string>& arguments,
                        const std::vector<std::string>& environment, int output, int first,
                        const std::vector<int>& descriptors) {
  Detached detached;
  const SpawnAttributes attributes(SpawnAttributes::Signals::unblocked, SpawnAttributes::Dispositions::fresh,
                                   POSIX_SPAWN_SETSID);
  detached.error =
      spawn_with(path, arguments, environment, {output, output}, first, descriptors, attributes, detached.pid);
  return detached;
}

int run(const std::string& path, const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
        int first, const std::vector<int>& descriptors) {
  const SpawnAttributes attributes(SpawnAttributes::Signals::unblocked, SpawnAttributes::Dispositions::fresh);
  let_inherit({});  // Node.js has marked the standard streams close-on-exec
  int pid = -1;
  const int error =
      spawn_with(path, arguments, environment, {STDOUT_FILENO, STDERR_FILENO}, first, descriptors, attributes, pid);
  if (error != 0) return -error;
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return -errno;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int detach(int output, const std::vector<int>& kept, const std::vector<int>& foreign) {
  if (setsid() < 0) return errno;
  prctl(PR_SET_PDEATHSIG, 0);
  const UniqueFd nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing) return errno;
  const bool redirected =
      dup2(nothing.get(), STDIN_FILENO) >= 0 && dup2(output, STDOUT_FILENO) >= 0 && dup2(output, STDERR_FILENO) >= 0;
  const int error = redirected ? 0 : errno;
  for (const int descriptor : foreign) {
    if (descriptor > STDERR_FILENO) close(descriptor);
  }
  for (const int descriptor : inheritable_descriptors()) {
    const bool is_kept = std::find(kept.begin(), kept.end(), descriptor) != kept.end();
    if (!is_kept) fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  }
  return error;
}

int inheritable_duplicate(int descriptor) {
  const int duplicate = fcntl(descriptor, F_DUPFD, 200);
  return duplicate >= 0 ? duplicate : -errno;
}

std::string read_line(int descriptor, int milliseconds) {
  std::string line;
  pollfd readable = {descriptor, POLLIN, 0};
  const int64_t end = monotonic_nanoseconds() + int64_t{milliseconds} * 1000000;
  while (line.find('\n') == std::string::npos) {
    const int64_t left = (end - monotonic_nanoseconds()) / 1000000;
    if (left <= 0) return "";
    const int ready = poll(&readable, 1, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    char buffer[1024];
    const ssize_t got = ready > 0 ? read(descriptor, buffer, sizeof buffer) : 0;
    if (got <= 0) return "";
    line.append(buffer, static_cast<size_t>(got));
  }
  return line.substr(0, line.find('\n'));
}

}  // namespace gpu_owner::process
