#include "keeper/arguments.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "keeper/exit_codes.h"
#include "keeper/job_file.h"
#include "keeper/messages.h"
#include "keeper/text.h"

namespace keeper {

namespace {

constexpr char kHelp[] =
    "gpu-owner-keeper keeps what a command of gpu-owner needs: its place in the wait queue, and then the lease of its\n"
    "GPUs while it and all its descendants live. It is started by gpu-owner, not by people: use `gpu-owner run`.\n"
    "\n"
    "  gpu-owner-keeper wait [OPTION...] -- PROGRAM [ARGUMENT...]\n"
    "  gpu-owner-keeper run  [OPTION...] [--grace MS] -- COMMAND [ARGUMENT...]\n"
    "  gpu-owner-keeper task [OPTION...] --control FD [--grace MS] [--directory PATH] -- COMMAND [ARGUMENT...]\n"
    "  gpu-owner-keeper hold [OPTION...]\n"
    "  gpu-owner-keeper submit -- PROGRAM [ARGUMENT...]\n"
    "  gpu-owner-keeper inherited SCRIPT [PID]\n"
    "\n"
    "Options of run, task and hold:\n"
    "         --leases FD,...  --shared FD,...  --inherited FD,...  --held FD,...  --record JSON\n"
    "         --placeholder FD  --placeholder-pid PID  --ignore-signals HEX  --nofile N  --gpus TEXT  --recheck MS\n"
    "         --cpus FIRST-LAST,...  (the processors of the command)\n"
    "         --time-limit MS:TEXT  --notice SIGNAL:MS  (run, hold: when it ends; run: the signal before)\n"
    "         --deadline MS:GRACE  (task: when the command ends unless the worker says {\"deadline\":MS}; ms since "
    "boot)\n"
    "         --job FD  (run: the file of a job in the background)  --cancel all|command  (who gets its SIGTERM)\n"
    "         --log FD:BYTES  (run: the job's output; if it takes more, its middle is freed)\n"
    "         --then WORD  (run: a program to start after all GPUs are released, and its arguments, one each)\n"
    "         --give-way MS:SIGNAL  --queue-path PATH  --notice-path PATH  (run: to requests that need the GPUs)\n"
    "         --requeue N  --requeue-environment NAME[=VALUE]  --requeued TIMES:MS:FAILURES  --retry TIMES[:CODE]  "
    "--kept FD\n"
    "                  (run: then, and if it fails, the command restarts; it begins N words after --)\n"
    "         --usage FD:OFFSET:SINCE:MS  (run, hold: the end of the lease's line in the ledger of usage, and how "
    "often\n"
    "                  to write there that the lease lasts; since boot)\n"
    "         --meter FD:MS  --meter-nvml PATH  (run, hold: a program that reads the GPUs, and how often)\n"
    "         --share BYTES  --share-warned TEXT  --share-ended TEXT  (run: if the command uses more than that)\n"
    "         --idle MS:MS:PERCENT  --idle-warned TEXT  --idle-ended TEXT  --idle-then WORD  (run: if all GPUs do "
    "nothing:\n"
    "                  when to say so, and start a program; when to end the command; utilization that is none)\n"
    "         --answer TEXT  (hold: a line for standard output, once it may be signalled)\n"
    "         --marker FD:TOKEN:DIRECTORY-FD:NAME  --pid-marker FD:PID:DIRECTORY-FD:NAME  (as often as needed)\n"
    "         --shared-marker, --shared-pid-marker (the same, of shares)\n"
    "         --lease-file PATH  (of each of --leases, then of each of --shared)\n"
    "\n"
    "To cancel a job, its user sends SIGRTMAX-1 to its keeper or its front by sigqueue(), with a grace period in ms.\n"
    "All of its processes get SIGTERM, and SIGKILL after the grace period. SIGRTMAX-2 gives it another time limit, in "
    "s.\n"
    "\n"
    "Options of wait, which waits in little memory and then becomes PROGRAM:\n"
    "  --lock FD:BYTE     until no process has a write lock on this byte\n"
    "  --locks any|all    of several: until one is free, or until each has been free; default: any\n"
    "  --queue FD:SLOT    meanwhile, keep this slot of the wait queue; PROGRAM inherits the descriptor\n"
    "  --queue-path PATH  until this names another file than the queue's\n"
    "  --ahead SLOT       until this slot is given up, or its waiter is suspended\n"
    "  --suspended wake|next  then: start PROGRAM, or wait for the nearest one ahead that isn't; default: wake\n"
    "  --lease FD         until this lease has been free for 1 s, and 50 ms more for each waiter ahead\n"
    "  --bookings MS      until a booking was made or cancelled after this time, and 250 ms more for each waiter "
    "ahead\n"
    "  --until MS         until then, on CLOCK_MONOTONIC\n"
    "  --needs PATH       a file without which PROGRAM can't start\n"
    "  --needs-timeout MS time limit of the wait for these files\n"
    "  --line-before TEXT --line-after TEXT --line-since MS --line-columns N\n"
    "                     paint this line in the terminal's foreground, with the time that has passed between\n"
    "  --ignore-signals HEX   these, as a mask\n";

bool is_open(int fd) { return fcntl(fd, F_GETFD) != -1; }

int complain_value(const char* option, const char* value, const char* wanted) {
  say("keeper: %s needs %s, not '%s'", option, wanted, value);
  return kExitUsage;
}

int parse_descriptor(const char* option, const char* value, int* fd) {
  long number = 0;
  if (!parse_number(value, INT_MAX, &number)) return complain_value(option, value, "a descriptor's number");
  if (number <= STDERR_FILENO || !is_open(static_cast<int>(number))) {
    return complain_value(option, value, "an open descriptor above 2");
  }
  *fd = static_cast<int>(number);
  return 0;
}

int parse_descriptors(const char* option, const char* value, DescriptorList* list) {
  while (true) {
    const char* comma = strchrnul(value, ',');
    char number[16] = "";
    const size_t length = static_cast<size_t>(comma - value);
    if (length >= sizeof number) return complain_value(option, value, "numbers of descriptors");
    memcpy(number, value, length);
    if (list->count == DescriptorList::kCapacity) {
      say("keeper: %s has more than %d descriptors", option, DescriptorList::kCapacity);
      return kExitUsage;
    }
    if (int code = parse_descriptor(option, number, &list->fds[list->count])) return code;
    ++list->count;
    if (!*comma) return 0;
    value = comma + 1;
  }
}

// The part of `value` up to a colon; null where it is too long or there is none.
const char* split(const char* value, char* part, size_t size) {
  const char* colon = strchr(value, ':');
  if (!colon || static_cast<size_t>(colon - value) >= size || colon == value) return nullptr;
  memcpy(part, value, static_cast<size_t>(colon - value));
  part[colon - value] = '\0';
  return colon + 1;
}

int parse_marker(const char* option, const char* value, bool is_pid, bool is_shared, Options* options) {
  MarkerList& list = options->markers;
  if (list.count == MarkerList::kCapacity || options->held.count + 2 > DescriptorList::kCapacity) {
    say("keeper: there are more than %d markers and locks", MarkerList::kCapacity);
    return kExitUsage;
  }
  Marker& marker = list.markers[list.count];
  char number[16] = "", directory[16] = "";
  const char* rest = split(value, number, sizeof number);
  if (rest) rest = split(rest, marker.token, sizeof marker.token);
  if (rest) rest = split(rest, directory, sizeof directory);
  if (!rest || !*rest || strchr(rest, '/')) return complain_value(option, value, "FD:TOKEN:DIRECTORY-FD:NAME");
  if (int code = parse_descriptor(option, number, &marker.fd)) return code;
  if (int code = parse_descriptor(option, directory, &marker.directory)) return code;
  marker.name = rest;
  marker.is_pid = is_pid;
  marker.is_shared = is_shared;
  ++list.count;
  DescriptorList& held = options->held;
  held.fds[held.count++] = marker.fd;
  if (!held.contains(marker.directory)) held.fds[held.count++] = marker.directory;
  return 0;
}

int parse_path(const char* option, const char* value, PathList* list) {
  if (*value != '/' || list->count == PathList::kCapacity) return complain_value(option, value, "an absolute path");
  list->paths[list->count++] = value;
  return 0;
}

bool parse_mask(const char* text, uint64_t* mask) {
  const size_t length = strlen(text);
  if (length == 0 || length > 16) return false;
  uint64_t result = 0;
  for (; *text; ++text) {
    const char c = static_cast<char>(*text | 0x20);
    unsigned digit = 0;
    if (*text >= '0' && *text <= '9') {
      digit = static_cast<unsigned>(*text - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<unsigned>(c - 'a') + 10;
    } else {
      return false;
    }
    result = result << 4 | digit;
  }
  *mask = result;
  return true;
}

int parse_cpus(const char* option, const char* value, Options* options) {
  if (!*value || value[strspn(value, "0123456789,-")]) return complain_value(option, value, "ranges of processors");
  options->cpus = value;
  return 0;
}

int parse_count(const char* option, const char* value, long maximum, long* number) {
  return parse_number(value, maximum, number) ? 0 : complain_value(option, value, "a whole number");
}

int parse_time_limit(const char* option, const char* value, TimeLimit* limit) {
  char number[24] = "";
  const char* text = split(value, number, sizeof number);
  if (!text || !parse_number(number, LONG_MAX / 2, &limit->duration) || limit->duration == 0) {
    return complain_value(option, value, "MS:TEXT");
  }
  limit->text = text;
  return 0;
}

int parse_deadline(const char* option, const char* value, Deadline* deadline) {
  char number[24] = "";
  const char* grace = split(value, number, sizeof number);
  if (!grace || !parse_number(number, LONG_MAX / 2, &deadline->at) || deadline->at == 0 ||
      !parse_number(grace, INT_MAX, &deadline->grace)) {
    return complain_value(option, value, "MS:GRACE");
  }
  return 0;
}

int parse_notice(const char* option, const char* value, TimeLimit* limit) {
  char number[8] = "";
  long signal = 0;
  const char* notice = split(value, number, sizeof number);
  if (!notice || !parse_number(number, SIGRTMAX, &signal) || signal == 0 ||
      !parse_number(notice, LONG_MAX, &limit->notice)) {
    return complain_value(option, value, "SIGNAL:MS");
  }
  limit->signal = static_cast<int>(signal);
  return 0;
}

int parse_job(const char* option, const char* value, Options* options) {
  if (int code = parse_descriptor(option, value, &options->job)) return code;
  if (is_job_file(options->job)) return 0;
  return complain_value(option, value, "a regular file with one name, open for writing");
}

int parse_log(const char* option, const char* value, Options* options) {
  char number[16] = "";
  const char* size = split(value, number, sizeof number);
  if (!size || !parse_number(size, LONG_MAX, &options->log_size) || options->log_size == 0) {
    return complain_value(option, value, "FD:BYTES");
  }
  if (int code = parse_descriptor(option, number, &options->log)) return code;
  if (is_job_output(options->log)) return 0;
  return complain_value(option, value, "a regular file with one name, open for writing");
}

int parse_then(const char* option, const char* value, WordList* then) {
  if (then->count == WordList::kCapacity) return complain_value(option, value, "fewer arguments");
  then->words[then->count++] = value;
  return 0;
}

int parse_give_way(const char* option, const char* value, GiveWay* give_way) {
  char number[24] = "";
  long signal = 0;
  const char* rest = split(value, number, sizeof number);
  if (!rest || !parse_number(number, INT_MAX, &give_way->grace) || !parse_number(rest, SIGRTMAX, &signal)) {
    return complain_value(option, value, "MS:SIGNAL");
  }
  give_way->signal = static_cast<int>(signal);
  return 0;
}

int parse_queue_path(const char*, const char* value, Options* options) {
  (options->mode == Mode::wait ? options->wait.queue_path : options->give_way.queue) = value;
  return 0;
}

int parse_retry(const char* option, const char* value, Requeue* requeue) {
  char number[24] = "";
  const char* code = split(value, number, sizeof number);
  if (code && !parse_number(code, 255, &requeue->retried_code)) return complain_value(option, value, "TIMES[:CODE]");
  return parse_count(option, code ? number : value, INT_MAX - 1, &requeue->retries);
}

int parse_requeued(const char* option, const char* value, Requeue* requeue) {
  char number[24] = "";
  const char* rest = split(value, number, sizeof number);
  char ran[24] = "";
  const char* failures = rest ? split(rest, ran, sizeof ran) : nullptr;
  if (failures && parse_number(number, INT_MAX - 1, &requeue->times) &&
      parse_number(ran, LONG_MAX / 2, &requeue->ran) && parse_number(failures, INT_MAX - 1, &requeue->failures)) {
    return 0;
  }
  return complain_value(option, value, "TIMES:MS:FAILURES");
}

// FD:NUMBER
int parse_pair(const char* option, const char* value, int* fd, int64_t* number) {
  char descriptor[16] = "";
  const char* rest = split(value, descriptor, sizeof descriptor);
  if (!rest || !parse_number(rest, LONG_MAX - 1, number)) return complain_value(option, value, "FD:NUMBER");
  return parse_descriptor(option, descriptor, fd);
}

int parse_meter(const char* option, const char* value, MeterProgram* meter) {
  int64_t interval = 0;
  const int code = parse_pair(option, value, &meter->program, &interval);
  meter->interval = static_cast<long>(interval);
  return code || interval > 0 ? code : complain_value(option, value, "FD:MS");
}

int parse_idle(const char* option, const char* value, Idle* idle) {
  char warning[24] = "", end[24] = "";
  const char* rest = split(value, warning, sizeof warning);
  if (rest) rest = split(rest, end, sizeof end);
  if (rest && parse_number(warning, LONG_MAX / 2, &idle->warning) && parse_number(end, LONG_MAX / 2, &idle->end) &&
      parse_number(rest, 100, &idle->min_utilization)) {
    return 0;
  }
  return complain_value(option, value, "MS:MS:PERCENT");
}

int parse_usage(const char* option, const char* value, Usage* usage) {
  char fd[16] = "", offset[24] = "", since[24] = "";
  const char* rest = split(value, fd, sizeof fd);
  if (rest) rest = split(rest, offset, sizeof offset);
  if (rest) rest = split(rest, since, sizeof since);
  if (!rest || !parse_number(offset, LONG_MAX / 2, &usage->offset) ||
      !parse_number(since, LONG_MAX / 2, &usage->since) || !parse_number(rest, INT_MAX, &usage->interval) ||
      usage->interval == 0) {
    return complain_value(option, value, "FD:OFFSET:SINCE:MS");
  }
  return parse_descriptor(option, fd, &usage->fd);
}

int parse_either(const char* option, const char* value, const char* first, const char* second, bool* is_second) {
  *is_second = !strcmp(value, second);
  if (*is_second || !strcmp(value, first)) return 0;
  say("keeper: %s needs %s or %s, not '%s'", option, first, second, value);
  return kExitUsage;
}

int parse_pid(const char* option, const char* value, pid_t* pid) {
  long number = 0;
  if (!parse_number(value, INT_MAX, &number) || number == 0) return complain_value(option, value, "a process id");
  *pid = static_cast<pid_t>(number);
  return 0;
}

int parse_ignored_signals(const char* option, const char* value, Options* options) {
  return parse_mask(value, &options->ignored_signals) ? 0 : complain_value(option, value, "a hexadecimal mask");
}

using Parse = int (*)(const char* option, const char* value, Options* options);
#define PARSE(expression) [](const char* option, const char* value, Options* options) -> int { return expression; }
#define TEXT(member) [](const char*, const char* value, Options* options) -> int { return options->member = value, 0; }

constexpr unsigned mask_of(Mode mode) { return 1u << static_cast<unsigned>(mode); }
constexpr unsigned kRun = mask_of(Mode::run), kTask = mask_of(Mode::task), kHold = mask_of(Mode::hold),
                   kWait = mask_of(Mode::wait), kKeep = kRun | kTask | kHold;

constexpr struct {
  const char* name;
  unsigned modes;
  Parse parse;
} kOptions[] = {
    {"--leases", kKeep, PARSE(parse_descriptors(option, value, &options->leases))},
    {"--shared", kKeep, PARSE(parse_descriptors(option, value, &options->shared))},
    {"--lease-file", kKeep, PARSE(parse_path(option, value, &options->lease_files))},
    {"--inherited", kKeep, PARSE(parse_descriptors(option, value, &options->inherited))},
    {"--held", kKeep, PARSE(parse_descriptors(option, value, &options->held))},
    {"--marker", kKeep, PARSE(parse_marker(option, value, false, false, options))},
    {"--pid-marker", kKeep, PARSE(parse_marker(option, value, true, false, options))},
    {"--shared-marker", kKeep, PARSE(parse_marker(option, value, false, true, options))},
    {"--shared-pid-marker", kKeep, PARSE(parse_marker(option, value, true, true, options))},
    {"--record", kKeep, TEXT(record)},
    {"--placeholder", kKeep, PARSE(parse_descriptor(option, value, &options->placeholder))},
    {"--placeholder-pid", kKeep, PARSE(parse_pid(option, value, &options->placeholder_pid))},
    {"--nofile", kKeep, PARSE(parse_count(option, value, LONG_MAX, &options->open_files))},
    {"--gpus", kKeep, TEXT(gpus)},
    {"--cpus", kKeep, parse_cpus},
    {"--grace", kKeep, PARSE(parse_count(option, value, INT_MAX, &options->grace))},
    {"--recheck", kKeep, PARSE(parse_count(option, value, INT_MAX, &options->recheck))},
    {"--ignore-signals", kKeep | kWait, parse_ignored_signals},
    {"--control", kTask, PARSE(parse_descriptor(option, value, &options->control))},
    {"--directory", kTask, TEXT(directory)},
    {"--deadline", kTask, PARSE(parse_deadline(option, value, &options->deadline))},
    {"--time-limit", kRun | kHold, PARSE(parse_time_limit(option, value, &options->time_limit))},
    {"--notice", kRun, PARSE(parse_notice(option, value, &options->time_limit))},
    {"--job", kRun, parse_job},
    {"--log", kRun, parse_log},
    {"--then", kRun, PARSE(parse_then(option, value, &options->then))},
    {"--give-way", kRun, PARSE(parse_give_way(option, value, &options->give_way))},
    {"--notice-path", kRun, TEXT(give_way.notice)},
    {"--requeue", kRun, PARSE(parse_count(option, value, INT_MAX, &options->requeue.command))},
    {"--requeue-environment", kRun, PARSE(parse_then(option, value, &options->requeue.environment))},
    {"--retry", kRun, PARSE(parse_retry(option, value, &options->requeue))},
    {"--requeued", kRun, PARSE(parse_requeued(option, value, &options->requeue))},
    {"--kept", kRun, PARSE(parse_descriptor(option, value, &options->requeue.kept))},
    {"--meter", kRun | kHold, PARSE(parse_meter(option, value, &options->meter))},
    {"--meter-nvml", kRun | kHold, TEXT(meter.nvml)},
    {"--share", kRun, PARSE(parse_count(option, value, LONG_MAX / 2, &options->share.bytes))},
    {"--share-warned", kRun, TEXT(share.warned)},
    {"--share-ended", kRun, TEXT(share.ended)},
    {"--idle", kRun, PARSE(parse_idle(option, value, &options->idle))},
    {"--idle-warned", kRun, TEXT(idle.warned)},
    {"--idle-ended", kRun, TEXT(idle.ended)},
    {"--idle-then", kRun, PARSE(parse_then(option, value, &options->idle.then))},
    {"--usage", kRun | kHold, PARSE(parse_usage(option, value, &options->usage))},
    {"--cancel", kRun, PARSE(parse_either(option, value, "all", "command", &options->cancels_command))},
    {"--answer", kHold, TEXT(answer)},
    {"--lock", kWait,
     [](const char* option, const char* value, Options* options) -> int {
       waiter::Lock& lock = options->wait.locks.append();
       return parse_pair(option, value, &lock.descriptor, &lock.byte);
     }},
    {"--locks", kWait, PARSE(parse_either(option, value, "any", "all", &options->wait.all))},
    {"--queue", kWait, PARSE(parse_pair(option, value, &options->wait.queue, &options->wait.slot))},
    {"--queue-path", kWait | kRun, parse_queue_path},
    {"--ahead", kWait, PARSE(parse_count(option, value, LONG_MAX - 1, &options->wait.ahead.append()))},
    {"--suspended", kWait, PARSE(parse_either(option, value, "wake", "next", &options->wait.moves_on))},
    {"--lease", kWait, PARSE(parse_descriptor(option, value, &options->wait.leases.append()))},
    {"--bookings", kWait, PARSE(parse_count(option, value, LONG_MAX, &options->wait.bookings))},
    {"--until", kWait, PARSE(parse_count(option, value, LONG_MAX, &options->wait.until))},
    {"--needs", kWait, TEXT(wait.needed.append())},
    {"--needs-timeout", kWait, PARSE(parse_count(option, value, INT_MAX, &options->wait.needs_timeout))},
    {"--line-before", kWait, TEXT(wait.line_before)},
    {"--line-after", kWait, TEXT(wait.line_after)},
    {"--line-since", kWait, PARSE(parse_count(option, value, LONG_MAX, &options->wait.line_since))},
    {"--line-columns", kWait, PARSE(parse_count(option, value, INT_MAX, &options->wait.line_columns))},
};

#undef PARSE
#undef TEXT

constexpr struct {
  const char* name;
  Mode mode;
} kModes[] = {
    {"run", Mode::run}, {"task", Mode::task}, {"hold", Mode::hold}, {"wait", Mode::wait}, {"submit", Mode::submit}};

// "run, task and hold"
void add_names(Text* text, unsigned modes) {
  for (const auto& each : kModes) {
    if (!(modes & mask_of(each.mode))) continue;
    modes &= ~mask_of(each.mode);
    const bool is_last_but_one = modes && !(modes & (modes - 1));
    text->add("%s%s", each.name, !modes ? "" : is_last_but_one ? " and " : ", ");
  }
}

int parse_option(const char* option, const char* value, Options* options) {
  for (const auto& known : kOptions) {
    if (strcmp(option, known.name) != 0) continue;
    if (known.modes & mask_of(options->mode)) return known.parse(option, value, options);
    Buffer<64> modes;
    add_names(&modes, known.modes);
    say("keeper: %s is for %s only", option, modes.c_str());
    return kExitUsage;
  }
  say("keeper: unknown option '%s'; see gpu-owner-keeper --help", option);
  return kExitUsage;
}

int check_wait(const waiter::Options& wait) {
  if (wait.queue < 0 && (wait.ahead.count() > 0 || wait.queue_path)) {
    say("keeper: --ahead and --queue-path need --queue");
    return kExitUsage;
  }
  if (wait.all && (wait.ahead.count() > 0 || wait.locks.count() == 0)) {
    say("keeper: --locks all needs --lock, and no --ahead");
    return kExitUsage;
  }
  return 0;
}

int check(const Options& options) {
  if (options.mode != Mode::hold && !options.command) {
    say("keeper: no command; see gpu-owner-keeper --help");
    return kExitUsage;
  }
  if (options.mode == Mode::hold && options.command) {
    say("keeper: hold takes no command, but got '%s'", options.command[0]);
    return kExitUsage;
  }
  if (options.mode == Mode::task && options.control < 0) {
    say("keeper: task needs --control");
    return kExitUsage;
  }
  if (options.time_limit.signal && options.time_limit.notice >= options.time_limit.duration) {
    say("keeper: --notice needs a longer --time-limit");
    return kExitUsage;
  }
  if (!options.give_way.queue != !options.give_way.notice) {
    say("keeper: --queue-path and --notice-path belong together");
    return kExitUsage;
  }
  if (options.recheck < 1) {
    say("keeper: --recheck must be at least 1 ms");
    return kExitUsage;
  }
  return check_wait(options.wait);
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
  const char* mode = argc > 1 ? argv[1] : "";
  if (!strcmp(mode, "--help") || !strcmp(mode, "-h")) return 0;
  for (const auto& each : kModes) {
    if (!strcmp(mode, each.name)) options->mode = each.mode;
  }
  if (options->mode == Mode::help) {
    say("keeper: the first argument must be run, task, hold, wait or submit; see gpu-owner-keeper --help");
    return kExitUsage;
  }
  if (options->mode == Mode::wait && !reserve_lists(&options->wait, argc)) {
    say("keeper: memory is used up");
    return kExitSystem;
  }

  int i = 2;
  for (; i < argc && !strncmp(argv[i], "--", 2) && argv[i][2]; ++i) {
    if (!strcmp(argv[i], "--help")) {
      options->mode = Mode::help;
      return 0;
    }
    if (char* equals = strchr(argv[i], '=')) {
      char option[32] = "";
      const size_t length = static_cast<size_t>(equals - argv[i]);
      memcpy(option, argv[i], length < sizeof option ? length : sizeof option - 1);
      if (int code = parse_option(option, equals + 1, options)) return code;
      continue;
    }
    if (i + 1 == argc) {
      say("keeper: %s needs a value", argv[i]);
      return kExitUsage;
    }
    if (int code = parse_option(argv[i], argv[i + 1], options)) return code;
    ++i;
  }
  if (i < argc && !strcmp(argv[i], "--")) ++i;
  if (i < argc) options->command = argv + i;
  Requeue& requeue = options->requeue;
  if (requeue.command > 0 && i + requeue.command < argc) {
    requeue.program = options->command;
    options->command += requeue.command;
  }
  return check(*options);
}

void print_help() {
  if (write(STDOUT_FILENO, kHelp, sizeof kHelp - 1) < 0) return;
}

}  // namespace keeper
