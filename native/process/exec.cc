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
  const int descriptor = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return {};
  char buffer[4096];
  for (ssize_t got; (got = read(descriptor, buffer, sizeof buffer)) > 0;) all.append(buffer, static_cast<size_t>(got));
  close(descriptor);
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

// Where a program's standard output and error go.
struct Output {
  int output, errors;
};

// Starts a program that has nothing of this process but `output`, and `descriptors` as the numbers from `first` on.
// Takes the attributes. 0 or errno.
int spawn_with(const std::string& path, const std::vector<std::string>& arguments,
               const std::vector<std::string>& environment, Output output, int first,
               const std::vector<int>& descriptors, posix_spawnattr_t& attributes, int& pid) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  // Not every C library's dup2 onto the same number clears close-on-exec.
  if (output.output != STDOUT_FILENO) posix_spawn_file_actions_adddup2(&actions, output.output, STDOUT_FILENO);
  if (output.errors != STDERR_FILENO) posix_spawn_file_actions_adddup2(&actions, output.errors, STDERR_FILENO);
  int number = first;
  for (const int descriptor : descriptors) posix_spawn_file_actions_adddup2(&actions, descriptor, number++);
  for (const int descriptor : inheritable_descriptors()) {
    const bool is_given = descriptor >= first && descriptor < number;
    if (!is_given) posix_spawn_file_actions_addclose(&actions, descriptor);
  }
  const std::vector<char*> list = pointers(arguments);
  const std::vector<char*> variables = pointers(environment);
  const int error = posix_spawn(&pid, path.c_str(), &actions, &attributes, list.data(), variables.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

constexpr int kPassedOn[] = {SIGINT,  SIGTERM,  SIGHUP,  SIGQUIT, SIGUSR1, SIGUSR2,
                             SIGALRM, SIGWINCH, SIGCONT, SIGTSTP, SIGTTIN, SIGTTOU};
std::atomic<pid_t> principal{0};     // whom this process stands for
std::atomic<uint64_t> early{0};      // signals that came before there was one
std::atomic<bool> suspended{false};  // by the terminal

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
  const pid_t child = principal.load();
  // Whoever takes it back passes it on: this, or stand_for(), which has just begun.
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
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t all, none;
  sigfillset(&all);
  sigemptyset(&none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t child;
  const int error = posix_spawn(&child, path.c_str(), nullptr, &attributes, list.data(), variable_list.data());
  posix_spawnattr_destroy(&attributes);
  return error == 0 ? child : -error;
}

void stand_for(int child) {
  principal.store(child);
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
  int input[2], output[2];
  if (pipe2(input, O_CLOEXEC) != 0) return {errno};
  if (pipe2(output, O_CLOEXEC) != 0) {
    spawned.error = errno;
    close(input[0]);
    close(input[1]);
    return spawned;
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
  // A lease, or the end of somebody's pipe, must not live on in the helper.
  for (const int descriptor : inheritable_descriptors()) posix_spawn_file_actions_addclose(&actions, descriptor);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  const std::vector<char*> list = pointers(arguments);
  std::vector<char*> variables;
  if (environment != nullptr) variables = pointers(*environment);
  spawned.error = posix_spawn(&spawned.pid, path.c_str(), &actions, &attributes, list.data(),
                              environment == nullptr ? environ : variables.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  close(input[0]);
  close(output[1]);
  if (spawned.error != 0) {
    close(input[1]);
    close(output[0]);
    return spawned;
  }
  spawned.input = input[1];
  spawned.output = output[0];
  return spawned;
}

Started start(const std::string& path, const std::vector<std::string>& arguments,
              const std::vector<std::string>& environment, int output, int first, const std::vector<int>& descriptors) {
  Started started;
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return {errno};
  if (pair[1] == first) {
    // Not every C library's dup2 onto the same number clears close-on-exec.
    pair[1] = fcntl(first, F_DUPFD_CLOEXEC, first + 1);
    close(first);
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // The terminal's Ctrl-C is for this process: it decides what becomes of the other.
  sigset_t all;
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  std::vector<int> given = {pair[1]};
  given.insert(given.end(), descriptors.begin(), descriptors.end());
  started.error = spawn_with(path, arguments, environment, {output, output}, first, given, attributes, started.pid);
  close(pair[1]);
  if (started.error != 0) {
    close(pair[0]);
    return started;
  }
  started.control = pair[0];
  return started;
}

Detached start_detached(const std::string& path, const std::vector<std::string>& arguments,
                        const std::vector<std::string>& environment, int output, int first,
                        const std::vector<int>& descriptors) {
  Detached detached;
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
  detached.error =
      spawn_with(path, arguments, environment, {output, output}, first, descriptors, attributes, detached.pid);
  return detached;
}

int run(const std::string& path, const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
        int first, const std::vector<int>& descriptors) {
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
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
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (nothing < 0) return errno;
  const bool redirected =
      dup2(nothing, STDIN_FILENO) >= 0 && dup2(output, STDOUT_FILENO) >= 0 && dup2(output, STDERR_FILENO) >= 0;
  const int error = redirected ? 0 : errno;
  close(nothing);
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
