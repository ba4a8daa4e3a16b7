#include "keeper/meter.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <initializer_list>
#include <utility>

#include "keeper/arguments.h"
#include "keeper/clock.h"
#include "keeper/descriptors.h"
#include "keeper/exit_codes.h"
#include "keeper/signals.h"
#include "keeper/text.h"

namespace keeper {

namespace {

using gpu_owner::process::FdPair;

// A word of a Reading; false where it is none.
bool read_number(const char** text, int64_t* number) {
  char word[24] = "";
  const size_t length = strcspn(*text, " \n");
  if (length == 0 || length >= sizeof word) return false;
  memcpy(word, *text, length);
  *text += length + 1;
  long value = 0;
  const bool is_known = strcmp(word, "-1") != 0;
  if (is_known && !parse_number(word, LONG_MAX / 2, &value)) return false;
  *number = is_known ? value : -1;
  return true;
}

bool is_metered(const Options& options) {
  return options.meter.program >= 0 && options.leases.count <= kMaxMetered &&
         options.leases.count <= options.lease_files.count;
}

// Becomes the program.
[[noreturn]] void read_gpus(const Options& options, uint64_t since, int output) {
  dup2(output, STDOUT_FILENO);
  Buffer<32> path, microseconds;
  path.add("/proc/self/fd/%d", options.meter.program);
  microseconds.add("%" PRIu64, since);
  Buffer<112> uuids[kMaxMetered];
  const char* words[2 * kMaxMetered + 9] = {"gpu-owner-placeholder", "--meter", microseconds.c_str()};
  int count = 3;
  if (options.meter.nvml) {
    words[count++] = "--nvml";
    words[count++] = options.meter.nvml;
  }
  if (options.share.bytes > 0) words[count++] = "--shared";
  for (int i = 0; i < options.leases.count; ++i) {
    add_uuid(&uuids[i], options.lease_files.paths[i]);
    words[count++] = "--uuid";
    words[count++] = uuids[i].c_str();
  }
  words[count] = nullptr;
  close_others(options, Keep::standard, options.meter.program);
  restore_signals(0);
  execv(path.c_str(), const_cast<char**>(words));
  _exit(kExitNotFound);
}

}  // namespace

Meter::Meter(const Options& options)
    : options_(options), look_at_(is_metered(options) ? now_ms() + options.meter.interval : INT64_MAX) {}

void Meter::collected(pid_t pid) {
  if (pid == pid_) pid_ = 0;
}

bool Meter::react() {
  bool is_new = false;
  while (output_ && length_ < sizeof text_ - 1) {
    const ssize_t n = read(output_.get(), text_ + length_, sizeof text_ - 1 - length_);
    if (n < 0) break;
    if (n == 0) {
      parse();
      is_new = readings_.count == options_.leases.count;
      output_.reset();
      break;
    }
    length_ += static_cast<size_t>(n);
  }
  if (now_ms() < look_at_) return is_new;
  look_at_ = now_ms() + options_.meter.interval;
  // One that hangs in the driver isn't joined by others.
  if (pid_ == 0) start();
  return is_new;
}

bool Meter::start() {
  FdPair pipe = FdPair::pipe();
  if (!pipe) return false;
  fcntl(pipe.first.get(), F_SETFL, O_NONBLOCK);
  pid_ = fork();
  if (pid_ == 0) read_gpus(options_, last_, pipe.second.get());
  if (pid_ < 0) {
    pid_ = 0;
    return false;
  }
  last_ = static_cast<uint64_t>(calendar_time_ms()) * 1000;
  length_ = 0;
  readings_.at = boot_time_ms();
  output_ = std::move(pipe.first);
  return true;
}

void Meter::parse() {
  text_[length_] = '\0';
  readings_.count = 0;
  const char* text = text_;
  while (*text && readings_.count < options_.leases.count) {
    Reading& gpu = readings_.gpus[readings_.count];
    for (int64_t* number : {&gpu.at, &gpu.energy, &gpu.utilization, &gpu.memory}) {
      if (!read_number(&text, number)) return;
    }
    ++readings_.count;
  }
}

void Meter::interrupt() {
  output_.reset();
  if (pid_) kill(pid_, SIGKILL);
}

}  // namespace keeper
