#include "keeper/job_file.h"

#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "keeper/arguments.h"
#include "keeper/clock.h"
#include "keeper/text.h"
#include "locks/ownership.h"

namespace keeper {

namespace {

constexpr off_t kBlockOffset = 4096;
constexpr size_t kBlockSize = 512;

// The part of the output that always stays, and a multiple of all sizes of pages.
constexpr off_t kFirstPart = 64 * 1024;
constexpr blkcnt_t kStatBlockSize = 512;
// Programs print some 300 MB/s.
constexpr int64_t kGrowingMs = 200;
// Where nothing tells that an output grows again.
constexpr int64_t kRestingMs = 1'000;

void add_number(Text* text, const char* key, int64_t value, bool is_known) {
  text->add("\"%s\": ", key);
  if (is_known) {
    text->add("%" PRId64 ", ", value);
  } else {
    text->add("null, ");
  }
}

const char* word(bool value) { return value ? "true" : "false"; }

}  // namespace

bool is_job_file(int fd) { return is_job_output(fd) && !(fcntl(fd, F_GETFL) & O_APPEND); }

bool is_job_output(int fd) {
  struct stat file;
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY || flags & O_PATH) return false;
  return fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && gpu_owner::locks::may_write(fd);
}

void write_job_state(const Options& options, const JobState& state) {
  if (options.job < 0 || !gpu_owner::locks::may_write(options.job)) return;
  Buffer<kBlockSize> text;
  text.add("{");
  add_number(&text, "keeper", state.keeper, state.keeper > 0);
  add_number(&text, "front", state.front, state.front > 0);
  add_number(&text, "pid", state.command, state.command > 0);
  add_number(&text, "exitCode", state.exit_code, state.exit_code >= 0);
  add_number(&text, "signal", state.signal, state.signal > 0);
  add_number(&text, "commandEnded", state.command_ended, state.command_ended >= 0);
  add_number(&text, "ended", state.ended, state.ended >= 0);
  add_number(&text, "requeued", state.requeued, state.requeued >= 0);
  add_number(&text, "preempted", state.preemptions, true);
  add_number(&text, "failures", state.failures, true);
  add_number(&text, "ran", state.ran, true);
  add_number(&text, "limit", state.limit, state.limit > 0);
  text.add("\"timeLimit\": %s, \"cancelled\": %s}", word(state.time_limit), word(state.cancelled));
  char block[kBlockSize];
  memset(block, ' ', sizeof block);
  memcpy(block, text.c_str(), text.length());
  block[kBlockSize - 1] = '\n';
  if (pwrite(options.job, block, sizeof block, kBlockOffset) < 0) return;
}

void trim_job_output(const Options& options) {
  struct stat file;
  if (options.log < 0 || fstat(options.log, &file) != 0) return;
  if (file.st_blocks <= options.log_size / kStatBlockSize || !gpu_owner::locks::may_write(options.log)) return;
  const off_t last_part = (file.st_size - options.log_size / 2) / kFirstPart * kFirstPart;
  if (last_part <= kFirstPart) return;
  fallocate(options.log, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kFirstPart, last_part - kFirstPart);
}

OutputWatch::OutputWatch(const Options& options) : options_(options), look_at_(options.log < 0 ? INT64_MAX : 0) {}

void OutputWatch::react() {
  const int64_t now = now_ms();
  char events[256];
  if (watch_ >= 0 && read(watch_, events, sizeof events) > 0 && look_at_ > now + kGrowingMs)
    look_at_ = now + kGrowingMs;
  if (now < look_at_) return;
  trim_job_output(options_);
  struct stat file;
  const off_t size = fstat(options_.log, &file) == 0 ? file.st_size : size_;
  const bool grows = size != size_;
  size_ = size;
  if (grows) {
    look_at_ = now + kGrowingMs;
  } else {
    look_at_ = rest() ? INT64_MAX : now + kRestingMs;
  }
}

// Whether the next growth is reported.
bool OutputWatch::rest() {
  if (watch_ < 0) watch_ = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  if (watch_ < 0) return false;
  Buffer<32> path;
  path.add("/proc/self/fd/%d", options_.log);
  struct stat file;
  return inotify_add_watch(watch_, path.c_str(), IN_MODIFY | IN_ONESHOT) >= 0 && fstat(options_.log, &file) == 0 &&
         file.st_size == size_;
}

}  // namespace keeper
