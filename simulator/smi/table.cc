#include "simulator/smi/table.h"

#include <cstdio>
#include <cstring>

#include "simulator/smi/values.h"

namespace smi {
namespace {

unsigned long long mebibytes(uint64_t bytes) { return bytes >> 20; }

// A number with its unit, or "N/A".
std::string with(const Answer<unsigned>& answer, const char* unit) {
  return answer ? std::to_string(answer.value) + unit : "N/A";
}

std::string whole_watts(const Answer<unsigned>& milliwatts) {
  return milliwatts ? std::to_string((milliwatts.value + 500) / 1000) + "W" : "N/A";
}

// The end of a name that is too long says more than its beginning.
std::string shortened(const std::string& name, size_t width) {
  return name.size() <= width ? name : "..." + name.substr(name.size() - (width - 3));
}

constexpr const char* kTop =
    "+-----------------------------------------+------------------------+----------------------+";
constexpr const char* kHead =
    "|-----------------------------------------+------------------------+----------------------+";
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
  const std::string volatile_errors = !ecc ? "N/A" : ecc.value == 0 ? "Off" : is_mig(gpu) ? "On" : with(errors, "");
  printf("| %3u  %-30.30s %-3s |   %16s %3s |%21s |\n", gpu.index, ask_text("nvmlDeviceGetName", device).value.c_str(),
         on_off(persistence), gpu.bus_id.c_str(), on_off(display), volatile_errors.c_str());

  const std::string fan = with(ask<unsigned>("nvmlDeviceGetFanSpeed", device), "%");
  const std::string temperature = with(ask<unsigned>("nvmlDeviceGetTemperature", device, 0u), "C");
  const auto state = ask<unsigned>("nvmlDeviceGetPerformanceState", device);
  const std::string power = whole_watts(ask<unsigned>("nvmlDeviceGetPowerUsage", device));
  const std::string limit = whole_watts(ask<unsigned>("nvmlDeviceGetEnforcedPowerLimit", device));
  const Answer<MemoryUse> memory = gpu.memory();
  const std::string use =
      memory ? format("%8lluMiB / %6lluMiB", mebibytes(memory.value.used), mebibytes(memory.value.total))
             : format("%-23s", " Not Supported");
  const auto rates = ask<nvmlUtilization_t>("nvmlDeviceGetUtilizationRates", device);
  const auto mig = ask_pair<unsigned>("nvmlDeviceGetMigMode", device, false);
  const std::string utilization = rates && !is_mig(gpu) ? std::to_string(rates.value.gpu) + "%" : "N/A";
  const auto mode = ask<unsigned>("nvmlDeviceGetComputeMode", device);
  std::string computing = mode ? compute_mode(mode.value) : "N/A";
  if (computing.rfind("Exclusive_", 0) == 0) computing = "E. " + computing.substr(strlen("Exclusive_"));
  printf("|%4s%6s%6s%16s / %5s |%s |%8s %12s |\n", fan.c_str(), temperature.c_str(),
         state ? format("P%u", state.value).c_str() : "N/A ", power.c_str(), limit == "N/A" ? "N/A " : limit.c_str(),
         use.c_str(), utilization.c_str(), computing.c_str());
  printf("|%41s|%24s|%21s |\n", "", "", !mig ? "N/A" : mig.value != 0 ? "Enabled" : "Disabled");
}

void print_instances(const std::vector<Gpu>& gpus) {
  bool any = false;
  for (const Gpu& gpu : gpus) {
    for (const Instance& instance : instances_of(gpu)) {
      if (!any) {
        printf("\n%s\n| MIG devices: %75s|\n%s\n", kWide, "", kMig);
        printf(
            "| GPU  GI  CI  MIG |                     Memory-Usage |        Vol|      Shared           |\n"
            "|      ID  ID  Dev |                       BAR1-Usage | SM     Unc| CE ENC DEC OFA JPG    |\n"
            "|                  |                                  |        ECC|                       |\n"
            "|==================+==================================+===========+=======================|\n");
      }
      any = true;
      const Answer<MemoryUse> memory = memory_of(instance.device);
      const auto parts = ask<nvmlDeviceAttributes_t>("nvmlDeviceGetAttributes_v2", instance.device);
      const auto bar1 = ask<Bar1>("nvmlDeviceGetBAR1MemoryInfo", instance.device);
      printf("|%3u%5u%4u%4u  |%16lluMiB / %5lluMiB    |%3u%7s |%3u%4u%5u%5u%5u |\n", gpu.index, instance.gpu_instance,
             instance.compute_instance, instance.slot, mebibytes(memory.value.used), mebibytes(memory.value.total),
             parts.value.multiprocessorCount, "N/A", parts.value.sharedCopyEngineCount, parts.value.sharedEncoderCount,
             parts.value.sharedDecoderCount, parts.value.sharedOfaCount, parts.value.sharedJpegCount);
      const std::string shared =
          bar1 ? format("%18lluMiB / %5lluMiB  ", mebibytes(bar1.value.used), mebibytes(bar1.value.total))
               : format("%21s / %8s  ", "N/A", "N/A");
      printf("|%18s|%s|%11s|%23s|\n%s\n", "", shared.c_str(), "", "", kMig);
    }
  }
}

std::string instance_text(uint32_t id) { return id == kNoInstance ? "N/A" : std::to_string(id); }

void print_processes(const std::vector<Gpu>& gpus) {
  printf("%s\n| Processes: %77s|\n", kWide, "");
  printf(
      "|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |\n"
      "|        ID   ID                                                               Usage      |\n"
      "|=========================================================================================|\n");
  bool any = false;
  for (const Gpu& gpu : gpus) {
    for (const Process& process : processes_of(gpu, false)) {
      any = true;
      const std::string used = process.bytes_known ? std::to_string(process.bytes >> 20) + "MiB" : "N/A";
      printf("|%5u%6s%5s%10u%7s   %-41s%11s |\n", gpu.index, instance_text(process.gpu_instance).c_str(),
             instance_text(process.compute_instance).c_str(), process.pid, process.type.c_str(),
             shortened(process.name, 40).c_str(), used.c_str());
    }
  }
  if (!any) printf("|  No running processes found%61s|\n", "");
  printf("%s\n", kWide);
}

}  // namespace

void print_table(const std::vector<Gpu>& gpus) {
  const std::string version = driver_version();
  printf("%s       \n%s\n", date().c_str(), kWide);
  printf("| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-8s |\n%s\n", version.c_str(), version.c_str(),
         cuda_version().c_str(), kHead);
  printf(
      "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
      "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n"
      "|                                         |                        |               MIG M. |\n"
      "|=========================================+========================+======================|\n");
  for (const Gpu& gpu : gpus) {
    print_row(gpu);
    printf("%s\n", kTop);
  }
  print_instances(gpus);
  printf("%89s\n", "");
  print_processes(gpus);
}

void print_list(const std::vector<Gpu>& gpus) {
  for (const Gpu& gpu : gpus) {
    printf("GPU %u: %s (UUID: %s)\n", gpu.index, ask_text("nvmlDeviceGetName", gpu.device).value.c_str(),
           ask_text("nvmlDeviceGetUUID", gpu.device).value.c_str());
    for (const Instance& instance : instances_of(gpu))
      printf("  %-15s Device %2u: (UUID: %s)\n", ("MIG " + instance.name).c_str(), instance.number,
             instance.uuid.c_str());
  }
}

}  // namespace smi
