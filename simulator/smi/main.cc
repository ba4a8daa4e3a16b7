// nvidia-smi for simulated machines: options, fields, formats and exit codes are those of version 550, with which
// test/simulator/nvidia-smi-550.slow.test.ts compares it. NVIDIA's own program asks the driver through undocumented
// tables, which are not simulated.
#include <time.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "simulator/smi/driver.h"
#include "simulator/smi/log.h"
#include "simulator/smi/queries.h"
#include "simulator/smi/table.h"

namespace {

constexpr const char* kHelp =
    "nvidia-smi of gpu-owner's simulated machines\n"
    "\n"
    "nvidia-smi [OPTION]...\n"
    "\n"
    "    -L, --list-gpus                list the GPUs and their MIG devices\n"
    "    -q, --query                    print all details of the GPUs\n"
    "    -x, --xml-format               with -q: as XML\n"
    "    -d, --display=SECTION,...      with -q: MEMORY, UTILIZATION, ECC, TEMPERATURE, POWER, CLOCK, COMPUTE, PIDS,\n"
    "                                   PERFORMANCE, SUPPORTED_CLOCKS, PAGE_RETIREMENT, ACCOUNTING, ENCODER_STATS,\n"
    "                                   SUPPORTED_GPU_TARGET_TEMP, VOLTAGE, FBC_STATS, ROW_REMAPPER, RESET_STATUS,\n"
    "                                   GSP_FIRMWARE_VERSION\n"
    "    --query-gpu=FIELD,...          print a line per GPU\n"
    "    --query-compute-apps=FIELD,... print a line per compute process\n"
    "    --query-accounted-apps=, --query-retired-pages=, --query-remapped-rows=, --query-supported-clocks=\n"
    "    --help-query-gpu               list the fields of --query-gpu; so do the others\n"
    "    --format=csv[,noheader][,nounits]\n"
    "    -i, --id=ID,...                show only these GPUs: index, UUID or PCI bus ID\n"
    "    -f, --filename=FILE            print to a file\n"
    "    -l, --loop[=SECONDS]           repeat every SECONDS (default 5)\n"
    "    -lms, --loop-ms=MILLISECONDS   repeat every MILLISECONDS\n"
    "    -h, --help\n"
    "    --version\n"
    "\n"
    "It prints as version 550 does. Everything else of NVIDIA's nvidia-smi is not simulated.\n"
    "`gpu-owner simulate set` changes a simulated machine.\n";

struct Request {
  enum class Page { table, list, log, xml_log, query, version };
  Page page = Page::table;
  smi::Query query;
  smi::Format format;
  std::string ids, sections;
  long loop_ms = 0;
};

// An option of NVIDIA's program that is not simulated, or of no program.
int unknown(const char* argument) {
  printf("ERROR: Option %s is not recognized by the simulated nvidia-smi. Please run 'nvidia-smi -h'.\n\n", argument);
  return smi::kFailed;
}

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
      const char* next = at + 1 < count ? arguments[at + 1] : "-";
      value = next[0] != '-' || isdigit(next[1]) != 0 ? arguments[++at] : "";
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

// The topic of --query-gpu and others, with `prefix` ("--help") in front of it; null if it is none.
const smi::TopicName* find_topic(const std::string& argument, const char* prefix) {
  for (const smi::TopicName& name : smi::kTopics) {
    if (argument == prefix + std::string(name.option).substr(*prefix != 0 ? 1 : 0)) return &name;
  }
  return nullptr;
}

// -1: go on; else the exit code.
int parse(int count, char** arguments, Request& request) {
  using Page = Request::Page;
  std::string fields, format, value, file;
  const smi::TopicName* topic = nullptr;
  bool xml = false;
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
    if (const smi::TopicName* about = find_topic(argument, "--help")) {
      smi::print_fields(about->topic);
      return 0;
    }
    if (const smi::TopicName* about = find_topic(argument.substr(0, argument.find('=')), "")) {
      if (topic != nullptr) {
        printf("Only one --query-* switch can be used at a time.\n");
        return smi::kInvalidArgument;
      }
      topic = about;
      has(nullptr, topic->option);
      fields = value;
      request.page = Page::query;
    } else if (is("-L", "--list-gpus")) {
      request.page = Page::list;
    } else if (is("-q", "--query")) {
      request.page = Page::log;
    } else if (is("-x", "--xml-format")) {
      xml = true;
    } else if (has("-d", "--display")) {
      for (const char letter : value) request.sections += static_cast<char>(toupper(letter));
    } else if (has("-i", "--id")) {
      if (value.empty()) return invalid("A value is missing", argument.c_str());
      request.ids = value;
    } else if (has("-f", "--filename")) {
      file = value;
    } else if (has("-lms", "--loop-ms")) {
      if (value.empty() || !parse_loop(value, 1, request.loop_ms)) return invalid("Not a number of ms", value.c_str());
    } else if (has("-l", "--loop")) {
      if (!parse_loop(value, 1000, request.loop_ms)) return invalid("Not a number of seconds", value.c_str());
    } else if (has(nullptr, "--format")) {
      format = value;
    } else if (is(nullptr, "--version")) {
      request.page = Page::version;
    } else {
      return unknown(argument.c_str());
    }
  }
  if (xml && request.page != Page::log) return invalid("Only with -q", "-x");
  if (xml && !request.sections.empty()) return invalid("Not with -x", "-d");
  if (xml) request.page = Page::xml_log;
  if (!request.sections.empty()) {
    if (request.page != Page::log) return invalid("Only with -q", "-d");
    if (!smi::are_sections(request.sections)) return smi::kInvalidArgument;
  }
  if (request.page == Page::query) {
    int code = smi::parse_format(format, request.format);
    if (code == 0) code = request.query.parse(fields, topic->topic);
    if (code != 0) return code;
  } else if (!format.empty()) {
    return invalid("Only with --query-gpu and other queries", "--format");
  }
  if (!file.empty() && freopen(file.c_str(), "we", stdout) == nullptr) {
    fprintf(stderr, "nvidia-smi: %s can't be written: %m\n", file.c_str());
    return smi::kInvalidArgument;
  }
  return -1;
}

void print_version() {
  unsigned major = 0, minor = 0;
  sscanf(smi::nvml_version().c_str(), "%*u.%u.%u", &major, &minor);  // "13.580.65.06": CUDA's version comes first
  printf(
      "NVIDIA-SMI version  : %s\nNVML version        : %u.%02u\nDRIVER version      : %s\nCUDA Version        : %s\n",
      smi::driver_version().c_str(), major, minor, smi::driver_version().c_str(), smi::cuda_version().c_str());
}

int print(const Request& request, bool is_first) {
  std::vector<smi::Gpu> gpus;
  const int code = smi::find_gpus(request.ids, gpus);
  if (code != 0) return code;
  switch (request.page) {
    case Request::Page::table: smi::print_table(gpus); break;
    case Request::Page::list: smi::print_list(gpus); break;
    case Request::Page::log: smi::print_log(gpus, request.sections); break;
    case Request::Page::xml_log: smi::print_xml_log(gpus); break;
    case Request::Page::version: print_version(); break;
    case Request::Page::query:
      if (is_first) request.query.print_header(request.format);
      request.query.print_rows(gpus, request.format);
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  Request request;
  int code = parse(count, arguments, request);
  if (code != -1) return code;
  code = smi::open();
  if (code == 0) code = request.query.refuse_gone();
  if (code != 0) return code;
  for (bool is_first = true;; is_first = false) {
    code = print(request, is_first);
    if (fflush(stdout) != 0 || ferror(stdout)) return 1;
    if (code != 0 || request.loop_ms == 0) return code;
    const timespec pause = {request.loop_ms / 1000, request.loop_ms % 1000 * 1'000'000};
    nanosleep(&pause, nullptr);
  }
}
