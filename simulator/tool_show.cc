// machines and show: straight from the shared state, not through the simulated driver, so that it can bear witness.
#include <cstring>

#include "simulator/activity.h"
#include "simulator/tool.h"

namespace simulator {
namespace {

constexpr const char* kComputeModes[] = {"default", "exclusive-thread", "prohibited", "exclusive-process"};

const char* compute_mode(const GpuState& state) {
  const uint32_t mode = state.compute_mode;
  return mode < 4 ? kComputeModes[mode] : "unknown";
}

bool parse_json(const Arguments& arguments, bool* json) {
  *json = false;
  for (int i = 0; i < arguments.count; ++i) {
    if (strcmp(arguments.values[i], "--json") != 0) {
      usage_error("unexpected argument %s", arguments.values[i]);
      return false;
    }
    *json = true;
  }
  return true;
}

constexpr const char* kTypes[] = {"compute", "graphics", "compute+graphics", "mps-server"};

struct Process {
  ProcessEntry entry;
  const char* name;  // the name of a made-up one
};

// Hidden ones as well.
template <typename Visit>
void each_process(const Machine& machine, uint32_t index, Visit visit) {
  const Gpu& gpu = machine.description.gpus[index];
  if (shows_graphics(machine, index))
    for (uint32_t i = 0; i < gpu.graphics_count; ++i)
      visit(Process{{gpu.graphics[i].pid, kGraphics, 0, 0, gpu.graphics[i].memory_mib * kMiB, 0, 0, true},
                    gpu.graphics[i].name});
  for_each_process(machine, index, [&](const ProcessEntry& entry) { visit(Process{entry, nullptr}); });
}

// As `set` takes it: "hang=power,memory error=pci:21".
std::string faults_text(const Faults& faults) {
  std::string text;
  const auto add = [&](const char* key, auto value, bool with_value) {
    std::string list;
    bool all = true;
    for (unsigned call = 0; call < kCalls; ++call) {
      all = all && value(call) && value(call) == value(0);
      if (!value(call)) continue;
      if (!list.empty()) list += ",";
      list += kCallNames[call];
      if (with_value) list += ":" + std::to_string(value(call));
    }
    if (all) list = with_value ? "all:" + std::to_string(value(0)) : "all";
    if (!list.empty()) text += (text.empty() ? "" : " ") + std::string(key) + "=" + list;
  };
  add("hang", [&](unsigned call) { return uint32_t{(faults.hang & call_bit(call)) != 0}; }, false);
  add("latency", [&](unsigned call) { return faults.latency_us[call].load(); }, true);
  add("error", [&](unsigned call) { return faults.error[call].load(); }, true);
  return text;
}

std::string quirks_text(const Machine& machine) {
  std::string text;
  uint32_t bit = 1;
  for (const char* name : kQuirkNames) {
    if (machine.header->quirks & bit) text += (text.empty() ? "" : ",") + std::string(name);
    bit <<= 1;
  }
  return text;
}

std::string gpu_text(const GpuState& state) {
  std::string text;
  const auto add = [&](bool on, const std::string& what) {
    if (on) text += (text.empty() ? "" : " ") + what;
  };
  const uint32_t health = state.health;
  add(health & kLost, "lost");
  add(health & kResetRequired, "reset-required");
  add(health & kNoPermission, "no-permission");
  add(state.compute_mode != 0, std::string("compute-mode=") + compute_mode(state));
  add(state.mig != 0, "mig");
  add(state.display != 0, "display");
  add(state.hidden_processes != 0, "hidden-processes");
  add(state.ecc_errors != 0, "ecc-errors");
  add(state.memory_repair == kRepairPending, "memory-repair=pending");
  add(state.memory_repair == kRepairFailed, "memory-repair=failed");
  const std::string faults = faults_text(state.faults);
  add(!faults.empty(), faults);
  add(state.hidden_memory != 0, "hidden-memory=" + std::to_string(state.hidden_memory / kMiB) + "MiB");
  return text;
}

void show_text(const Machine& machine) {
  const MachineDescription& description = machine.description;
  printf("%s: %u GPUs, driver %s, CUDA %d.%d\n%s\n", description.name, machine.gpu_count, description.driver_version,
         description.cuda_version / 1000, description.cuda_version % 1000 / 10, machine.directory);
  if (const uint32_t teardown = machine.header->teardown_ms) printf("teardown=%u\n", teardown);
  if (machine.header->calls.on) printf("count=on\n");
  if (const uint32_t offset = machine.header->pid_offset) printf("pid-offset=%u\n", offset);
  if (const std::string quirks = quirks_text(machine); !quirks.empty()) printf("quirks=%s\n", quirks.c_str());
  const std::string faults = faults_text(machine.header->faults);
  if (!faults.empty()) printf("%s\n", faults.c_str());
  for (uint32_t i = 0; i < machine.gpu_count; ++i) {
    const Gpu& gpu = description.gpus[i];
    const Usage usage = usage_of(machine, i);
    const std::string text = gpu_text(machine.gpus[i]);
    printf("\nGPU %u  %s  %s\n  %llu of %llu MiB used%s%s\n", i, gpu.model->name, gpu.uuid,
           static_cast<unsigned long long>(usage.gpu / kMiB), static_cast<unsigned long long>(gpu.total() / kMiB),
           text.empty() ? "" : "  ", text.c_str());
    if (mig_on(machine, i))
      for (uint32_t unit = 1; unit < kUnits; ++unit)
        if (instance_exists(machine, i, unit))
          printf("  instance %u  %s  %s  %llu of %llu MiB used\n", unit - 1, gpu.instances[unit - 1].profile,
                 gpu.instances[unit - 1].uuid, static_cast<unsigned long long>(usage.units[unit] / kMiB),
                 static_cast<unsigned long long>(gpu.instances[unit - 1].memory / kMiB));
    each_process(machine, i, [&](const Process& process) {
      printf("  pid %u  %s  %llu MiB%s%s%s%s\n", process.entry.pid, kTypes[process.entry.type],
             static_cast<unsigned long long>(process.entry.bytes / kMiB), process.name ? "  made up: " : "",
             process.name ? process.name : "",
             process.entry.unit ? (" instance " + std::to_string(process.entry.unit - 1)).c_str() : "",
             process.entry.alive ? "" : "  (dead, not yet noticed)");
    });
  }
}

const char* boolean(bool value) { return value ? "true" : "false"; }

// Everything that is quoted comes from the machines' table, which has nothing to escape; the path may.
std::string quoted(const char* text) {
  std::string out = "\"";
  for (; *text; ++text) {
    const auto c = static_cast<unsigned char>(*text);
    char escaped[8];
    if (c == '"' || c == '\\')
      snprintf(escaped, sizeof escaped, "\\%c", c);
    else if (c < ' ')
      snprintf(escaped, sizeof escaped, "\\u%04x", c);
    else
      snprintf(escaped, sizeof escaped, "%c", c);
    out += escaped;
  }
  return out + "\"";
}

void faults_json(const Faults& faults) {
  const char* comma = "";
  printf("\"hang\":[");
  for (unsigned call = 0; call < kCalls; ++call)
    if (faults.hang & call_bit(call)) {
      printf("%s\"%s\"", comma, kCallNames[call]);
      comma = ",";
    }
  const auto map = [&](const char* name, const std::atomic<uint32_t>* values) {
    comma = "";
    printf(",\"%s\":{", name);
    for (unsigned call = 0; call < kCalls; ++call)
      if (const uint32_t value = values[call]) {
        printf("%s\"%s\":%u", comma, kCallNames[call], value);
        comma = ",";
      }
    printf("}");
  };
  printf("]");
  map("latencyMicroseconds", faults.latency_us);
  map("errors", faults.error);
}

void calls_json(const CallCounts& calls) {
  if (!calls.on) {
    printf("null");
    return;
  }
  const char* comma = "{";
  for (unsigned call = 0; call < kCalls; ++call) {
    printf("%s\"%s\":%llu", comma, kCallNames[call], static_cast<unsigned long long>(calls.made[call].load()));
    comma = ",";
  }
  printf("}");
}

void processes_json(const Machine& machine, uint32_t index) {
  const char* comma = "";
  printf("\"processes\":[");
  each_process(machine, index, [&](const Process& process) {
    const ProcessEntry& entry = process.entry;
    printf("%s{\"pid\":%u,\"type\":\"%s\",\"usedBytes\":%llu,\"contexts\":%u,\"alive\":%s,\"madeUp\":%s,\"name\":%s,",
           comma, entry.pid, kTypes[entry.type], static_cast<unsigned long long>(entry.bytes), entry.contexts,
           boolean(entry.alive), boolean(process.name), process.name ? quoted(process.name).c_str() : "null");
    if (entry.unit) {
      const MigInstance& instance = machine.description.gpus[index].instances[entry.unit - 1];
      printf("\"migUuid\":\"%s\",\"gpuInstanceId\":%u,\"computeInstanceId\":%u}", instance.uuid,
             instance.gpu_instance_id, instance.compute_instance_id);
    } else {
      printf("\"migUuid\":null,\"gpuInstanceId\":null,\"computeInstanceId\":null}");
    }
    comma = ",";
  });
  printf("]");
}

void instances_json(const Machine& machine, uint32_t index, const Usage& usage) {
  const char* comma = "";
  printf("\"migInstances\":[");
  for (uint32_t unit = 1; mig_on(machine, index) && unit < kUnits; ++unit) {
    const MigInstance& instance = machine.description.gpus[index].instances[unit - 1];
    if (!instance_exists(machine, index, unit)) continue;
    printf(
        "%s{\"index\":%u,\"uuid\":\"%s\",\"profile\":\"%s\",\"gpuInstanceId\":%u,\"computeInstanceId\":%u,"
        "\"memory\":{\"totalBytes\":%llu,\"usedBytes\":%llu}}",
        comma, unit - 1, instance.uuid, instance.profile, instance.gpu_instance_id, instance.compute_instance_id,
        static_cast<unsigned long long>(instance.memory), static_cast<unsigned long long>(usage.units[unit]));
    comma = ",";
  }
  printf("]");
}

void gpu_json(const Machine& machine, uint32_t index) {
  const Gpu& gpu = machine.description.gpus[index];
  const GpuState& state = machine.gpus[index];
  const Usage usage = usage_of(machine, index);
  const uint64_t room = gpu.total() - gpu.reserved();
  printf(
      "{\"index\":%u,\"uuid\":\"%s\",\"name\":\"%s\",\"pciBusId\":\"%08X:%02X:%02X.0\",\"memory\":{"
      "\"totalBytes\":%llu,\"reservedBytes\":%llu,\"usedBytes\":%llu,\"freeBytes\":%llu},",
      index, gpu.uuid, gpu.model->name, gpu.domain, gpu.bus & 0xff, gpu.slot & 0xff,
      static_cast<unsigned long long>(gpu.total()), static_cast<unsigned long long>(gpu.reserved()),
      static_cast<unsigned long long>(usage.gpu), static_cast<unsigned long long>(room - usage.gpu));
  printf(
      "\"powerWatts\":%.3f,\"powerLimitWatts\":%.3f,\"utilizationPercent\":%u,\"temperatureCelsius\":%u,"
      "\"computeMode\":\"%s\",\"displayActive\":%s,\"migEnabled\":%s,",
      power_of(machine, index) / 1000.0, gpu.model->power_limit_mw / 1000.0, utilization_of(machine, index),
      temperature_of(machine, index), compute_mode(state), boolean(state.display), boolean(mig_on(machine, index)));
  const uint32_t health = state.health;
  printf(
      "\"faults\":{\"lost\":%s,\"resetRequired\":%s,\"noPermission\":%s,\"hiddenProcesses\":%s,"
      "\"hiddenMemoryBytes\":%llu,",
      boolean(health & kLost), boolean(health & kResetRequired), boolean(health & kNoPermission),
      boolean(state.hidden_processes), static_cast<unsigned long long>(state.hidden_memory.load()));
  faults_json(state.faults);
  printf("},");
  instances_json(machine, index, usage);
  printf(",");
  processes_json(machine, index);
  printf("}");
}

void show_json(const Machine& machine) {
  const MachineDescription& description = machine.description;
  printf(
      "{\"machine\":\"%s\",\"directory\":%s,\"driverVersion\":\"%s\",\"cudaVersion\":%d,\"teardownMs\":%u,"
      "\"quirks\":\"%s\",\"faults\":{",
      description.name, quoted(machine.directory).c_str(), description.driver_version, description.cuda_version,
      machine.header->teardown_ms.load(), quirks_text(machine).c_str());
  faults_json(machine.header->faults);
  printf("},\"calls\":");
  calls_json(machine.header->calls);
  printf(",\"gpus\":[");
  for (uint32_t gpu = 0; gpu < machine.gpu_count; ++gpu) {
    if (gpu) printf(",");
    gpu_json(machine, gpu);
  }
  printf("]}\n");
}

}  // namespace

int command_machines(const Arguments& arguments) {
  bool json;
  if (!parse_json(arguments, &json)) return kExitUsage;
  if (json) printf("[");
  for (size_t i = 0; i < kNamedMachineCount; ++i) {
    const NamedMachine& machine = kNamedMachines[i];
    if (json)
      printf("%s{\"name\":\"%s\",\"summary\":%s}", i ? "," : "", machine.name, quoted(machine.summary).c_str());
    else
      printf("%-18s %s\n", machine.name, machine.summary);
  }
  printf(json ? "]\n" : "%-18s that many plain GPUs of 80 GiB\n", "1 to 64");
  return 0;
}

int command_show(const Machine& machine, const Arguments& arguments) {
  bool json;
  if (!parse_json(arguments, &json)) return kExitUsage;
  if (json)
    show_json(machine);
  else
    show_text(machine);
  return 0;
}

}  // namespace simulator
