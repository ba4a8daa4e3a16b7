// nvidia-smi for simulated machines, with the options that scripts use: field names, formats and exit codes as NVIDIA
// documents them (https://docs.nvidia.com/deploy/nvidia-smi/). NVIDIA's own program asks the driver through
// undocumented tables, which are not simulated.
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "smi/driver.h"
#include "smi/pages.h"
#include "smi/queries.h"

namespace {

constexpr const char* kHelp =
    "nvidia-smi of gpu-owner's simulated machines\n"
    "\n"
    "nvidia-smi [OPTION]...\n"
    "\n"
    "    -L, --list-gpus                list the GPUs and their MIG devices\n"
    "    -q, --query                    print all details of the GPUs\n"
    "    -d, --display=SECTION,...      with -q: MEMORY, UTILIZATION, TEMPERATURE, POWER, CLOCK, COMPUTE, PIDS,\n"
    "                                   PERFORMANCE\n"
    "    --query-gpu=FIELD,...          print a line per GPU; --help-query-gpu lists the fields\n"
    "    --query-compute-apps=FIELD,... print a line per compute process; --help-query-compute-apps lists the fields\n"
    "    --format=csv[,noheader][,nounits]\n"
    "    -i, --id=ID,...                show only these GPUs: index, UUID or PCI bus ID\n"
    "    -f, --filename=FILE            print to a file\n"
    "    -l, --loop[=SECONDS]           repeat every SECONDS (default 5)\n"
    "    -lms, --loop-ms=MILLISECONDS   repeat every MILLISECONDS\n"
    "    -h, --help\n"
    "    --version\n"
    "\n"
    "Everything else of NVIDIA's nvidia-smi is missing. `gpu-owner simulate set` changes a simulated machine.\n";

struct Options {
  enum class Page { table, list, log, query };
  Page page = Page::table;
  smi::Query query;
  smi::Format format;
  std::string ids, sections;
  long loop_ms = 0;
};

int invalid(const char* what, const char* argument) {
  printf("%s: %s. Please run 'nvidia-smi -h' for help.\n", what, argument);
  return smi::kInvalidArgument;
}

// An option's value: "--id=0", "-i=0", "-i 0".
bool value_of(int count, char** arguments, int& at, const char* short_name, const char* long_name, std::string& value) {
  const std::string argument = arguments[at];
  for (const char* name : {short_name, long_name}) {
    if (name == nullptr) continue;
    if (argument.rfind(std::string(name) + "=", 0) == 0) {
      value = argument.substr(strlen(name) + 1);
      return true;
    }
    if (argument == name) {
      value = at + 1 < count && arguments[at + 1][0] != '-' ? arguments[++at] : "";
      return true;
    }
  }
  return false;
}

bool parse_loop(const std::string& text, long factor, long& milliseconds) {
  const std::string number = text.empty() ? "5" : text;
  char* end;
  const double value = strtod(number.c_str(), &end);
  milliseconds = static_cast<long>(value * static_cast<double>(factor));
  return *end == 0 && value > 0 && value < 1e6 && milliseconds > 0;
}

// -1: go on; else the exit code.
int parse(int count, char** arguments, Options& options) {
  std::string fields, format, value, file;
  bool about_processes = false;
  for (int at = 1; at < count; at++) {
    const std::string argument = arguments[at];
    const auto is = [&](const char* short_name, const char* long_name) {
      return (short_name != nullptr && argument == short_name) || argument == long_name;
    };
    const auto has = [&](const char* short_name, const char* long_name) {
      return value_of(count, arguments, at, short_name, long_name, value);
    };
    if (is("-h", "--help")) {
      fputs(kHelp, stdout);
      return 0;
    }
    if (is(nullptr, "--help-query-gpu") || is(nullptr, "--help-query-compute-apps")) {
      smi::print_fields(argument == "--help-query-compute-apps");
      return 0;
    }
    if (is("-L", "--list-gpus")) {
      options.page = Options::Page::list;
    } else if (is("-q", "--query")) {
      options.page = Options::Page::log;
    } else if (has("-d", "--display")) {
      options.sections = value;
    } else if (has("-i", "--id")) {
      if (value.empty()) return invalid("A value is missing", argument.c_str());
      options.ids = value;
    } else if (has("-f", "--filename")) {
      file = value;
    } else if (has("-lms", "--loop-ms")) {
      if (value.empty() || !parse_loop(value, 1, options.loop_ms)) return invalid("Not a number of ms", value.c_str());
    } else if (has("-l", "--loop")) {
      if (!parse_loop(value, 1000, options.loop_ms)) return invalid("Not a number of seconds", value.c_str());
    } else if (has(nullptr, "--query-gpu") || has(nullptr, "--query-compute-apps")) {
      options.page = Options::Page::query;
      about_processes = argument.rfind("--query-compute-apps", 0) == 0;
      fields = value;
    } else if (has(nullptr, "--format")) {
      format = value;
    } else if (is(nullptr, "--version")) {
      fields = "version";
    } else {
      return invalid("Invalid, or not simulated", argument.c_str());
    }
  }
  if (!options.sections.empty() && options.page != Options::Page::log) return invalid("Only with -q", "-d");
  if (options.page == Options::Page::query) {
    int code = smi::parse_format(format, options.format);
    if (code == 0) code = options.query.parse(fields, about_processes);
    if (code != 0) return code;
  } else if (!format.empty()) {
    return invalid("Only with --query-gpu or --query-compute-apps", "--format");
  }
  if (!file.empty() && freopen(file.c_str(), "we", stdout) == nullptr) {
    fprintf(stderr, "nvidia-smi: %s can't be written: %m\n", file.c_str());
    return smi::kInvalidArgument;
  }
  if (fields == "version" && options.page != Options::Page::query) {
    const int code = smi::open();
    if (code == 0)
      printf("NVIDIA-SMI version  : %s\nDRIVER version      : %s\nCUDA Version        : %s\n",
             smi::driver_version().c_str(), smi::driver_version().c_str(), smi::cuda_version().c_str());
    return code;
  }
  return -1;
}

int print(const Options& options, bool is_first) {
  std::vector<smi::Gpu> gpus;
  const int code = smi::find_gpus(options.ids, gpus);
  if (code != 0) return code;
  switch (options.page) {
    case Options::Page::table: smi::print_table(gpus); break;
    case Options::Page::list: smi::print_list(gpus); break;
    case Options::Page::log: return smi::print_log(gpus, options.sections);
    case Options::Page::query:
      if (is_first) options.query.print_header(options.format);
      options.query.print_rows(gpus, options.format);
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  Options options;
  int code = parse(count, arguments, options);
  if (code != -1) return code;
  code = smi::open();
  if (code != 0) return code;
  for (bool is_first = true;; is_first = false) {
    code = print(options, is_first);
    if (fflush(stdout) != 0 || ferror(stdout)) return 1;
    if (code != 0 || options.loop_ms == 0) return code;
    const timespec pause = {options.loop_ms / 1000, options.loop_ms % 1000 * 1'000'000};
    nanosleep(&pause, nullptr);
  }
}
