#include "smi/pages.h"

#include <cstdio>
#include <cstring>
#include <ctime>

namespace smi {
namespace {

struct Bar1 {
  unsigned long long total, free, used;  // bytes
};

std::string date() {
  const time_t now = time(nullptr);
  tm local;
  localtime_r(&now, &local);
  char text[64];
  strftime(text, sizeof text, "%a %b %e %H:%M:%S %Y", &local);
  return text;
}

template <typename... Arguments>
std::string format(const char* pattern, Arguments... arguments) {
  char text[160];
  snprintf(text, sizeof text, pattern, arguments...);
  return text;
}

unsigned long long mebibytes(uint64_t bytes) { return bytes >> 20; }

// A number with its unit, or "N/A".
std::string with(const Answer<unsigned>& answer, const char* unit) {
  return answer ? std::to_string(answer.value) + unit : "N/A";
}

std::string watts(const Answer<unsigned>& milliwatts) {
  return milliwatts ? std::to_string((milliwatts.value + 500) / 1000) + "W" : "N/A";
}

// The end of a name that is too long says more than its beginning.
std::string shortened(const std::string& name, size_t width) {
  return name.size() <= width ? name : "..." + name.substr(name.size() - (width - 3));
}

constexpr const char* kTop =
    "+-----------------------------------------+------------------------+----------------------+";
constexpr const char* kWide =
    "+-----------------------------------------------------------------------------------------+";
constexpr const char* kMig =
    "+------------------+----------------------------------+-----------+-----------------------+";

void print_row(const Gpu& gpu) {
  const nvmlDevice_t device = gpu.device;
  const auto persistence = ask<unsigned>("nvmlDeviceGetPersistenceMode", device);
  const auto display = ask<unsigned>("nvmlDeviceGetDisplayActive", device);
  const auto errors = [&] {
    Answer<unsigned> answer;
    unsigned long long count = 0;
    answer.code = call("nvmlDeviceGetTotalEccErrors", device, 1u, 0u, &count);
    answer.value = static_cast<unsigned>(count);
    return answer;
  }();
  const auto on_off = [](const Answer<unsigned>& answer) { return !answer ? "N/A" : answer.value != 0 ? "On" : "Off"; };
  const auto ecc = ask_pair<unsigned>("nvmlDeviceGetEccMode", device, false);
  const std::string volatile_errors = !ecc ? "N/A" : ecc.value == 0 ? "Off" : with(errors, "");
  printf("| %3u  %-30.30s %-3s |   %16s %3s |%21s |\n", gpu.index, ask_text("nvmlDeviceGetName", device).value.c_str(),
         on_off(persistence), gpu.bus_id.c_str(), on_off(display), volatile_errors.c_str());

  const std::string fan = with(ask<unsigned>("nvmlDeviceGetFanSpeed", device), "%");
  const std::string temperature = with(ask<unsigned>("nvmlDeviceGetTemperature", device, 0u), "C");
  const auto state = ask<unsigned>("nvmlDeviceGetPerformanceState", device);
  const std::string power = watts(ask<unsigned>("nvmlDeviceGetPowerUsage", device));
  const std::string limit = watts(ask<unsigned>("nvmlDeviceGetEnforcedPowerLimit", device));
  const Answer<MemoryUse> memory = gpu.memory();
  const std::string use =
      memory ? format("%8lluMiB / %6lluMiB", mebibytes(memory.value.used), mebibytes(memory.value.total))
             : format("%11s / %9s", "N/A", "N/A");
  const auto rates = ask<nvmlUtilization_t>("nvmlDeviceGetUtilizationRates", device);
  const auto mig = ask_pair<unsigned>("nvmlDeviceGetMigMode", device, false);
  const std::string utilization = rates && !is_mig(gpu) ? std::to_string(rates.value.gpu) + "%" : "N/A";
  const auto mode = ask<unsigned>("nvmlDeviceGetComputeMode", device);
  std::string computing = mode ? compute_mode(mode.value) : "N/A";
  if (computing.rfind("Exclusive_", 0) == 0) computing = "E. " + computing.substr(strlen("Exclusive_"));
  printf("|%4s%6s%6s%16s / %5s |%s |%8s %12s |\n", fan.c_str(), temperature.c_str(),
         state ? format("P%u", state.value).c_str() : "N/A", power.c_str(), limit.c_str(), use.c_str(),
         utilization.c_str(), computing.c_str());
  printf("|%41s|%24s|%21s |\n", "", "", !mig ? "N/A" : mig.value != 0 ? "Enabled" : "Disabled");
}

void print_instances(const std::vector<Gpu>& gpus) {
  bool any = false;
  for (const Gpu& gpu : gpus) {
    for (const Instance& instance : instances_of(gpu)) {
      if (!any) {
        printf("%s\n| MIG devices: %75s|\n%s\n", kWide, "", kMig);
        printf(
            "| GPU  GI  CI  MIG |              Shared Memory-Usage |        Vol|        Shared         |\n"
            "|      ID  ID  Dev |                Shared BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |\n"
            "|                  |                                  |        ECC|                       |\n"
            "|==================+==================================+===========+=======================|\n");
      }
      any = true;
      const Answer<MemoryUse> memory = memory_of(instance.device);
      const auto parts = ask<nvmlDeviceAttributes_t>("nvmlDeviceGetAttributes_v2", instance.device);
      const auto bar1 = ask<Bar1>("nvmlDeviceGetBAR1MemoryInfo", instance.device);
      printf("|%3u%5u%4u%4u  |%16lluMiB / %5lluMiB    |%3u%7u |%3u%4u%5u%5u%5u |\n", gpu.index, instance.gpu_instance,
             instance.compute_instance, instance.number, mebibytes(memory.value.used), mebibytes(memory.value.total),
             parts.value.multiprocessorCount, 0u, parts.value.sharedCopyEngineCount, parts.value.sharedEncoderCount,
             parts.value.sharedDecoderCount, parts.value.sharedOfaCount, parts.value.sharedJpegCount);
      const std::string shared =
          bar1 ? format("%18lluMiB / %5lluMiB  ", mebibytes(bar1.value.used), mebibytes(bar1.value.total))
               : format("%21s / %8s  ", "N/A", "N/A");
      printf("|%18s|%s|%11s|%23s|\n%s\n", "", shared.c_str(), "", "", kMig);
    }
  }
  if (any) printf("%91s\n", "");
}

std::string instance_text(uint32_t id) { return id == kNoInstance ? "N/A" : std::to_string(id); }

void print_processes(const std::vector<Gpu>& gpus) {
  printf("%s\n| Processes: %77s|\n", kWide, "");
  printf(
      "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |\n"
      "|        ID   ID                                                               Usage      |\n"
      "|=========================================================================================|\n");
  bool any = false;
  for (const Gpu& gpu : gpus) {
    for (const Process& process : processes_of(gpu, false)) {
      any = true;
      const std::string used = process.bytes_known ? std::to_string(process.bytes >> 20) + "MiB" : "N/A";
      printf("|%5u%6s%5s%16u%7s   %-35s%11s |\n", gpu.index, instance_text(process.gpu_instance).c_str(),
             instance_text(process.compute_instance).c_str(), process.pid, process.graphics ? "G" : "C",
             shortened(process.name, 34).c_str(), used.c_str());
    }
  }
  if (!any) printf("|  No running processes found%61s|\n", "");
  printf("%s\n", kWide);
}

// Lines of -q: the names of nested groups, then "name : value" with the colons below each other.
void line(int depth, const char* name, const std::string& value) {
  printf("%*s%-*s: %s\n", depth * 4, "", 42 - depth * 4, name, value.c_str());
}
void group(int depth, const char* name) { printf("%*s%s\n", depth * 4, "", name); }

std::string in(unsigned long long value, const char* unit) { return std::to_string(value) + " " + unit; }
std::string in(const Answer<unsigned>& answer, const char* unit) {
  return answer ? in(answer.value, unit) : std::string("N/A");
}
std::string exact_watts(const Answer<unsigned>& milliwatts) {
  return milliwatts ? format("%.2f W", milliwatts.value / 1000.0) : "N/A";
}

void log_memory(const Gpu& gpu) {
  const Answer<MemoryUse> memory = gpu.memory();
  const auto fb = [&](uint64_t MemoryUse::* part) {
    return memory ? in(mebibytes(memory.value.*part), "MiB") : std::string("N/A");
  };
  group(1, "FB Memory Usage");
  line(2, "Total", fb(&MemoryUse::total));
  line(2, "Reserved", fb(&MemoryUse::reserved));
  line(2, "Used", fb(&MemoryUse::used));
  line(2, "Free", fb(&MemoryUse::free));
  const auto bar1 = ask<Bar1>("nvmlDeviceGetBAR1MemoryInfo", gpu.device);
  const auto bar = [&](unsigned long long Bar1::* part) {
    return bar1 ? in(mebibytes(bar1.value.*part), "MiB") : std::string("N/A");
  };
  group(1, "BAR1 Memory Usage");
  line(2, "Total", bar(&Bar1::total));
  line(2, "Used", bar(&Bar1::used));
  line(2, "Free", bar(&Bar1::free));
}

void log_utilization(const Gpu& gpu) {
  const auto rates = ask<nvmlUtilization_t>("nvmlDeviceGetUtilizationRates", gpu.device);
  group(1, "Utilization");
  line(2, "GPU", rates ? in(rates.value.gpu, "%") : "N/A");
  line(2, "Memory", rates ? in(rates.value.memory, "%") : "N/A");
  line(2, "Encoder", in(ask_pair<unsigned>("nvmlDeviceGetEncoderUtilization", gpu.device, false), "%"));
  line(2, "Decoder", in(ask_pair<unsigned>("nvmlDeviceGetDecoderUtilization", gpu.device, false), "%"));
}

void log_temperature(const Gpu& gpu) {
  const auto threshold = [&](unsigned which) {
    return in(ask<unsigned>("nvmlDeviceGetTemperatureThreshold", gpu.device, which), "C");
  };
  group(1, "Temperature");
  line(2, "GPU Current Temp", in(ask<unsigned>("nvmlDeviceGetTemperature", gpu.device, 0u), "C"));
  line(2, "GPU Shutdown Temp", threshold(0));
  line(2, "GPU Slowdown Temp", threshold(1));
}

void log_power(const Gpu& gpu) {
  const auto limits = [&](bool highest) {
    return ask_pair<unsigned>("nvmlDeviceGetPowerManagementLimitConstraints", gpu.device, highest);
  };
  group(1, "GPU Power Readings");
  line(2, "Average Power Draw", exact_watts(ask<unsigned>("nvmlDeviceGetPowerUsage", gpu.device)));
  line(2, "Current Power Limit", exact_watts(ask<unsigned>("nvmlDeviceGetEnforcedPowerLimit", gpu.device)));
  line(2, "Default Power Limit", exact_watts(ask<unsigned>("nvmlDeviceGetPowerManagementDefaultLimit", gpu.device)));
  line(2, "Min Power Limit", exact_watts(limits(false)));
  line(2, "Max Power Limit", exact_watts(limits(true)));
}

void log_clocks(const Gpu& gpu) {
  constexpr const char* kTypes[] = {"Graphics", "SM", "Memory", "Video"};
  group(1, "Clocks");
  for (unsigned type = 0; type < 4; type++)
    line(2, kTypes[type], in(ask<unsigned>("nvmlDeviceGetClockInfo", gpu.device, type), "MHz"));
  group(1, "Max Clocks");
  for (unsigned type = 0; type < 4; type++)
    line(2, kTypes[type], in(ask<unsigned>("nvmlDeviceGetMaxClockInfo", gpu.device, type), "MHz"));
}

void log_compute_mode(const Gpu& gpu) {
  const auto mode = ask<unsigned>("nvmlDeviceGetComputeMode", gpu.device);
  line(1, "Compute Mode", mode ? compute_mode(mode.value) : "N/A");
}

void log_performance(const Gpu& gpu) {
  const auto state = ask<unsigned>("nvmlDeviceGetPerformanceState", gpu.device);
  line(1, "Performance State", state ? format("P%u", state.value) : "N/A");
}

void log_processes(const Gpu& gpu) {
  const std::vector<Process> processes = processes_of(gpu, false);
  if (processes.empty()) return line(1, "Processes", "None");
  group(1, "Processes");
  for (const Process& process : processes) {
    line(2, "GPU instance ID", instance_text(process.gpu_instance));
    line(2, "Compute instance ID", instance_text(process.compute_instance));
    line(2, "Process ID", std::to_string(process.pid));
    line(3, "Type", process.graphics ? "G" : "C");
    line(3, "Name", process.name);
    line(3, "Used GPU Memory", process.bytes_known ? in(mebibytes(process.bytes), "MiB") : "N/A");
  }
}

struct Section {
  const char* name;
  void (*print)(const Gpu&);
};

constexpr Section kSections[] = {
    {"PERFORMANCE", log_performance},
    {"MEMORY", log_memory},
    {"UTILIZATION", log_utilization},
    {"COMPUTE", log_compute_mode},
    {"CLOCK", log_clocks},
    {"TEMPERATURE", log_temperature},
    {"POWER", log_power},
    {"PIDS", log_processes},
};

}  // namespace

void print_table(const std::vector<Gpu>& gpus) {
  const std::string version = driver_version();
  printf("%s       \n%s\n", date().c_str(), kWide);
  printf("| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-8s |\n%s\n", version.c_str(), version.c_str(),
         cuda_version().c_str(), kTop);
  printf(
      "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
      "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n"
      "|                                         |                        |               MIG M. |\n"
      "|=========================================+========================+======================|\n");
  for (const Gpu& gpu : gpus) {
    print_row(gpu);
    printf("%s\n", kTop);
  }
  printf("%91s\n", "");
  print_instances(gpus);
  print_processes(gpus);
}

void print_list(const std::vector<Gpu>& gpus) {
  for (const Gpu& gpu : gpus) {
    printf("GPU %u: %s (UUID: %s)\n", gpu.index, ask_text("nvmlDeviceGetName", gpu.device).value.c_str(),
           ask_text("nvmlDeviceGetUUID", gpu.device).value.c_str());
    for (const Instance& instance : instances_of(gpu))
      printf("  MIG %-12s Device %2u: (UUID: %s)\n", instance.name.c_str(), instance.number, instance.uuid.c_str());
  }
}

int print_log(const std::vector<Gpu>& gpus, const std::string& sections) {
  std::vector<const Section*> chosen;
  for (const Section& section : kSections) {
    if (sections.empty() || is_listed(section.name, sections)) chosen.push_back(&section);
  }
  size_t asked = sections.empty() ? chosen.size() : 1;
  for (const char c : sections) asked += c == ',';
  if (chosen.size() != asked) {
    printf("-d %s: the simulated nvidia-smi has", sections.c_str());
    for (const Section& section : kSections) printf(" %s", section.name);
    printf("\n");
    return kInvalidArgument;
  }
  printf("\n==============NVSMI LOG==============\n\n");
  line(0, "Timestamp", date());
  line(0, "Driver Version", driver_version());
  line(0, "CUDA Version", cuda_version());
  printf("\n");
  line(0, "Attached GPUs", std::to_string(gpus.size()));
  for (const Gpu& gpu : gpus) {
    printf("GPU %s\n", gpu.bus_id.c_str());
    if (sections.empty()) {
      line(1, "Product Name", ask_text("nvmlDeviceGetName", gpu.device).value);
      line(1, "GPU UUID", ask_text("nvmlDeviceGetUUID", gpu.device).value);
    }
    for (const Section* section : chosen) section->print(gpu);
    printf("\n");
  }
  return 0;
}

}  // namespace smi
