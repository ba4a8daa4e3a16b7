#include "keeper/arguments.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "keeper/exit_codes.h"
#include "keeper/job_file.h"
#include "keeper/messages.h"
#include "keeper/text.h"

namespace keeper {

namespace {

// An option's value, read part by part. Parts stand between colons.
class Value {
 public:
  explicit Value(const char* text) : rest_(text) {}

  bool is_read() const { return !rest_; }

  // The next part, which must not be empty; false too where it doesn't fit.
  bool part(char* text, size_t size) {
    if (!rest_) return false;
    const size_t length = strcspn(rest_, ":");
    if (length == 0 || length >= size) return false;
    memcpy(text, rest_, length);
    text[length] = '\0';
    rest_ = rest_[length] ? rest_ + length + 1 : nullptr;
    return true;
  }

  bool number(long minimum, long maximum, long* number) {
    char digits[24];
    return part(digits, sizeof digits) && parse_number(digits, maximum, number) && *number >= minimum;
  }

  bool integer(long minimum, int maximum, int* integer) {
    long value = 0;
    if (!number(minimum, maximum, &value)) return false;
    *integer = static_cast<int>(value);
    return true;
  }

  bool descriptor(int* fd) { return integer(STDERR_FILENO + 1, INT_MAX, fd) && fcntl(*fd, F_GETFD) != -1; }

  // All that is left, colons and nothing included.
  bool text(const char** text) {
    *text = rest_;
    rest_ = nullptr;
    return *text != nullptr;
  }

  bool word(WordList* list) { return list->count < WordList::kCapacity && text(&list->words[list->count++]); }

  bool path(PathList* list) {
    return *rest_ == '/' && list->count < PathList::kCapacity && text(&list->paths[list->count++]);
  }

  bool descriptors(DescriptorList* list) {
    for (const char* text = rest_; text; text = *text ? text + 1 : nullptr) {
      char number[16] = "";
      const size_t length = strcspn(text, ",");
      if (length >= sizeof number || list->count == DescriptorList::kCapacity) return false;
      memcpy(number, text, length);
      if (!Value(number).descriptor(&list->fds[list->count++])) return false;
      text += length;
    }
    rest_ = nullptr;
    return true;
  }

  // One of two words.
  bool either(const char* first, const char* second, bool* is_second) {
    char word[16];
    if (!part(word, sizeof word)) return false;
    *is_second = !strcmp(word, second);
    return *is_second || !strcmp(word, first);
  }

 private:
  const char* rest_;
};

// Times that may be added to a clock, in ms.
constexpr long kMaxTime = LONG_MAX / 2;

bool read_marker(Value& value, bool is_pid, bool is_shared, Options* options) {
  MarkerList& list = options->markers;
  DescriptorList& held = options->held;
  if (list.count == MarkerList::kCapacity || held.count + 2 > DescriptorList::kCapacity) return false;
  Marker& marker = list.markers[list.count++];
  marker.is_pid = is_pid;
  marker.is_shared = is_shared;
  if (!value.descriptor(&marker.fd) || !value.part(marker.token, sizeof marker.token) ||
      !value.descriptor(&marker.directory) || !value.text(&marker.name) || !*marker.name || strchr(marker.name, '/')) {
    return false;
  }
  held.fds[held.count++] = marker.fd;
  if (!held.contains(marker.directory)) held.fds[held.count++] = marker.directory;
  return true;
}

bool read_mask(Value& value, uint64_t* mask) {
  char digits[17];
  if (!value.part(digits, sizeof digits)) return false;
  for (const char* digit = digits; *digit; ++digit) {
    const char* found = strchr("0123456789abcdef", *digit);
    if (!found) return false;
    *mask = *mask << 4 | static_cast<uint64_t>(found - "0123456789abcdef");
  }
  return true;
}

bool read_retry(Value& value, Requeue* requeue) {
  return value.number(0, INT_MAX - 1, &requeue->retries) &&
         (value.is_read() || value.number(0, 255, &requeue->retried_code));
}

bool read_lock(Value& value, waiter::Lock* lock) {
  return value.descriptor(&lock->descriptor) && value.number(0, LONG_MAX - 1, &lock->byte);
}

bool read_usage(Value& value, Usage* usage) {
  return value.descriptor(&usage->fd) && value.number(0, kMaxTime, &usage->offset) &&
         value.number(0, kMaxTime, &usage->since) && value.number(1, INT_MAX, &usage->interval);
}

constexpr unsigned mask_of(Mode mode) { return 1u << static_cast<unsigned>(mode); }
constexpr unsigned kRun = mask_of(Mode::run), kTask = mask_of(Mode::task), kHold = mask_of(Mode::hold),
                   kWait = mask_of(Mode::wait), kKeep = kRun | kTask | kHold;
constexpr char kFile[] = "a regular file with one name, open for writing";
constexpr char kFd[] = "an open descriptor above 2", kFds[] = "open descriptors above 2, at most 256";
constexpr char kMarker[] = "FD:TOKEN:DIRECTORY-FD:NAME, 256 times at most", kWords[] = "fewer arguments";
constexpr char kCount[] = "a whole number", kText[] = "a text";

struct Option {
  const char* name;
  unsigned modes;
  const char* form;
  bool (*read)(Value& value, Options* options);
};

#define READ(expression) [](Value& value, Options* options) -> bool { return expression; }

// A value is a part of it or more; Options says what each means.
constexpr Option kOptions[] = {
    {"--leases", kKeep, kFds, READ(value.descriptors(&options->leases))},
    {"--shared", kKeep, kFds, READ(value.descriptors(&options->shared))},
    {"--lease-file", kKeep, "an absolute path", READ(value.path(&options->lease_files))},
    {"--inherited", kKeep, kFds, READ(value.descriptors(&options->inherited))},
    {"--held", kKeep, kFds, READ(value.descriptors(&options->held))},
    {"--marker", kKeep, kMarker, READ(read_marker(value, false, false, options))},
    {"--pid-marker", kKeep, kMarker, READ(read_marker(value, true, false, options))},
    {"--shared-marker", kKeep, kMarker, READ(read_marker(value, false, true, options))},
    {"--shared-pid-marker", kKeep, kMarker, READ(read_marker(value, true, true, options))},
    {"--record", kKeep, kText, READ(value.text(&options->record))},
    {"--placeholder", kKeep, kFd, READ(value.descriptor(&options->placeholder))},
    {"--placeholder-pid", kKeep, "a process id", READ(value.integer(1, INT_MAX, &options->placeholder_pid))},
    {"--nofile", kKeep, kCount, READ(value.number(0, LONG_MAX, &options->open_files))},
    {"--gpus", kKeep, kText, READ(value.text(&options->gpus))},
    {"--cpus", kKeep, "ranges of processors",
     READ(value.text(&options->cpus) && *options->cpus && !options->cpus[strspn(options->cpus, "0123456789,-")])},
    {"--grace", kKeep, kCount, READ(value.number(0, INT_MAX, &options->grace))},
    {"--recheck", kKeep, "at least 1 ms", READ(value.number(1, INT_MAX, &options->recheck))},
    {"--ignore-signals", kKeep | kWait, "a hexadecimal mask", READ(read_mask(value, &options->ignored_signals))},
    {"--control", kTask, kFd, READ(value.descriptor(&options->control))},
    {"--directory", kTask, kText, READ(value.text(&options->directory))},
    {"--deadline", kTask, "MS:GRACE",
     READ(value.number(1, kMaxTime, &options->deadline.at) && value.number(0, INT_MAX, &options->deadline.grace))},
    {"--time-limit", kRun | kHold, "MS:TEXT",
     READ(value.number(1, kMaxTime, &options->time_limit.duration) && value.text(&options->time_limit.text))},
    {"--notice", kRun, "SIGNAL:MS",
     READ(value.integer(1, SIGRTMAX, &options->time_limit.signal) &&
          value.number(0, LONG_MAX, &options->time_limit.notice))},
    {"--job", kRun, kFile, READ(value.descriptor(&options->job) && is_job_file(options->job))},
    {"--log", kRun, "FD:BYTES of a regular file with one name, open for writing",
     READ(value.descriptor(&options->log) && value.number(1, LONG_MAX, &options->log_size) &&
          is_job_output(options->log))},
    {"--then", kRun, kWords, READ(value.word(&options->then))},
    {"--give-way", kRun, "MS:SIGNAL",
     READ(value.number(0, INT_MAX, &options->give_way.grace) && value.integer(0, SIGRTMAX, &options->give_way.signal))},
    {"--notice-path", kRun, kText, READ(value.text(&options->give_way.notice))},
    {"--requeue", kRun, kCount, READ(value.number(0, INT_MAX, &options->requeue.command))},
    {"--requeue-environment", kRun, kWords, READ(value.word(&options->requeue.environment))},
    {"--retry", kRun, "TIMES[:CODE]", READ(read_retry(value, &options->requeue))},
    {"--requeued", kRun, "TIMES:MS:FAILURES",
     READ(value.number(0, INT_MAX - 1, &options->requeue.times) && value.number(0, kMaxTime, &options->requeue.ran) &&
          value.number(0, INT_MAX - 1, &options->requeue.failures))},
    {"--kept", kRun, kFd, READ(value.descriptor(&options->requeue.kept))},
    {"--meter", kRun | kHold, "FD:MS",
     READ(value.descriptor(&options->meter.program) && value.number(1, kMaxTime, &options->meter.interval))},
    {"--meter-nvml", kRun | kHold, kText, READ(value.text(&options->meter.nvml))},
    {"--share", kRun, kCount, READ(value.number(0, kMaxTime, &options->share.bytes))},
    {"--share-warned", kRun, kText, READ(value.text(&options->share.warned))},
    {"--share-ended", kRun, kText, READ(value.text(&options->share.ended))},
    {"--idle", kRun, "MS:MS:PERCENT",
     READ(value.number(0, kMaxTime, &options->idle.warning) && value.number(0, kMaxTime, &options->idle.end) &&
          value.number(0, 100, &options->idle.min_utilization))},
    {"--idle-warned", kRun, kText, READ(value.text(&options->idle.warned))},
    {"--idle-ended", kRun, kText, READ(value.text(&options->idle.ended))},
    {"--idle-then", kRun, kWords, READ(value.word(&options->idle.then))},
    {"--usage", kRun | kHold, "FD:OFFSET:SINCE:MS", READ(read_usage(value, &options->usage))},
    {"--cancel", kRun, "all or command", READ(value.either("all", "command", &options->cancels_command))},
    {"--answer", kHold, kText, READ(value.text(&options->answer))},
    {"--lock", kWait, "FD:NUMBER", READ(read_lock(value, &options->wait.locks.append()))},
    {"--locks", kWait, "any or all", READ(value.either("any", "all", &options->wait.all))},
    {"--queue", kWait, "FD:NUMBER",
     READ(value.descriptor(&options->wait.queue) && value.number(0, LONG_MAX - 1, &options->wait.slot))},
    {"--queue-path", kWait | kRun, kText,
     READ(value.text(options->mode == Mode::wait ? &options->wait.queue_path : &options->give_way.queue))},
    {"--ahead", kWait, kCount, READ(value.number(0, LONG_MAX - 1, &options->wait.ahead.append()))},
    {"--suspended", kWait, "wake or next", READ(value.either("wake", "next", &options->wait.moves_on))},
    {"--lease", kWait, kFd, READ(value.descriptor(&options->wait.leases.append()))},
    {"--bookings", kWait, kCount, READ(value.number(0, LONG_MAX, &options->wait.bookings))},
    {"--until", kWait, kCount, READ(value.number(0, LONG_MAX, &options->wait.until))},
    {"--needs", kWait, kText, READ(value.text(&options->wait.needed.append()))},
    {"--needs-timeout", kWait, kCount, READ(value.number(0, INT_MAX, &options->wait.needs_timeout))},
    {"--line-before", kWait, kText, READ(value.text(&options->wait.line_before))},
    {"--line-after", kWait, kText, READ(value.text(&options->wait.line_after))},
    {"--line-since", kWait, kCount, READ(value.number(0, LONG_MAX, &options->wait.line_since))},
    {"--line-columns", kWait, kCount, READ(value.number(0, INT_MAX, &options->wait.line_columns))},
};

#undef READ

constexpr struct {
  const char* name;
  Mode mode;
} kModes[] = {
    {"run", Mode::run}, {"task", Mode::task}, {"hold", Mode::hold}, {"wait", Mode::wait}, {"submit", Mode::submit}};

// These mistakes are of the program that starts this one, not of people.
int read_option(const char* name, const char* text, Options* options) {
  for (const Option& known : kOptions) {
    if (strcmp(name, known.name) != 0) continue;
    if (!(known.modes & mask_of(options->mode))) break;
    Value value(text);
    if (known.read(value, options) && value.is_read()) return 0;
    say("keeper: %s needs %s, not '%s'", name, known.form, text);
    return kExitUsage;
  }
  say("keeper: unknown option '%s'", name);
  return kExitUsage;
}

const char* find_problem(const Options& options) {
  const waiter::Options& wait = options.wait;
  if (options.mode != Mode::hold && !options.command) return "there is no command";
  if (options.mode == Mode::hold && options.command) return "hold takes no command";
  if (options.mode == Mode::task && options.control < 0) return "task needs --control";
  if (options.time_limit.signal && options.time_limit.notice >= options.time_limit.duration)
    return "--notice needs a longer --time-limit";
  if (!options.give_way.queue != !options.give_way.notice) return "--queue-path and --notice-path belong together";
  if (wait.queue < 0 && (wait.ahead.count() > 0 || wait.queue_path)) return "--ahead and --queue-path need --queue";
  if (wait.all && (wait.ahead.count() > 0 || wait.locks.count() == 0))
    return "--locks all needs --lock, and no --ahead";
  return nullptr;
}

// Each word is one item at most.
bool reserve_lists(waiter::Options* wait, int words) {
  return wait->locks.reserve(words) && wait->ahead.reserve(words) && wait->leases.reserve(words) &&
         wait->needed.reserve(words);
}

}  // namespace

bool DescriptorList::contains(int fd) const {
  for (int i = 0; i < count; ++i) {
    if (fds[i] == fd) return true;
  }
  return false;
}

const char* Options::command_name() const { return base_name(command[0]); }

int parse_arguments(int argc, char** argv, Options* options) {
  bool has_mode = false;
  for (const auto& each : kModes) {
    if (argc < 2 || strcmp(argv[1], each.name) != 0) continue;
    options->mode = each.mode;
    has_mode = true;
  }
  if (!has_mode) {
    say("this program is started by gpu-owner, not by people: use `gpu-owner run`");
    return kExitUsage;
  }
  if (options->mode == Mode::wait && !reserve_lists(&options->wait, argc)) {
    say("keeper: memory is used up");
    return kExitSystem;
  }

  int i = 2;
  for (; i < argc && !strncmp(argv[i], "--", 2) && argv[i][2]; i += 2) {
    if (i + 1 == argc) {
      say("keeper: %s needs a value", argv[i]);
      return kExitUsage;
    }
    if (int code = read_option(argv[i], argv[i + 1], options)) return code;
  }
  if (i < argc && !strcmp(argv[i], "--")) ++i;
  if (i < argc) options->command = argv + i;
  Requeue& requeue = options->requeue;
  if (requeue.command > 0 && i + requeue.command < argc) {
    requeue.program = options->command;
    options->command += requeue.command;
  }
  const char* problem = find_problem(*options);
  if (problem) say("keeper: %s", problem);
  return problem ? kExitUsage : 0;
}

}  // namespace keeper
