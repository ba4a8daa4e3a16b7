// Lines that scroll, one per sample: dmon for GPUs, pmon for processes.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "smi/subcommands.h"
#include "smi/values.h"

namespace smi {
namespace {

struct Column {
  char group;  // a letter of -s
  const char* name;
  const char* unit;
  Value (*value)(const Gpu&);
};

constexpr Column kColumns[] = {
    {'p', "pwr", "W",
     [](const Gpu& gpu) {
       const auto power = ask<unsigned>("nvmlDeviceGetPowerUsage", gpu.device);
       return power ? known(std::to_string((power.value + 500) / 1000)) : missing(power.code);
     }},
    {'p', "gtemp", "C", temperature},
    {'p', "mtemp", "C", memory_temperature},
    {'u', "sm", "%", [](const Gpu& gpu) { return utilization(gpu, false); }},
    {'u', "mem", "%", [](const Gpu& gpu) { return utilization(gpu, true); }},
    {'u', "enc", "%", [](const Gpu& gpu) { return engine_utilization(gpu, "nvmlDeviceGetEncoderUtilization"); }},
    {'u', "dec", "%", [](const Gpu& gpu) { return engine_utilization(gpu, "nvmlDeviceGetDecoderUtilization"); }},
    {'u', "jpg", "%", [](const Gpu& gpu) { return engine_utilization(gpu, "nvmlDeviceGetJpgUtilization"); }},
    {'u', "ofa", "%", [](const Gpu& gpu) { return engine_utilization(gpu, "nvmlDeviceGetOfaUtilization"); }},
    {'c', "mclk", "MHz", [](const Gpu& gpu) { return clock(gpu, "nvmlDeviceGetClockInfo", Clock::memory); }},
    {'c', "pclk", "MHz", [](const Gpu& gpu) { return clock(gpu, "nvmlDeviceGetClockInfo", Clock::graphics); }},
    {'v', "pviol", "%",
     [](const Gpu& gpu) {
       constexpr unsigned kForPower = 0;
       const auto status = ask<nvmlViolationTime_t>("nvmlDeviceGetViolationStatus", gpu.device, kForPower);
       return status ? known("0") : missing(status.code);
     }},
    {'v', "tviol", "bool", [](const Gpu&) { return known("0"); }},
    {'m', "fb", "MB", [](const Gpu& gpu) { return memory(gpu, &MemoryUse::used); }},
    {'m', "bar1", "MB", [](const Gpu& gpu) { return bar1(gpu, &Bar1::used); }},
    {'m', "ccpm", "MB", [](const Gpu&) { return Value(); }},
    {'e', "sbecc", "errs", [](const Gpu& gpu) { return ecc_errors(gpu, 0, 0); }},
    {'e', "dbecc", "errs", [](const Gpu& gpu) { return ecc_errors(gpu, 1, 0); }},
    {'e', "pci", "errs", [](const Gpu& gpu) { return number_of(gpu, "nvmlDeviceGetPcieReplayCounter"); }},
    {'t', "rxpci", "MB/s", [](const Gpu& gpu) { return in_megabytes(pcie_throughput(gpu, true)); }},
    {'t', "txpci", "MB/s", [](const Gpu& gpu) { return in_megabytes(pcie_throughput(gpu, false)); }},
};

// How often to print, and what is in front of each line.
struct Scroll {
  std::vector<Gpu> gpus;
  double seconds = 1;
  long count = 0;  // 0: without end
  bool has_date = false, has_time = false;
};

const std::vector<std::string> kScrollOptions = {
    "-i --id=", "-d --delay=", "-c --count=", "-s --select=", "-o --options=", "-f --filename="};

// 0, or the exit code, after saying why.
int parse_scroll(const Options& options, Scroll& scroll) {
  if (options.code() != 0) return options.code();
  scroll.seconds = strtod(options.value("--delay", "1").c_str(), nullptr);
  scroll.count = strtol(options.value("--count", "-1").c_str(), nullptr, 10);
  if (scroll.seconds <= 0) {
    printf("Invalid value for the delay\n");
    return kInvalidArgument;
  }
  if (scroll.count == 0 || scroll.count < -1) {
    printf("Invalid value for number of samples to be displayed\n");
    return kInvalidArgument;
  }
  const std::string before = options.value("--options", "");
  scroll.has_date = before.find('D') != std::string::npos;
  scroll.has_time = before.find('T') != std::string::npos;
  const std::string file = options.value("--filename", "");
  if (!file.empty() && freopen(file.c_str(), "we", stdout) == nullptr) {
    fprintf(stderr, "nvidia-smi: %s can't be written: %m\n", file.c_str());
    return kInvalidArgument;
  }
  return find_gpus(options.value("--id", ""), scroll.gpus);
}

// The beginning of a line: a date and a time if wanted.
std::string stamp(const Scroll& scroll, const char* date, const char* time) {
  std::string text;
  if (scroll.has_date) text += format("%-8s    ", date);
  if (scroll.has_time) text += format("%-8s    ", time);
  return text;
}
std::string stamp_now(const Scroll& scroll) {
  const time_t now = time(nullptr);
  tm local;
  localtime_r(&now, &local);
  char date[16], clock[16];
  strftime(date, sizeof date, "%Y%m%d", &local);
  strftime(clock, sizeof clock, "%H:%M:%S", &local);
  return stamp(scroll, date, clock);
}

// Calls `print_sample` as often as wanted, with `print_header` first and again after a screenful.
template <typename PrintHeader, typename PrintSample>
int repeat(const Scroll& scroll, PrintHeader print_header, PrintSample print_sample) {
  constexpr long kSamplesPerHeader = 10;
  for (long sample = 0; scroll.count < 0 || sample < scroll.count; sample++) {
    if (sample % kSamplesPerHeader == 0) print_header();
    print_sample();
    if (fflush(stdout) != 0) return 1;
    if (sample + 1 == scroll.count) break;
    const auto whole = static_cast<time_t>(scroll.seconds);
    const timespec pause = {whole, static_cast<long>((scroll.seconds - static_cast<double>(whole)) * 1e9)};
    nanosleep(&pause, nullptr);
  }
  return 0;
}

std::string dash(const Value& value) { return value.is_known ? value.text : "-"; }

std::string process_command(const Process& process) {
  const size_t slash = process.name.rfind('/');
  return slash == std::string::npos ? process.name : process.name.substr(slash + 1);
}

// The driver tells only of processes that used the GPU lately.
std::vector<nvmlProcessUtilizationSample_t> process_samples(const Gpu& gpu) {
  std::vector<nvmlProcessUtilizationSample_t> samples(256);
  auto count = static_cast<unsigned>(samples.size());
  const nvmlReturn_t code = call("nvmlDeviceGetProcessUtilization", gpu.device, samples.data(), &count, 0ull);
  samples.resize(code == NVML_SUCCESS ? count : 0);
  return samples;
}

}  // namespace

int monitor_gpus(const Words& words) {
  std::vector<std::string> known_options = kScrollOptions;
  known_options.push_back("--format --format=");
  const Options options(words, known_options);
  Scroll scroll;
  const int code = parse_scroll(options, scroll);
  if (code != 0) return code;
  const std::string groups = options.value("--select", "puc");
  std::vector<const Column*> columns;
  for (const Column& column : kColumns) {
    if (groups.find(column.group) != std::string::npos) columns.push_back(&column);
  }
  if (columns.empty()) {
    printf("Failed to find any metric to display\nFailed to process command line \n\n");
    return kFailed;
  }
  const std::string form = options.value("--format", "");
  const bool csv = is_listed("csv", form);
  const auto print = [&](const char* first, const std::string& before, const std::string& index, const auto& text) {
    std::string line = csv ? before + index : before + format("%4s", index.c_str());
    for (const Column* column : columns) line += csv ? ", " + text(*column) : format(" %6s", text(*column).c_str());
    printf("%s%s%s\n", first, line.c_str(), csv ? "" : " ");
  };
  return repeat(
      scroll,
      [&] {
        const auto name = [](const Column& column) { return std::string(column.name); };
        const auto unit = [](const Column& column) { return std::string(column.unit); };
        if (!is_listed("noheader", form)) print("#", stamp(scroll, "Date", "Time"), "gpu", name);
        if (!is_listed("noheader", form) && !is_listed("nounit", form))
          print("#", stamp(scroll, "YYYYMMDD", "HH:MM:SS"), "Idx", unit);
      },
      [&] {
        for (const Gpu& gpu : scroll.gpus) {
          print(" ", stamp_now(scroll), std::to_string(gpu.index),
                [&](const Column& column) { return dash(column.value(gpu)); });
        }
      });
}

int monitor_processes(const Words& words) {
  const Options options(words, kScrollOptions);
  Scroll scroll;
  const int code = parse_scroll(options, scroll);
  if (code != 0) return code;
  const std::string groups = options.value("--select", "u");
  const bool with_use = groups.find('u') != std::string::npos, with_memory = groups.find('m') != std::string::npos;
  const auto header = [&](const std::string& before, const char* index, const char* pid, const char* type, bool units) {
    std::string line = before + format("%4s %11s %6s", index, pid, type);
    const auto add = [&](const char* name, const char* unit) { line += format(" %6s", units ? unit : name); };
    if (with_use) {
      for (const char* name : {"sm", "mem", "enc", "dec", "jpg", "ofa"}) add(name, "%");
    }
    if (with_memory) {
      add("fb", "MB");
      add("ccpm", "MB");
    }
    printf("#%s    %s \n", line.c_str(), units ? "name" : "command");
  };
  const auto print = [&](const Gpu& gpu, const Process* process, const nvmlProcessUtilizationSample_t* sample) {
    const auto number = [](uint64_t value) { return std::to_string(value); };
    std::string line =
        stamp_now(scroll) + format("%4u %10s %5s", gpu.index, process != nullptr ? number(process->pid).c_str() : "-",
                                   process != nullptr ? process->type.c_str() : "-");
    const auto add = [&](const std::string& text) { line += format(" %6s", text.c_str()); };
    if (with_use) {
      for (const auto part : {&nvmlProcessUtilizationSample_t::smUtil, &nvmlProcessUtilizationSample_t::memUtil,
                              &nvmlProcessUtilizationSample_t::encUtil, &nvmlProcessUtilizationSample_t::decUtil})
        add(sample != nullptr ? number(sample->*part) : "-");
      add("-");
      add("-");
    }
    if (with_memory) {
      add(process != nullptr && process->bytes_known ? number(process->bytes >> 20) : "-");
      add(process != nullptr ? "0" : "-");
    }
    printf(" %s    %-15.15s\n", line.c_str(), process != nullptr ? process_command(*process).c_str() : "-");
  };
  return repeat(
      scroll,
      [&] {
        header(stamp(scroll, "Date", "Time"), "gpu", "pid", "type", false);
        header(stamp(scroll, "YYYYMMDD", "HH:MM:SS"), "Idx", "#", "C/G", true);
      },
      [&] {
        for (const Gpu& gpu : scroll.gpus) {
          const std::vector<Process> processes = processes_of(gpu, false);
          const auto samples = process_samples(gpu);
          if (processes.empty()) print(gpu, nullptr, nullptr);
          for (const Process& process : processes) {
            const auto sample =
                std::find_if(samples.begin(), samples.end(), [&](const auto& each) { return each.pid == process.pid; });
            print(gpu, &process, sample != samples.end() ? &*sample : nullptr);
          }
        }
      });
}

}  // namespace smi
