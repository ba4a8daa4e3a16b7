// set and reset. Everything is checked before anything is changed.
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <iterator>

#include "simulator/activity.h"
#include "simulator/tool.h"

namespace simulator {
namespace {

struct Target {
  const Machine* machine;
  uint64_t gpus;  // a bit per GPU; 0 = the whole machine
  bool apply;     // else only check
};

template <typename Change>
void each_gpu(const Target& target, Change change) {
  for (uint32_t gpu = 0; gpu < target.machine->gpu_count; ++gpu)
    if (target.gpus >> gpu & 1) change(target.machine->gpus[gpu], gpu);
}

template <typename Change>
void each_faults(const Target& target, Change change) {
  if (target.gpus == 0) return change(target.machine->header->faults);
  each_gpu(target, [&](GpuState& state, uint32_t) { change(state.faults); });
}

bool parse_gpus(const Machine& machine, const std::string& list, uint64_t* out) {
  *out = 0;
  if (list == "all") {
    *out = machine.gpu_count == 64 ? ~uint64_t{0} : (uint64_t{1} << machine.gpu_count) - 1;
    return true;
  }
  for (size_t at = 0; at <= list.size();) {
    size_t end = list.find(',', at);
    if (end == std::string::npos) end = list.size();
    uint32_t gpu;
    if (!find_gpu(machine, list.substr(at, end - at), &gpu)) return false;
    *out |= uint64_t{1} << gpu;
    at = end + 1;
  }
  return true;
}

// "memory,power" or "memory:100,power:20" into a value per call. `all` stands for every one.
int parse_calls(const std::string& key, const std::string& list, uint32_t most, const char* unit, bool (&named)[kCalls],
                uint32_t (&values)[kCalls]) {
  for (bool& name : named) name = false;
  if (list == "off") return 0;
  for (size_t at = 0; at <= list.size();) {
    size_t end = list.find(',', at);
    if (end == std::string::npos) end = list.size();
    std::string item = list.substr(at, end - at);
    at = end + 1;
    uint32_t value = 1;
    if (unit) {
      const size_t colon = item.find(':');
      if (colon == std::string::npos || !parse_count(item.substr(colon + 1), most, &value))
        return usage_error("%s=%s: expected CALL:%s, as in power:%s", key.c_str(), list.c_str(), unit,
                           key == "error" ? "21" : "500");
      item.erase(colon);
    }
    unsigned call = 0;
    const bool all = item == "all";
    if (!all && !find_call(item, &call))
      return usage_error("%s=%s: no call %s; there are %s, all", key.c_str(), list.c_str(), item.c_str(),
                         call_names().c_str());
    for (unsigned i = 0; i < kCalls; ++i)
      if (all || i == call) {
        named[i] = true;
        values[i] = value;
      }
  }
  return 0;
}

int set_calls(const Target& target, const std::string& key, const std::string& value) {
  bool named[kCalls];
  uint32_t values[kCalls] = {};
  const bool off = value == "off";
  const char* unit = key == "latency" ? "MICROSECONDS" : key == "error" ? "CODE" : nullptr;
  const uint32_t most = key == "latency" ? 600000000 : 9999;
  if (const int failed = parse_calls(key, value, most, unit, named, values)) return failed;
  if (!target.apply) return 0;
  each_faults(target, [&](Faults& faults) {
    if (key == "hang") {
      uint64_t mask = 0;
      for (unsigned i = 0; i < kCalls; ++i)
        if (named[i]) mask |= call_bit(i);
      faults.hang = mask;
      return;
    }
    for (unsigned i = 0; i < kCalls; ++i) {
      if (key == "latency" && (off || named[i])) faults.latency_us[i] = values[i];
      if (key == "error" && (off || named[i])) faults.error[i] = values[i];
      // The list is the whole truth about what isn't supported; other errors stay.
      if (key == "unsupported" && named[i]) faults.error[i] = 3;
      if (key == "unsupported" && !named[i] && faults.error[i] == 3) faults.error[i] = 0;
    }
  });
  return 0;
}

int set_health(const Target& target, const std::string& key, bool on) {
  constexpr uint32_t kFallenOffTheBus = 79;
  const uint32_t bit = key == "lost" ? kLost : key == "reset-required" ? kResetRequired : kNoPermission;
  each_gpu(target, [&](GpuState& state, uint32_t gpu) {
    if (on && !(state.health.fetch_or(bit) & bit) && bit == kLost) raise_xid(*target.machine, gpu, kFallenOffTheBus);
    if (!on) state.health.fetch_and(~bit);
  });
  return 0;
}

int set_switch(const Target& target, const std::string& key, const std::string& value) {
  if (value != "on" && value != "off") return usage_error("%s=%s: expected on or off", key.c_str(), value.c_str());
  const bool on = value == "on";
  if (key == "mig" && on)
    for (uint32_t gpu = 0; gpu < target.machine->gpu_count; ++gpu)
      if (target.gpus >> gpu & 1 && !target.machine->description.gpus[gpu].can_mig())
        return usage_error("GPU %u (%s) has no MIG", gpu, target.machine->description.gpus[gpu].model->name);
  if (!target.apply) return 0;
  if (key == "mig")
    each_gpu(target, [&](GpuState& state, uint32_t) { state.mig = on; });
  else if (key == "display")
    each_gpu(target, [&](GpuState& state, uint32_t) { state.display = on; });
  else if (key == "hidden-processes")
    each_gpu(target, [&](GpuState& state, uint32_t) { state.hidden_processes = on; });
  else
    return set_health(target, key, on);
  return 0;
}

int set_xid(const Target& target, const std::string& value) {
  uint32_t xid;
  if (!parse_count(value, 999, &xid) || xid == 0)
    return usage_error("xid=%s: expected a number, as in 79", value.c_str());
  if (target.apply) each_gpu(target, [&](GpuState&, uint32_t gpu) { raise_xid(*target.machine, gpu, xid); });
  return 0;
}

int set_compute_mode(const Target& target, const std::string& value) {
  constexpr const char* kModes[] = {"default", "exclusive-thread", "prohibited", "exclusive-process"};
  for (uint32_t mode = 0; mode < 4; ++mode)
    if (value == kModes[mode]) {
      if (target.apply) each_gpu(target, [&](GpuState& state, uint32_t) { state.compute_mode = mode; });
      return 0;
    }
  return usage_error("compute-mode=%s: expected default, exclusive-process, exclusive-thread or prohibited",
                     value.c_str());
}

int set_reading(const Target& target, const std::string& key, const std::string& value) {
  double number = 0;
  const bool usual = value == "default";
  const double most = key == "utilization" ? 100 : key == "power" ? 100000 : 1000;
  if (!usual && (!parse_number(value, &number) || number > most))
    return usage_error("%s=%s: expected %s, or default", key.c_str(), value.c_str(),
                       key == "utilization" ? "percent"
                       : key == "power"     ? "watts"
                                            : "degrees Celsius");
  if (!target.apply) return 0;
  each_gpu(target, [&](GpuState& state, uint32_t gpu) {
    std::atomic<uint32_t>& reading = key == "utilization" ? state.utilization
                                     : key == "power"     ? state.power_mw
                                                          : state.temperature;
    reading =
        usual ? kFollows : static_cast<uint32_t>(std::lround(key == "power" ? number * 1000 : std::floor(number)));
    note_power(*target.machine, gpu);
  });
  return 0;
}

int set_energy(const Target& target, const std::string& value) {
  uint32_t joules;
  if (!parse_count(value, UINT32_MAX / 2, &joules)) return usage_error("energy=%s: expected joules", value.c_str());
  if (!target.apply) return 0;
  each_gpu(target, [&](GpuState& state, uint32_t gpu) {
    note_power(*target.machine, gpu);
    state.energy_mj = uint64_t{joules} * 1000;
  });
  return 0;
}

// "0,2" are the instances that there are from now on; `default` is all of the machine's.
int set_instances(const Target& target, const std::string& value) {
  uint32_t wanted = 0;
  for (size_t at = 0; value != "default" && value != "none" && at <= value.size();) {
    size_t end = value.find(',', at);
    if (end == std::string::npos) end = value.size();
    uint32_t number;
    if (!parse_count(value.substr(at, end - at), kUnits - 2, &number))
      return usage_error("instances=%s: expected numbers from 0 to %u, none, or default", value.c_str(), kUnits - 2);
    wanted |= 1u << number;
    at = end + 1;
  }
  for (uint32_t gpu = 0; gpu < target.machine->gpu_count; ++gpu)
    for (uint32_t i = 0; i < kUnits - 1; ++i)
      if (target.gpus >> gpu & 1 && wanted >> i & 1 && !target.machine->description.gpus[gpu].instances[i].present)
        return usage_error("instances=%s: GPU %u of this machine has no room for an instance %u", value.c_str(), gpu,
                           i);
  if (!target.apply) return 0;
  each_gpu(target, [&](GpuState& state, uint32_t) { state.absent_instances = value == "default" ? 0 : ~wanted; });
  return 0;
}

// "serial,all-visible": those that the driver has from now on.
int set_quirks(const Target& target, const std::string& value) {
  if (target.gpus) return usage_error("quirks is the whole machine's: leave out gpu=");
  uint32_t quirks = 0;
  for (size_t at = 0; value != "off" && at <= value.size();) {
    size_t end = value.find(',', at);
    if (end == std::string::npos) end = value.size();
    const std::string item = value.substr(at, end - at);
    uint32_t bit = 1;
    for (const char* name : kQuirkNames) {
      if (item == name) break;
      bit <<= 1;
    }
    if (bit >> std::size(kQuirkNames)) return usage_error("quirks=%s: no quirk %s", value.c_str(), item.c_str());
    quirks |= bit;
    at = end + 1;
  }
  if (target.apply) target.machine->header->quirks = quirks;
  return 0;
}

int set_count(const Target& target, const std::string& value) {
  if (target.gpus) return usage_error("count is the whole machine's: leave out gpu=");
  if (value != "on" && value != "off") return usage_error("count=%s: expected on or off", value.c_str());
  if (!target.apply) return 0;
  CallCounts& calls = target.machine->header->calls;
  for (std::atomic<uint64_t>& made : calls.made) made = 0;
  calls.on = value == "on";
  return 0;
}

int set_memory_fault(const Target& target, const std::string& key, const std::string& value) {
  uint32_t errors = 0;
  const bool counts = key == "ecc-errors";
  if (counts && !parse_count(value, 1u << 30, &errors))
    return usage_error("ecc-errors=%s: expected a number", value.c_str());
  if (!counts && value != "off" && value != "pending" && value != "failed")
    return usage_error("memory-repair=%s: expected pending, failed or off", value.c_str());
  for (uint32_t gpu = 0; gpu < target.machine->gpu_count; ++gpu)
    if (target.gpus >> gpu & 1 && target.machine->description.gpus[gpu].model->ecc != Ecc::on)
      return usage_error("GPU %u (%s) has no ECC", gpu, target.machine->description.gpus[gpu].model->name);
  if (!target.apply) return 0;
  const uint32_t repair = value == "pending" ? kRepairPending : value == "failed" ? kRepairFailed : kNoRepair;
  each_gpu(target,
           [&](GpuState& state, uint32_t) { counts ? state.ecc_errors = errors : state.memory_repair = repair; });
  return 0;
}

bool is_one_of(const std::string& key, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (key == name) return true;
  return false;
}

int set_one(const Target& target, const std::string& key, const std::string& value) {
  if (key == "teardown") {
    uint32_t milliseconds;
    if (target.gpus) return usage_error("teardown is the whole machine's: leave out gpu=");
    if (!parse_count(value, kMaxTeardownMs, &milliseconds))
      return usage_error("teardown=%s: expected milliseconds, %u at most", value.c_str(), kMaxTeardownMs);
    if (target.apply) target.machine->header->teardown_ms = milliseconds;
    return 0;
  }
  if (key == "pid-offset") {
    uint32_t offset;
    if (target.gpus) return usage_error("pid-offset is the whole machine's: leave out gpu=");
    if (!parse_count(value, 1u << 22, &offset))
      return usage_error("pid-offset=%s: expected a number, %u at most", value.c_str(), 1u << 22);
    if (target.apply) target.machine->header->pid_offset = offset;
    return 0;
  }
  if (key == "count") return set_count(target, value);
  if (key == "quirks") return set_quirks(target, value);
  if (is_one_of(key, {"hang", "latency", "unsupported", "error"})) return set_calls(target, key, value);
  const bool is_switch =
      is_one_of(key, {"lost", "reset-required", "no-permission", "mig", "display", "hidden-processes"});
  if (!is_switch && !is_one_of(key, {"compute-mode", "hidden-memory", "utilization", "power", "temperature", "energy",
                                     "instances", "xid", "ecc-errors", "memory-repair"}))
    return usage_error("unknown key %s", key.c_str());
  if (!target.gpus) return usage_error("%s is a GPU's: say which, as in gpu=0 or gpu=all", key.c_str());
  if (is_switch) return set_switch(target, key, value);
  if (key == "compute-mode") return set_compute_mode(target, value);
  if (key == "xid") return set_xid(target, value);
  if (key == "energy") return set_energy(target, value);
  if (key == "instances") return set_instances(target, value);
  if (is_one_of(key, {"ecc-errors", "memory-repair"})) return set_memory_fault(target, key, value);
  if (key != "hidden-memory") return set_reading(target, key, value);
  uint64_t bytes;
  if (!parse_size(value, &bytes)) return usage_error("hidden-memory=%s: expected a size, as in 2GiB", value.c_str());
  if (target.apply) each_gpu(target, [&](GpuState& state, uint32_t) { state.hidden_memory = bytes; });
  return 0;
}

}  // namespace

int command_set(const Machine& machine, const Arguments& arguments) {
  Target target = {&machine, 0, false};
  int pairs = 0;
  const bool is_check = arguments.count > 0 && strcmp(arguments.values[0], "--check") == 0;
  for (int pass = 0; pass < (is_check ? 1 : 2); ++pass) {
    target.apply = pass == 1;
    for (int i = is_check ? 1 : 0; i < arguments.count; ++i) {
      const std::string pair = arguments.values[i];
      const size_t equals = pair.find('=');
      if (equals == std::string::npos || equals == 0) return usage_error("%s: expected KEY=VALUE", pair.c_str());
      const std::string key = pair.substr(0, equals), value = pair.substr(equals + 1);
      if (key == "gpu") {
        if (!parse_gpus(machine, value, &target.gpus))
          return usage_error("gpu=%s: expected indices from 0 to %u, UUIDs, or all", value.c_str(),
                             machine.gpu_count - 1);
        continue;
      }
      ++pairs;
      if (const int failed = set_one(target, key, value)) return failed;
    }
    target.gpus = 0;
  }
  return pairs ? 0 : usage_error("nothing to set: expected KEY=VALUE");
}

int command_reset(const Machine& machine, const Arguments& arguments) {
  if (arguments.count) return usage_error("reset takes no arguments");
  apply_defaults(machine.description, machine.header, machine.gpus);
  for (uint32_t gpu = 0; gpu < machine.gpu_count; ++gpu) note_power(machine, gpu);
  return 0;
}

}  // namespace simulator
