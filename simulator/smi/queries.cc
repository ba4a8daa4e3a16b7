#include "simulator/smi/queries.h"

#include <sys/time.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <map>

#include "simulator/smi/values.h"

namespace smi {
namespace {

// The subject of a row: a GPU, and in some topics something of it.
struct Subject {
  explicit Subject(const Gpu& its_gpu) : gpu(its_gpu) {}
  const Gpu& gpu;
  const Process* process = nullptr;
  unsigned retirement_cause = 0;  // 0: single bit errors, 1: double bit errors
  Value memory_clock, graphics_clock;
};

struct Field {
  std::vector<std::string> names;
  const char* unit;  // null: none
  std::function<Value(const Subject&)> value;
};
using Fields = std::vector<Field>;

// A row of the tables below, which compile a second faster than vectors of fields.
struct Row {
  const char* names[2];
  const char* unit;
  Value (*value)(const Subject&);
};

template <size_t kCount>
void add(Fields& fields, const Row (&rows)[kCount]) {
  for (const Row& row : rows) {
    fields.push_back({{row.names[0]}, row.unit, row.value});
    if (row.names[1] != nullptr) fields.back().names.push_back(row.names[1]);
  }
}

std::string now() {
  timeval time;
  gettimeofday(&time, nullptr);
  tm local;
  localtime_r(&time.tv_sec, &local);
  char date[32];
  strftime(date, sizeof date, "%Y/%m/%d %H:%M:%S", &local);
  return format("%s.%03d", date, static_cast<int>(time.tv_usec / 1000));
}

// NVIDIA's program writes this one without brackets where the GPU has none.
Value plain(const Value& value) { return known(value.text); }

// Value of a field: its expression sees the GPU as `gpu`, and the row's subject.
#define VALUE(EXPRESSION)                          \
  [](const Subject& subject) -> Value {            \
    [[maybe_unused]] const Gpu& gpu = subject.gpu; \
    return EXPRESSION;                             \
  }
#define NUMBER(FUNCTION) VALUE(number_of(gpu, FUNCTION))
#define TEXT(FUNCTION) VALUE(text_of(gpu, FUNCTION))
#define ENABLED(FUNCTION) VALUE(enabled_of(gpu, FUNCTION))
#define CLOCK(FUNCTION, TYPE) VALUE(clock(gpu, FUNCTION, Clock::TYPE))
#define HEXADECIMAL(PART, DIGITS) VALUE(with_prefix(pci(gpu, PciPart::PART, DIGITS)))
#define PROCESS(TEXT) VALUE(subject.process != nullptr ? known(TEXT) : Value{})
#define NONE VALUE((Value{}))

Value with_prefix(const Value& digits) {
  return digits.is_known ? known(std::string("0x").append(digits.text)) : digits;
}

Value bits(const Answer<unsigned long long>& reasons) {
  return reasons ? known(format("0x%016llX", reasons.value)) : missing(reasons.code);
}

Value is_active(const Gpu& gpu, unsigned long long bit) {
  const auto reasons = clock_reasons(gpu);
  if (!reasons) return missing(reasons.code);
  return known((reasons.value & bit) != 0 ? "Active" : "Not Active");
}

void add_clock_reasons(Fields& fields) {
  const auto names = [](const std::string& name) {
    return std::vector<std::string>{std::string("clocks_event_reasons.").append(name),
                                    std::string("clocks_throttle_reasons.").append(name)};
  };
  fields.push_back({names("supported"), nullptr, VALUE(bits(supported_clock_reasons(gpu)))});
  fields.push_back({names("active"), nullptr, VALUE(bits(clock_reasons(gpu)))});
  for (size_t at = 0; at < kClockReasonCount; at++) {
    const ClockReason& reason = kClockReasons[at];
    if (!reason.is_in_query) continue;
    fields.push_back({names(reason.name), nullptr,
                      [&reason](const Subject& subject) { return is_active(subject.gpu, reason.bit); }});
  }
}

void add_ecc_errors(Fields& fields) {
  constexpr struct {
    const char* name;
    unsigned place;
  } kPlaces[] = {{"device_memory", 2}, {"dram", 2},           {"register_file", 3}, {"l1_cache", 0},
                 {"l2_cache", 1},      {"texture_memory", 4}, {"cbu", 6},           {"sram", 7}};
  for (unsigned type = 0; type < 2; type++) {
    for (unsigned counter = 0; counter < 2; counter++) {
      const std::string prefix =
          format("ecc.errors.%s.%s.", type == 0 ? "corrected" : "uncorrected", counter == 0 ? "volatile" : "aggregate");
      for (const auto& place : kPlaces)
        fields.push_back(
            {{prefix + place.name}, nullptr, [type, counter, number = place.place](const Subject& subject) {
               return ecc_errors_at(subject.gpu, type, counter, number);
             }});
      fields.push_back({{prefix + "total"}, nullptr, [type, counter](const Subject& subject) {
                          return ecc_errors(subject.gpu, type, counter);
                        }});
    }
  }
}

// All fields of `nvidia-smi --help-query-gpu` of driver 550, with its names, units and order.
Fields gpu_fields() {
  Fields fields;
  static constexpr Row kFirst[] = {
      {{"timestamp"}, nullptr, VALUE(known(now()))},
      {{"driver_version"}, nullptr, VALUE(known(driver_version()))},
      {{"vgpu_driver_capability.heterogenous_multivGPU"}, nullptr, NONE},
      {{"count"}, nullptr, VALUE(known(std::to_string(gpu_count())))},
      {{"name", "gpu_name"}, nullptr, TEXT("nvmlDeviceGetName")},
      {{"serial", "gpu_serial"}, nullptr, TEXT("nvmlDeviceGetSerial")},
      {{"uuid", "gpu_uuid"}, nullptr, TEXT("nvmlDeviceGetUUID")},
      {{"pci.bus_id", "gpu_bus_id"}, nullptr, VALUE(known(gpu.bus_id))},
      {{"pci.domain"}, nullptr, HEXADECIMAL(domain, 4)},
      {{"pci.bus"}, nullptr, HEXADECIMAL(bus, 2)},
      {{"pci.device"}, nullptr, HEXADECIMAL(device, 2)},
      {{"pci.baseClass"}, nullptr, HEXADECIMAL(base_class, 1)},
      {{"pci.subClass"}, nullptr, HEXADECIMAL(sub_class, 1)},
      {{"pci.device_id"}, nullptr, HEXADECIMAL(device_id, 1)},
      {{"pci.sub_device_id"}, nullptr, HEXADECIMAL(sub_system_id, 1)},
      {{"vgpu_device_capability.fractional_multiVgpu"}, nullptr, NONE},
      {{"vgpu_device_capability.heterogeneous_timeSlice_profile"}, nullptr, NONE},
      {{"vgpu_device_capability.heterogeneous_timeSlice_sizes"}, nullptr, NONE},
      {{"pcie.link.gen.current"}, nullptr, NUMBER("nvmlDeviceGetCurrPcieLinkGeneration")},
      {{"pcie.link.gen.gpucurrent"}, nullptr, NUMBER("nvmlDeviceGetCurrPcieLinkGeneration")},
      {{"pcie.link.gen.max"}, nullptr, NUMBER("nvmlDeviceGetMaxPcieLinkGeneration")},
      {{"pcie.link.gen.gpumax"}, nullptr, NUMBER("nvmlDeviceGetGpuMaxPcieLinkGeneration")},
      {{"pcie.link.gen.hostmax"}, nullptr, NUMBER("nvmlDeviceGetMaxPcieLinkGeneration")},
      {{"pcie.link.width.current"}, nullptr, NUMBER("nvmlDeviceGetCurrPcieLinkWidth")},
      {{"pcie.link.width.max"}, nullptr, NUMBER("nvmlDeviceGetMaxPcieLinkWidth")},
      {{"index"}, nullptr, VALUE(known(std::to_string(gpu.index)))},
      {{"display_mode"}, nullptr, ENABLED("nvmlDeviceGetDisplayMode")},
      {{"display_active"}, nullptr, ENABLED("nvmlDeviceGetDisplayActive")},
      {{"persistence_mode"}, nullptr, ENABLED("nvmlDeviceGetPersistenceMode")},
      {{"addressing_mode"}, nullptr, VALUE(known("None"))},
      {{"accounting.mode"}, nullptr, ENABLED("nvmlDeviceGetAccountingMode")},
      {{"accounting.buffer_size"}, nullptr, NUMBER("nvmlDeviceGetAccountingBufferSize")},
      {{"driver_model.current"}, nullptr, VALUE(driver_model(gpu, false))},
      {{"driver_model.pending"}, nullptr, VALUE(driver_model(gpu, true))},
      {{"vbios_version"}, nullptr, TEXT("nvmlDeviceGetVbiosVersion")},
      {{"inforom.img", "inforom.image"}, nullptr, TEXT("nvmlDeviceGetInforomImageVersion")},
      {{"inforom.oem"}, nullptr, VALUE(inforom(gpu, 0))},
      {{"inforom.ecc"}, nullptr, VALUE(inforom(gpu, 1))},
      {{"inforom.pwr", "inforom.power"}, nullptr, VALUE(inforom(gpu, 2))},
      {{"reset_status.reset_required"}, nullptr, NONE},
      {{"reset_status.drain_and_reset_recommended"}, nullptr, NONE},
      {{"gom.current", "gpu_operation_mode.current"}, nullptr, NONE},
      {{"gom.pending", "gpu_operation_mode.pending"}, nullptr, NONE},
      {{"fan.speed"}, "%", NUMBER("nvmlDeviceGetFanSpeed")},
      {{"pstate"}, nullptr, VALUE(performance_state(gpu))},
  };
  add(fields, kFirst);
  add_clock_reasons(fields);
  static constexpr Row kAfterClockReasons[] = {
      {{"memory.total"}, "MiB", VALUE(memory(gpu, &MemoryUse::total))},
      {{"memory.reserved"}, "MiB", VALUE(memory(gpu, &MemoryUse::reserved))},
      {{"memory.used"}, "MiB", VALUE(memory(gpu, &MemoryUse::used))},
      {{"memory.free"}, "MiB", VALUE(memory(gpu, &MemoryUse::free))},
      {{"compute_mode"}, nullptr, VALUE(compute_mode_of(gpu))},
      {{"compute_cap"}, nullptr, VALUE(compute_capability(gpu))},
      {{"utilization.gpu"}, "%", VALUE(utilization(gpu, false))},
      {{"utilization.memory"}, "%", VALUE(utilization(gpu, true))},
      {{"utilization.encoder"}, "%", VALUE(engine_utilization(gpu, "nvmlDeviceGetEncoderUtilization"))},
      {{"utilization.decoder"}, "%", VALUE(engine_utilization(gpu, "nvmlDeviceGetDecoderUtilization"))},
      {{"utilization.jpeg"}, "%", VALUE(engine_utilization(gpu, "nvmlDeviceGetJpgUtilization"))},
      {{"utilization.ofa"}, "%", VALUE(engine_utilization(gpu, "nvmlDeviceGetOfaUtilization"))},
      {{"encoder.stats.sessionCount"}, nullptr, VALUE(encoder_stats(gpu).sessions)},
      {{"encoder.stats.averageFps"}, nullptr, VALUE(encoder_stats(gpu).frames_per_second)},
      {{"encoder.stats.averageLatency"}, nullptr, VALUE(encoder_stats(gpu).latency)},
      {{"ecc.mode.current"}, nullptr, VALUE(ecc_mode(gpu, false))},
      {{"ecc.mode.pending"}, nullptr, VALUE(ecc_mode(gpu, true))},
  };
  add(fields, kAfterClockReasons);
  add_ecc_errors(fields);
  static constexpr Row kAfterEccErrors[] = {
      {{"retired_pages.single_bit_ecc.count", "retired_pages.sbe"}, nullptr, VALUE(retired_pages(gpu, 0))},
      {{"retired_pages.double_bit.count", "retired_pages.dbe"}, nullptr, VALUE(retired_pages(gpu, 1))},
      {{"retired_pages.pending"}, nullptr, VALUE(retirement_pending(gpu))},
      {{"temperature.gpu"}, nullptr, VALUE(temperature(gpu))},
      {{"temperature.gpu.tlimit"}, nullptr, VALUE(number(temperature_margin(gpu)))},
      {{"temperature.memory"}, nullptr, VALUE(plain(memory_temperature(gpu)))},
      {{"power.management"}, nullptr, ENABLED("nvmlDeviceGetPowerManagementMode")},
      {{"power.draw"}, "W", VALUE(power(gpu, "nvmlDeviceGetPowerUsage"))},
      {{"power.draw.average"}, "W", VALUE(power_field(gpu, 185, 0))},
      {{"power.draw.instant"}, "W", VALUE(power_field(gpu, 186, 0))},
      {{"power.limit"}, "W", VALUE(power(gpu, "nvmlDeviceGetPowerManagementLimit"))},
      {{"enforced.power.limit"}, "W", VALUE(power(gpu, "nvmlDeviceGetEnforcedPowerLimit"))},
      {{"power.default_limit"}, "W", VALUE(power(gpu, "nvmlDeviceGetPowerManagementDefaultLimit"))},
      {{"power.min_limit"}, "W", VALUE(power_limit(gpu, false))},
      {{"power.max_limit"}, "W", VALUE(power_limit(gpu, true))},
      {{"clocks.current.graphics", "clocks.gr"}, "MHz", CLOCK("nvmlDeviceGetClockInfo", graphics)},
      {{"clocks.current.sm", "clocks.sm"}, "MHz", CLOCK("nvmlDeviceGetClockInfo", sm)},
      {{"clocks.current.memory", "clocks.mem"}, "MHz", CLOCK("nvmlDeviceGetClockInfo", memory)},
      {{"clocks.current.video", "clocks.video"}, "MHz", CLOCK("nvmlDeviceGetClockInfo", video)},
      {{"clocks.applications.graphics", "clocks.applications.gr"},
       "MHz",
       CLOCK("nvmlDeviceGetApplicationsClock", graphics)},
      {{"clocks.applications.memory", "clocks.applications.mem"},
       "MHz",
       CLOCK("nvmlDeviceGetApplicationsClock", memory)},
      {{"clocks.default_applications.graphics", "clocks.default_applications.gr"},
       "MHz",
       CLOCK("nvmlDeviceGetDefaultApplicationsClock", graphics)},
      {{"clocks.default_applications.memory", "clocks.default_applications.mem"},
       "MHz",
       CLOCK("nvmlDeviceGetDefaultApplicationsClock", memory)},
      {{"clocks.max.graphics", "clocks.max.gr"}, "MHz", CLOCK("nvmlDeviceGetMaxClockInfo", graphics)},
      {{"clocks.max.sm"}, "MHz", CLOCK("nvmlDeviceGetMaxClockInfo", sm)},
      {{"clocks.max.memory", "clocks.max.mem"}, "MHz", CLOCK("nvmlDeviceGetMaxClockInfo", memory)},
      {{"mig.mode.current"}, nullptr, VALUE(mig_mode(gpu, false))},
      {{"mig.mode.pending"}, nullptr, VALUE(mig_mode(gpu, true))},
      {{"gsp.mode.current"}, nullptr, VALUE(gsp_mode(gpu, false))},
      {{"gsp.mode.default"}, nullptr, VALUE(gsp_mode(gpu, true))},
      {{"c2c.mode"}, nullptr, NONE},
      {{"protected_memory.total"}, "MiB", NONE},
      {{"protected_memory.used"}, "MiB", NONE},
      {{"protected_memory.free"}, "MiB", NONE},
      {{"fabric.state"}, nullptr, NONE},
      {{"fabric.status"}, nullptr, NONE},
  };
  add(fields, kAfterEccErrors);
  return fields;
}

// Changes fields to those of version 580, as it was recorded on an H100 and an H200 of virtual machines.
void change_for_580(Fields& fields) {
  const std::map<std::string, Value> values = {
      {"pcie.link.gen.hostmax", {}},         {"display_mode", missing(NVML_ERROR_DEPRECATED)},
      {"c2c.mode", known("Disabled")},       {"protected_memory.total", known("0")},
      {"protected_memory.used", known("0")}, {"protected_memory.free", known("0")},
      {"fabric.state", known("N/A")},        {"fabric.status", known("N/A")},
  };
  for (Field& field : fields) {
    const auto found = values.find(field.names[0]);
    if (found != values.end()) field.value = [value = found->second](const Subject&) { return value; };
  }
}

bool is_gone(const Field& field) { return is_since_580() && field.names[0].rfind("reset_status.", 0) == 0; }

int refuse_field(const std::string& name) {
  printf("Field \"%s\" is not a valid field to query.\n\n", name.c_str());
  return kInvalidArgument;
}

Fields fields_of(Topic topic) {
  if (topic == Topic::gpu) {
    Fields fields = gpu_fields();
    if (is_since_580()) change_for_580(fields);
    return fields;
  }
  Fields fields;
  static constexpr Row kOfGpu[] = {
      {{"timestamp"}, nullptr, VALUE(known(now()))},       {{"gpu_name"}, nullptr, TEXT("nvmlDeviceGetName")},
      {{"gpu_bus_id"}, nullptr, VALUE(known(gpu.bus_id))}, {{"gpu_serial"}, nullptr, TEXT("nvmlDeviceGetSerial")},
      {{"gpu_uuid"}, nullptr, TEXT("nvmlDeviceGetUUID")},
  };
  add(fields, kOfGpu);
  switch (topic) {
    case Topic::compute_apps: {
      static constexpr Row kRows[] = {
          {{"pid"}, nullptr, PROCESS(std::to_string(subject.process->pid))},
          {{"process_name", "name"}, nullptr, PROCESS(subject.process->name)},
          {{"used_gpu_memory", "used_memory"},
           "MiB",
           VALUE(subject.process != nullptr && subject.process->bytes_known
                     ? known(std::to_string(subject.process->bytes >> 20))
                     : Value{})},
      };
      add(fields, kRows);
      break;
    }
    case Topic::accounted_apps: {
      static constexpr Row kRows[] = {
          {{"vgpu_instance"}, nullptr, NONE},           {{"pid"}, nullptr, NONE},
          {{"gpu_utilization", "gpu_util"}, "%", NONE}, {{"mem_utilization", "mem_util"}, "%", NONE},
          {{"max_memory_usage"}, "MiB", NONE},          {{"time"}, "ms", NONE},
      };
      add(fields, kRows);
      break;
    }
    case Topic::retired_pages: {
      static constexpr Row kRows[] = {
          {{"retired_pages.address"}, nullptr, NONE},
          {{"retired_pages.timestamp"}, nullptr, NONE},
          {{"retired_pages.cause"},
           nullptr,
           VALUE(known(subject.retirement_cause == 0 ? "Single Bit ECC" : "Double Bit ECC"))},
      };
      add(fields, kRows);
      break;
    }
    case Topic::remapped_rows: {
      static constexpr Row kRows[] = {
          {{"remapped_rows.correctable"}, nullptr, VALUE(remapped_rows(gpu).corrected)},
          {{"remapped_rows.uncorrectable"}, nullptr, VALUE(remapped_rows(gpu).uncorrected)},
          {{"remapped_rows.pending"}, nullptr, VALUE(remapped_rows(gpu).pending)},
          {{"remapped_rows.failure"}, nullptr, VALUE(remapped_rows(gpu).failed)},
      };
      add(fields, kRows);
      break;
    }
    case Topic::supported_clocks: {
      static constexpr Row kRows[] = {
          {{"memory", "mem"}, "MHz", VALUE(subject.memory_clock)},
          {{"graphics", "gr"}, "MHz", VALUE(subject.graphics_clock)},
      };
      add(fields, kRows);
      break;
    }
    case Topic::gpu: break;
  }
  return fields;
}

// Splits at commas.
std::vector<std::string> parts(const std::string& list) {
  std::vector<std::string> found;
  for (size_t start = 0; start <= list.size();) {
    const size_t end = std::min(list.find(',', start), list.size());
    found.push_back(list.substr(start, end - start));
    start = end + 1;
  }
  return found;
}

// Calls `print` with the subject of each row of a GPU.
template <typename Print>
void each_subject(Topic topic, const Gpu& gpu, Print print) {
  Subject subject(gpu);
  switch (topic) {
    case Topic::gpu:
    case Topic::remapped_rows: print(subject); break;
    case Topic::accounted_apps:  // accounting is off
      if (!enabled_of(gpu, "nvmlDeviceGetAccountingMode").is_known) print(subject);
      break;
    case Topic::compute_apps:
      if (!can_list_processes(gpu)) print(subject);
      for (const Process& process : processes_of(gpu, true)) {
        subject.process = &process;
        print(subject);
      }
      break;
    case Topic::retired_pages:
      // A row for each page, or for each cause where the GPU has no such pages.
      for (const unsigned cause : {0u, 1u}) {
        subject.retirement_cause = cause;
        if (!retired_pages(gpu, cause).is_known) print(subject);
      }
      break;
    case Topic::supported_clocks:
      const std::vector<unsigned> memory_clocks = supported_memory_clocks(gpu);
      if (memory_clocks.empty()) print(subject);
      for (const unsigned memory : memory_clocks) {
        subject.memory_clock = known(std::to_string(memory));
        for (const unsigned graphics : supported_graphics_clocks(gpu, memory)) {
          subject.graphics_clock = known(std::to_string(graphics));
          print(subject);
        }
      }
  }
}

}  // namespace

int parse_format(const std::string& text, Format& format) {
  if (text.empty()) {
    printf("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.\n\n");
    return kInvalidArgument;
  }
  bool csv = false;
  for (const std::string& part : parts(text)) {
    if (part == "csv") {
      csv = true;
    } else if (part == "noheader") {
      format.header = false;
    } else if (part == "nounits") {
      format.units = false;
    } else {
      printf("Format modifier is not recognized.\n");
      return kInvalidArgument;
    }
  }
  if (csv) return 0;
  printf("Format modifier --format=csv is mandatory.\n");
  return kInvalidArgument;
}

int Query::parse(const std::string& list, Topic topic) {
  topic_ = topic;
  const Fields fields = fields_of(topic);
  for (const std::string& part : parts(list)) {
    const auto is_called = [&](const Field& field) {
      return std::find(field.names.begin(), field.names.end(), part) != field.names.end();
    };
    const auto found = std::find_if(fields.begin(), fields.end(), is_called);
    if (found == fields.end()) return refuse_field(part);
    fields_.push_back(static_cast<size_t>(found - fields.begin()));
  }
  return 0;
}

int Query::refuse_gone() const {
  const Fields fields = fields_of(topic_);
  for (const size_t at : fields_)
    if (is_gone(fields[at])) return refuse_field(fields[at].names[0]);
  return 0;
}

void Query::print_header(const Format& format) const {
  if (!format.header) return;
  const Fields fields = fields_of(topic_);
  std::string line;
  for (const size_t at : fields_) {
    // The units stay here even with nounits.
    line += (line.empty() ? "" : ", ") + fields[at].names[0];
    if (fields[at].unit != nullptr) line += " [" + std::string(fields[at].unit) + "]";
  }
  puts(line.c_str());
}

void Query::print_rows(const std::vector<Gpu>& gpus, const Format& format) const {
  const Fields fields = fields_of(topic_);
  for (const Gpu& gpu : gpus) {
    each_subject(topic_, gpu, [&](const Subject& subject) {
      std::string line;
      for (size_t i = 0; i < fields_.size(); i++) {
        const Field& field = fields[fields_[i]];
        const Value value = field.value(subject);
        if (i > 0) line += ", ";
        line += value.is_known ? value.text : std::string("[").append(value.text) + "]";
        if (format.units && field.unit != nullptr && value.is_known) line += " " + std::string(field.unit);
      }
      puts(line.c_str());
    });
  }
}

void print_fields(Topic topic) {
  for (const Field& field : fields_of(topic)) {
    std::string line;
    for (const std::string& name : field.names) line += (line.empty() ? "\"" : " or \"") + name + "\"";
    if (field.unit != nullptr) line += ", in " + std::string(field.unit);
    puts(line.c_str());
  }
}

}  // namespace smi
