#include "smi/queries.h"

#include <sys/time.h>

#include <cstdio>
#include <ctime>

namespace smi {
namespace {

// The GPU that a field is asked of; `process` is null in queries about GPUs.
struct Subject {
  const Gpu& gpu;
  const Process* process;
  size_t gpu_count;
};

struct Field {
  const char* name;
  const char* alias;  // null: none
  const char* unit;   // null: none
  std::string (*value)(const Subject&);
};

std::string reason(nvmlReturn_t code) {
  switch (code) {
    case NVML_ERROR_NOT_SUPPORTED:
    case NVML_ERROR_FUNCTION_NOT_FOUND: return "[N/A]";
    case NVML_ERROR_NO_PERMISSION: return "[Insufficient Permissions]";
    case NVML_ERROR_GPU_IS_LOST: return "[GPU is lost]";
    case NVML_ERROR_RESET_REQUIRED: return "[GPU requires reset]";
    default: return "[Unknown Error]";
  }
}

template <typename T>
std::string number(const Answer<T>& answer) {
  return answer ? std::to_string(answer.value) : reason(answer.code);
}

std::string text(const Answer<std::string>& answer) { return answer ? answer.value : reason(answer.code); }

std::string enabled(const Answer<unsigned>& answer) {
  return answer ? (answer.value != 0 ? "Enabled" : "Disabled") : reason(answer.code);
}

std::string hexadecimal(const Answer<nvmlPciInfo_t>& pci, unsigned nvmlPciInfo_t::* part, int digits) {
  if (!pci) return reason(pci.code);
  char out[24];
  snprintf(out, sizeof out, "0x%0*X", digits, pci.value.*part);
  return out;
}

std::string watts(const Answer<unsigned>& milliwatts) {
  if (!milliwatts) return reason(milliwatts.code);
  char out[24];
  snprintf(out, sizeof out, "%.2f", milliwatts.value / 1000.0);
  return out;
}

std::string mebibytes(const Answer<MemoryUse>& memory, uint64_t MemoryUse::* part) {
  return memory ? std::to_string((memory.value.*part) >> 20) : reason(memory.code);
}

std::string now() {
  timeval time;
  gettimeofday(&time, nullptr);
  tm local;
  localtime_r(&time.tv_sec, &local);
  char date[32], out[48];
  strftime(date, sizeof date, "%Y/%m/%d %H:%M:%S", &local);
  snprintf(out, sizeof out, "%s.%03d", date, static_cast<int>(time.tv_usec / 1000));
  return out;
}

// Wrappers for the table below: a function of NVML, and how its answer is written.
#define VALUE(EXPRESSION)                                            \
  [](const Subject& subject) -> std::string {                        \
    [[maybe_unused]] const nvmlDevice_t device = subject.gpu.device; \
    return EXPRESSION;                                               \
  }
#define NUMBER(FUNCTION) VALUE(number(ask<unsigned>(FUNCTION, device)))
#define TEXT(FUNCTION) VALUE(text(ask_text(FUNCTION, device)))
#define ENABLED(FUNCTION) VALUE(enabled(ask<unsigned>(FUNCTION, device)))
#define WATTS(FUNCTION) VALUE(watts(ask<unsigned>(FUNCTION, device)))
#define CLOCK(FUNCTION, TYPE) VALUE(number(ask<unsigned>(FUNCTION, device, TYPE##u)))
#define PAIR(FUNCTION, SECOND) ask_pair<unsigned>(FUNCTION, device, SECOND)
#define ECC(ERROR, COUNTER) VALUE(number(ecc_errors(device, ERROR##u, COUNTER##u)))

Answer<unsigned long long> ecc_errors(nvmlDevice_t device, unsigned error, unsigned counter) {
  Answer<unsigned long long> answer;
  answer.code = call("nvmlDeviceGetTotalEccErrors", device, error, counter, &answer.value);
  return answer;
}

std::string utilization(nvmlDevice_t device, bool of_memory) {
  const auto rates = ask<nvmlUtilization_t>("nvmlDeviceGetUtilizationRates", device);
  if (!rates) return reason(rates.code);
  return std::to_string(of_memory ? rates.value.memory : rates.value.gpu);
}

std::string capability(nvmlDevice_t device) {
  const auto major = ask_pair<int>("nvmlDeviceGetCudaComputeCapability", device, false);
  const auto minor = ask_pair<int>("nvmlDeviceGetCudaComputeCapability", device, true);
  return major ? std::to_string(major.value) + "." + std::to_string(minor.value) : reason(major.code);
}

// Field names, other names and units as `nvidia-smi --help-query-gpu` of driver 550 documents them.
constexpr Field kGpuFields[] = {
    {"timestamp", nullptr, nullptr, VALUE(now())},
    {"driver_version", nullptr, nullptr, VALUE(driver_version())},
    {"count", nullptr, nullptr, VALUE(std::to_string(subject.gpu_count))},
    {"name", "gpu_name", nullptr, TEXT("nvmlDeviceGetName")},
    {"serial", "gpu_serial", nullptr, TEXT("nvmlDeviceGetSerial")},
    {"uuid", "gpu_uuid", nullptr, TEXT("nvmlDeviceGetUUID")},
    {"pci.bus_id", "gpu_bus_id", nullptr, VALUE(subject.gpu.bus_id)},
    {"pci.domain", nullptr, nullptr, VALUE(hexadecimal(subject.gpu.pci(), &nvmlPciInfo_t::domain, 4))},
    {"pci.bus", nullptr, nullptr, VALUE(hexadecimal(subject.gpu.pci(), &nvmlPciInfo_t::bus, 2))},
    {"pci.device", nullptr, nullptr, VALUE(hexadecimal(subject.gpu.pci(), &nvmlPciInfo_t::device, 2))},
    {"pci.device_id", nullptr, nullptr, VALUE(hexadecimal(subject.gpu.pci(), &nvmlPciInfo_t::pciDeviceId, 8))},
    {"pci.sub_device_id", nullptr, nullptr, VALUE(hexadecimal(subject.gpu.pci(), &nvmlPciInfo_t::pciSubSystemId, 8))},
    {"pcie.link.gen.current", "pcie.link.gen.gpucurrent", nullptr, NUMBER("nvmlDeviceGetCurrPcieLinkGeneration")},
    {"pcie.link.gen.max", nullptr, nullptr, NUMBER("nvmlDeviceGetMaxPcieLinkGeneration")},
    {"pcie.link.width.current", nullptr, nullptr, NUMBER("nvmlDeviceGetCurrPcieLinkWidth")},
    {"pcie.link.width.max", nullptr, nullptr, NUMBER("nvmlDeviceGetMaxPcieLinkWidth")},
    {"index", nullptr, nullptr, VALUE(std::to_string(subject.gpu.index))},
    {"display_mode", nullptr, nullptr, ENABLED("nvmlDeviceGetDisplayMode")},
    {"display_active", nullptr, nullptr, ENABLED("nvmlDeviceGetDisplayActive")},
    {"persistence_mode", nullptr, nullptr, ENABLED("nvmlDeviceGetPersistenceMode")},
    {"accounting.mode", nullptr, nullptr, ENABLED("nvmlDeviceGetAccountingMode")},
    {"vbios_version", nullptr, nullptr, TEXT("nvmlDeviceGetVbiosVersion")},
    {"fan.speed", nullptr, "%", NUMBER("nvmlDeviceGetFanSpeed")},
    {"pstate", nullptr, nullptr, VALUE([](const Answer<unsigned>& state) {
       return state ? "P" + std::to_string(state.value) : reason(state.code);
     }(ask<unsigned>("nvmlDeviceGetPerformanceState", device)))},
    {"memory.total", nullptr, "MiB", VALUE(mebibytes(memory_of(device), &MemoryUse::total))},
    {"memory.reserved", nullptr, "MiB", VALUE(mebibytes(memory_of(device), &MemoryUse::reserved))},
    {"memory.used", nullptr, "MiB", VALUE(mebibytes(memory_of(device), &MemoryUse::used))},
    {"memory.free", nullptr, "MiB", VALUE(mebibytes(memory_of(device), &MemoryUse::free))},
    {"compute_mode", nullptr, nullptr, VALUE([](const Answer<unsigned>& mode) {
       return mode ? compute_mode(mode.value) : reason(mode.code);
     }(ask<unsigned>("nvmlDeviceGetComputeMode", device)))},
    {"compute_cap", nullptr, nullptr, VALUE(capability(device))},
    {"utilization.gpu", nullptr, "%", VALUE(utilization(device, false))},
    {"utilization.memory", nullptr, "%", VALUE(utilization(device, true))},
    {"utilization.encoder", nullptr, "%", VALUE(number(PAIR("nvmlDeviceGetEncoderUtilization", false)))},
    {"utilization.decoder", nullptr, "%", VALUE(number(PAIR("nvmlDeviceGetDecoderUtilization", false)))},
    {"ecc.mode.current", nullptr, nullptr, VALUE(enabled(PAIR("nvmlDeviceGetEccMode", false)))},
    {"ecc.mode.pending", nullptr, nullptr, VALUE(enabled(PAIR("nvmlDeviceGetEccMode", true)))},
    {"ecc.errors.corrected.volatile.total", nullptr, nullptr, ECC(0, 0)},
    {"ecc.errors.corrected.aggregate.total", nullptr, nullptr, ECC(0, 1)},
    {"ecc.errors.uncorrected.volatile.total", nullptr, nullptr, ECC(1, 0)},
    {"ecc.errors.uncorrected.aggregate.total", nullptr, nullptr, ECC(1, 1)},
    {"temperature.gpu", nullptr, nullptr, VALUE(number(ask<unsigned>("nvmlDeviceGetTemperature", device, 0u)))},
    {"power.management", nullptr, nullptr, ENABLED("nvmlDeviceGetPowerManagementMode")},
    {"power.draw", nullptr, "W", WATTS("nvmlDeviceGetPowerUsage")},
    {"power.draw.average", nullptr, "W", WATTS("nvmlDeviceGetPowerUsage")},
    {"power.draw.instant", nullptr, "W", WATTS("nvmlDeviceGetPowerUsage")},
    {"power.limit", nullptr, "W", WATTS("nvmlDeviceGetPowerManagementLimit")},
    {"enforced.power.limit", nullptr, "W", WATTS("nvmlDeviceGetEnforcedPowerLimit")},
    {"power.default_limit", nullptr, "W", WATTS("nvmlDeviceGetPowerManagementDefaultLimit")},
    {"power.min_limit", nullptr, "W", VALUE(watts(PAIR("nvmlDeviceGetPowerManagementLimitConstraints", false)))},
    {"power.max_limit", nullptr, "W", VALUE(watts(PAIR("nvmlDeviceGetPowerManagementLimitConstraints", true)))},
    {"clocks.current.graphics", "clocks.gr", "MHz", CLOCK("nvmlDeviceGetClockInfo", 0)},
    {"clocks.current.sm", "clocks.sm", "MHz", CLOCK("nvmlDeviceGetClockInfo", 1)},
    {"clocks.current.memory", "clocks.mem", "MHz", CLOCK("nvmlDeviceGetClockInfo", 2)},
    {"clocks.current.video", "clocks.video", "MHz", CLOCK("nvmlDeviceGetClockInfo", 3)},
    {"clocks.max.graphics", "clocks.max.gr", "MHz", CLOCK("nvmlDeviceGetMaxClockInfo", 0)},
    {"clocks.max.sm", nullptr, "MHz", CLOCK("nvmlDeviceGetMaxClockInfo", 1)},
    {"clocks.max.memory", "clocks.max.mem", "MHz", CLOCK("nvmlDeviceGetMaxClockInfo", 2)},
    {"mig.mode.current", nullptr, nullptr, VALUE(enabled(PAIR("nvmlDeviceGetMigMode", false)))},
    {"mig.mode.pending", nullptr, nullptr, VALUE(enabled(PAIR("nvmlDeviceGetMigMode", true)))},
};

constexpr Field kProcessFields[] = {
    {"timestamp", nullptr, nullptr, VALUE(now())},
    {"gpu_name", nullptr, nullptr, TEXT("nvmlDeviceGetName")},
    {"gpu_bus_id", nullptr, nullptr, VALUE(subject.gpu.bus_id)},
    {"gpu_serial", nullptr, nullptr, TEXT("nvmlDeviceGetSerial")},
    {"gpu_uuid", nullptr, nullptr, TEXT("nvmlDeviceGetUUID")},
    {"pid", nullptr, nullptr, VALUE(std::to_string(subject.process->pid))},
    {"process_name", "name", nullptr, VALUE(subject.process->name)},
    {"used_gpu_memory", "used_memory", "MiB",
     VALUE(subject.process->bytes_known ? std::to_string(subject.process->bytes >> 20) : "[N/A]")},
};

#undef VALUE
#undef NUMBER
#undef TEXT
#undef ENABLED
#undef WATTS
#undef CLOCK
#undef PAIR
#undef ECC

struct Fields {
  const Field* first;
  size_t count;
};

Fields fields_of(bool about_processes) {
  if (about_processes) return {kProcessFields, sizeof kProcessFields / sizeof kProcessFields[0]};
  return {kGpuFields, sizeof kGpuFields / sizeof kGpuFields[0]};
}

// Splits at commas; blanks around a part don't count.
std::vector<std::string> parts(const std::string& list) {
  std::vector<std::string> found;
  for (size_t start = 0; start <= list.size();) {
    size_t end = list.find(',', start);
    if (end == std::string::npos) end = list.size();
    std::string part = list.substr(start, end - start);
    part.erase(0, part.find_first_not_of(' '));
    part.erase(part.find_last_not_of(' ') + 1);
    found.push_back(part);
    start = end + 1;
  }
  return found;
}

}  // namespace

int parse_format(const std::string& text, Format& format) {
  bool csv = false;
  for (const std::string& part : text.empty() ? std::vector<std::string>() : parts(text)) {
    if (part == "csv") {
      csv = true;
    } else if (part == "noheader") {
      format.header = false;
    } else if (part == "nounits") {
      format.units = false;
    } else {
      printf("\"%s\" is not a format: csv, noheader and nounits are.\n", part.c_str());
      return kInvalidArgument;
    }
  }
  if (csv) return 0;
  printf("A query needs --format=csv, with ,noheader and ,nounits as you like.\n");
  return kInvalidArgument;
}

int Query::parse(const std::string& fields, bool about_processes) {
  about_processes_ = about_processes;
  const Fields known = fields_of(about_processes);
  for (const std::string& part : parts(fields)) {
    size_t at = 0;
    while (at < known.count && part != known.first[at].name &&
           (known.first[at].alias == nullptr || part != known.first[at].alias))
      at++;
    if (at == known.count) {
      printf("Field \"%s\" is not a valid field to query.\n", part.c_str());
      return kInvalidArgument;
    }
    fields_.push_back(at);
  }
  return 0;
}

void Query::print_header(const Format& format) const {
  if (!format.header) return;
  const Fields known = fields_of(about_processes_);
  std::string line;
  for (const size_t at : fields_) {
    const Field& field = known.first[at];
    line += (line.empty() ? "" : ", ") + std::string(field.name);
    if (format.units && field.unit != nullptr) line += " [" + std::string(field.unit) + "]";
  }
  puts(line.c_str());
}

void Query::print_rows(const std::vector<Gpu>& gpus, const Format& format) const {
  const Fields known = fields_of(about_processes_);
  const auto print = [&](const Subject& subject) {
    std::string line;
    bool is_first = true;
    for (const size_t at : fields_) {
      const Field& field = known.first[at];
      const std::string value = field.value(subject);
      if (!is_first) line += ", ";
      is_first = false;
      line += value;
      if (format.units && field.unit != nullptr && value[0] != '[') line += " " + std::string(field.unit);
    }
    puts(line.c_str());
  };
  for (const Gpu& gpu : gpus) {
    if (!about_processes_) {
      print({gpu, nullptr, gpus.size()});
      continue;
    }
    for (const Process& process : processes_of(gpu, true)) print({gpu, &process, gpus.size()});
  }
}

void print_fields(bool about_processes) {
  const Fields known = fields_of(about_processes);
  for (size_t at = 0; at < known.count; at++) {
    const Field& field = known.first[at];
    printf("\"%s\"", field.name);
    if (field.alias != nullptr) printf(" or \"%s\"", field.alias);
    if (field.unit != nullptr) printf(", in %s", field.unit);
    puts("");
  }
}

}  // namespace smi
