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

constexpr char kHelp[] =
    "gpu-owner-keeper keeps the lease of GPUs while a command and all its descendants live.\n"
    "It is started by gpu-owner, not by people: use `gpu-owner run` and `gpu-owner hold`.\n"
    "\n"
    "  gpu-owner-keeper run  [OPTION...] [--grace MS] -- COMMAND [ARGUMENT...]\n"
    "  gpu-owner-keeper task [OPTION...] --control FD [--grace MS] [--directory PATH] -- COMMAND [ARGUMENT...]\n"
    "  gpu-owner-keeper hold [OPTION...]\n"
    "\n"
    "Options: --leases FD,...  --shared FD,...  --inherited FD,...  --held FD,...  --record JSON\n"
    "         --placeholder FD  --placeholder-pid PID  --ignore-signals HEX  --nofile N  --gpus TEXT  --recheck MS\n"
    "         --time-limit MS:TEXT  --notice SIGNAL:MS  (run: when the command ends, and what it gets so long before)\n"
    "         --deadline MS:GRACE  (task: when the command ends unless the worker says {\"deadline\":MS}; ms since "
    "boot)\n"
    "         --job FD  (run: the file of a job in the background)  --cancel all|command  (who gets its SIGTERM)\n"
    "         --log FD:BYTES  (run: the job's output; if it takes more, its middle is freed)\n"
    "         --then WORD  (run: a program to start after all GPUs are released, and its arguments, one each)\n"
    "         --answer TEXT  (hold: a line for standard output, once it may be signalled)\n"
    "         --marker FD:TOKEN:DIRECTORY-FD:NAME  --pid-marker FD:PID:DIRECTORY-FD:NAME  (as often as needed)\n"
    "         --lease-file PATH  (of each of --leases, then of each of --shared)\n"
    "\n"
    "To cancel a job, its user sends SIGRTMAX-1 to its keeper or its front by sigqueue(), with a grace period in ms.\n"
    "All of its processes get SIGTERM, and SIGKILL after the grace period.\n";

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

int parse_marker(const char* option, const char* value, bool is_pid, Options* options) {
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

int parse_cancel(const char* option, const char* value, Options* options) {
  options->cancels_command = strcmp(value, "command") == 0;
  return options->cancels_command || !strcmp(value, "all") ? 0 : complain_value(option, value, "all or command");
}

int parse_option(const char* option, const char* value, Options* options) {
  const auto is = [option](const char* name) { return strcmp(option, name) == 0; };
  if (is("--leases")) return parse_descriptors(option, value, &options->leases);
  if (is("--shared")) return parse_descriptors(option, value, &options->shared);
  if (is("--lease-file")) return parse_path(option, value, &options->lease_files);
  if (is("--inherited")) return parse_descriptors(option, value, &options->inherited);
  if (is("--held")) return parse_descriptors(option, value, &options->held);
  if (is("--marker")) return parse_marker(option, value, false, options);
  if (is("--pid-marker")) return parse_marker(option, value, true, options);
  if (is("--placeholder")) return parse_descriptor(option, value, &options->placeholder);
  if (is("--control")) return parse_descriptor(option, value, &options->control);
  if (is("--nofile")) return parse_count(option, value, LONG_MAX, &options->open_files);
  if (is("--time-limit")) return parse_time_limit(option, value, &options->time_limit);
  if (is("--deadline")) return parse_deadline(option, value, &options->deadline);
  if (is("--notice")) return parse_notice(option, value, &options->time_limit);
  if (is("--job")) return parse_job(option, value, options);
  if (is("--log")) return parse_log(option, value, options);
  if (is("--then")) return parse_then(option, value, &options->then);
  if (is("--cancel")) return parse_cancel(option, value, options);
  if (is("--grace")) return parse_count(option, value, INT_MAX, &options->grace);
  if (is("--recheck")) return parse_count(option, value, INT_MAX, &options->recheck);
  if (is("--record")) {
    options->record = value;
  } else if (is("--gpus")) {
    options->gpus = value;
  } else if (is("--answer")) {
    options->answer = value;
  } else if (is("--directory")) {
    options->directory = value;
  } else if (is("--placeholder-pid")) {
    long pid = 0;
    if (!parse_number(value, INT_MAX, &pid) || pid == 0) return complain_value(option, value, "a process id");
    options->placeholder_pid = static_cast<pid_t>(pid);
  } else if (is("--ignore-signals")) {
    if (!parse_mask(value, &options->ignored_signals)) return complain_value(option, value, "a hexadecimal mask");
  } else {
    say("keeper: unknown option '%s'; see gpu-owner-keeper --help", option);
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
  if ((options.mode == Mode::task) != (options.control >= 0)) {
    say(options.mode == Mode::task ? "keeper: task needs --control" : "keeper: --control is for task only");
    return kExitUsage;
  }
  if (options.directory && options.mode != Mode::task) {
    say("keeper: --directory is for task only");
    return kExitUsage;
  }
  if (options.deadline.at > 0 && options.mode != Mode::task) {
    say("keeper: --deadline is for task only");
    return kExitUsage;
  }
  const TimeLimit& limit = options.time_limit;
  if (limit.duration > 0 && options.mode != Mode::run) {
    say("keeper: --time-limit is for run only");
    return kExitUsage;
  }
  const bool is_background = options.job >= 0 || options.log >= 0 || options.then.count > 0 || options.cancels_command;
  if (is_background && options.mode != Mode::run) {
    say("keeper: --job, --log, --then and --cancel are for run only");
    return kExitUsage;
  }
  if (limit.signal && limit.notice >= limit.duration) {
    say("keeper: --notice needs a longer --time-limit");
    return kExitUsage;
  }
  if (options.answer && options.mode != Mode::hold) {
    say("keeper: --answer is for hold only");
    return kExitUsage;
  }
  if (options.recheck < 1) {
    say("keeper: --recheck must be at least 1 ms");
    return kExitUsage;
  }
  return 0;
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
  if (!strcmp(mode, "run")) {
    options->mode = Mode::run;
  } else if (!strcmp(mode, "hold")) {
    options->mode = Mode::hold;
  } else if (!strcmp(mode, "task")) {
    options->mode = Mode::task;
  } else {
    say("keeper: the first argument must be run, hold or task; see gpu-owner-keeper --help");
    return kExitUsage;
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
  return check(*options);
}

void print_help() {
  if (write(STDOUT_FILENO, kHelp, sizeof kHelp - 1) < 0) return;
}

}  // namespace keeper
