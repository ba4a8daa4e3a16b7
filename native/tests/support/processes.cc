#include "support/processes.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

namespace tests {
namespace {

int entries_of(const char* path) {
  DIR* directory = opendir(path);
  if (directory == nullptr) return -1;
  int count = 0;
  while (const dirent* entry = readdir(directory)) count += entry->d_name[0] != '.';
  closedir(directory);
  return count;
}

}  // namespace

int end_of(pid_t process) {
  int status = 0;
  while (waitpid(process, &status, 0) < 0) {
    if (errno != EINTR) return -1;
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void kill_and_wait(pid_t process) {
  kill(process, SIGKILL);
  end_of(process);
}

const std::string& own_path() {
  static const std::string path = [] {
    char buffer[4096];
    const ssize_t length = readlink("/proc/self/exe", buffer, sizeof buffer);
    return std::string(buffer, length > 0 ? static_cast<size_t>(length) : 0);
  }();
  return path;
}

std::vector<std::string> program_arguments(const char* name, const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {own_path(), "--program", name};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return all;
}

pid_t start_program(const char* name, const std::vector<std::string>& arguments) {
  const std::vector<std::string> all = program_arguments(name, arguments);
  return start([&all] {
    std::vector<char*> pointers;
    for (const std::string& one : all) pointers.push_back(const_cast<char*>(one.c_str()));
    pointers.push_back(nullptr);
    execv(own_path().c_str(), pointers.data());
    return 126;
  });
}

int run_program(const char* name, const std::vector<std::string>& arguments) {
  return end_of(start_program(name, arguments));
}

Channel::Channel() {
  if (pipe2(ends_, O_CLOEXEC) != 0) {
    fail(__FILE__, __LINE__, "pipe2");
    end_test();
  }
}

void Channel::say(char word) const {
  if (write(ends_[1], &word, 1) != 1) fail(__FILE__, __LINE__, "nobody hears");
}

char Channel::hear(int milliseconds) const {
  pollfd end = {ends_[0], POLLIN, 0};
  if (poll(&end, 1, milliseconds) <= 0) return 0;
  char word = 0;
  return read(ends_[0], &word, 1) == 1 ? word : 0;
}

void Channel::close_for_saying() { close(ends_[1]); }
void Channel::close_for_hearing() { close(ends_[0]); }

std::string read_all(int descriptor) {
  std::string all;
  char buffer[4096];
  for (;;) {
    const ssize_t got = read(descriptor, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return all;
    all.append(buffer, static_cast<size_t>(got));
  }
}

std::string contents_of(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return "";
  const std::string all = read_all(descriptor);
  close(descriptor);
  return all;
}

void sleep_milliseconds(int milliseconds) {
  timespec left = {milliseconds / 1000, (milliseconds % 1000) * 1000000L};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

int open_descriptors() { return entries_of("/proc/self/fd") - 1; }
int threads() { return entries_of("/proc/self/task"); }

bool has_threads(int number) {
#ifdef __SANITIZE_THREAD__
  return threads() >= number && threads() <= number + 2;
#else
  return threads() == number;
#endif
}

}  // namespace tests
