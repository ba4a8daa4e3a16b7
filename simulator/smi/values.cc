#include "simulator/smi/values.h"

namespace smi {
namespace {

Value enabled(const Answer<unsigned>& answer) {
  return answer ? known(answer.value != 0 ? "Enabled" : "Disabled") : missing(answer.code);
}

Value watts(const Answer<unsigned>& milliwatts) {
  return milliwatts ? known(format("%.2f", milliwatts.value / 1000.0)) : missing(milliwatts.code);
}

Answer<unsigned> field(const Gpu& gpu, unsigned id, unsigned scope) {
  nvmlFieldValue_t value = {};
  value.fieldId = id;
  value.scopeId = scope;
  Answer<unsigned> answer;
  answer.code = call("nvmlDeviceGetFieldValues", gpu.device, 1, &value);
  if (answer) answer.code = value.nvmlReturn;
  answer.value = value.value.uiVal;
  return answer;
}

// Older drivers don't say more than that the GPU is a display controller.
nvmlPciInfoExt_v1_t extended_pci(const Gpu& gpu) {
  constexpr unsigned kDisplayController = 3;
  nvmlPciInfoExt_v1_t info = {};
  info.version = kPciInfoExtV1Tag;
  if (call("nvmlDeviceGetPciInfoExt", gpu.device, &info) != NVML_SUCCESS) info.baseClass = kDisplayController;
  return info;
}

SessionStats session_stats(nvmlReturn_t code, unsigned sessions, unsigned frames, unsigned latency) {
  if (code != NVML_SUCCESS) return {missing(code), missing(code), missing(code)};
  return {known(std::to_string(sessions)), known(std::to_string(frames)), known(std::to_string(latency))};
}

}  // namespace

Value missing(nvmlReturn_t code) {
  switch (code) {
    case NVML_ERROR_NOT_SUPPORTED:
    case NVML_ERROR_FUNCTION_NOT_FOUND: return {"N/A"};
    default: return {error_text(code)};
  }
}

Value number_of(const Gpu& gpu, const char* function) { return number(ask<unsigned>(function, gpu.device)); }
Value text_of(const Gpu& gpu, const char* function) { return text(ask_text(function, gpu.device)); }
Value enabled_of(const Gpu& gpu, const char* function) { return enabled(ask<unsigned>(function, gpu.device)); }

Value product_brand(const Gpu& gpu) {
  constexpr const char* kBrands[] = {
      "Unknown",    "Quadro",       "Tesla",      "NVS",         "GRID",       "GeForce",
      "Titan",      "NVIDIA vApps", "NVIDIA vPC", "NVIDIA vCS",  "NVIDIA vWS", "NVIDIA CloudGaming",
      "Quadro RTX", "NVIDIA RTX",   "NVIDIA",     "GeForce RTX", "Titan RTX"};
  const auto brand = ask<unsigned>("nvmlDeviceGetBrand", gpu.device);
  if (!brand) return missing(brand.code);
  return known(brand.value < sizeof kBrands / sizeof kBrands[0] ? kBrands[brand.value] : "Unknown");
}

Value architecture(const Gpu& gpu) {
  constexpr const char* kNames[] = {nullptr,  nullptr,  "Kepler",       "Maxwell", "Pascal",   "Volta",
                                    "Turing", "Ampere", "Ada Lovelace", "Hopper",  "Blackwell"};
  const auto number = ask<unsigned>("nvmlDeviceGetArchitecture", gpu.device);
  if (!number) return missing(number.code);
  const bool is_named = number.value >= 2 && number.value < sizeof kNames / sizeof kNames[0];
  return known(is_named ? kNames[number.value] : "Unknown");
}

Value compute_capability(const Gpu& gpu) {
  const auto major = ask_pair<int>("nvmlDeviceGetCudaComputeCapability", gpu.device, false);
  const auto minor = ask_pair<int>("nvmlDeviceGetCudaComputeCapability", gpu.device, true);
  return major ? known(format("%d.%d", major.value, minor.value)) : missing(major.code);
}

Value mig_mode(const Gpu& gpu, bool pending) {
  return enabled(ask_pair<unsigned>("nvmlDeviceGetMigMode", gpu.device, pending));
}
Value ecc_mode(const Gpu& gpu, bool pending) {
  return enabled(ask_pair<unsigned>("nvmlDeviceGetEccMode", gpu.device, pending));
}
// Windows' driver models
Value driver_model(const Gpu& gpu, bool pending) {
  const auto model = ask_pair<unsigned>("nvmlDeviceGetDriverModel", gpu.device, pending);
  return model ? known(model.value == 0 ? "WDDM" : "TCC") : missing(model.code);
}
Value gsp_mode(const Gpu& gpu, bool is_default) {
  return enabled(ask_pair<unsigned>("nvmlDeviceGetGspFirmwareMode", gpu.device, is_default));
}

Value inforom(const Gpu& gpu, unsigned object) {
  char version[32] = "";
  const nvmlReturn_t code = call("nvmlDeviceGetInforomVersion", gpu.device, object, version, unsigned{sizeof version});
  return code == NVML_SUCCESS ? known(version) : missing(code);
}

Value virtualization_mode(const Gpu& gpu) {
  constexpr const char* kModes[] = {"None", "Pass-Through", "VGPU", "Host VGPU", "Host VSGA"};
  const auto mode = ask<unsigned>("nvmlDeviceGetVirtualizationMode", gpu.device);
  if (!mode) return missing(mode.code);
  return known(mode.value < 5 ? kModes[mode.value] : "Unknown");
}

Value multi_gpu_board(const Gpu& gpu) {
  const auto is_one = ask<unsigned>("nvmlDeviceGetMultiGpuBoard", gpu.device);
  return is_one ? known(is_one.value != 0 ? "Yes" : "No") : missing(is_one.code);
}

Value board_id(const Gpu& gpu) {
  const auto id = ask<unsigned>("nvmlDeviceGetBoardId", gpu.device);
  return id ? known(format("0x%x", id.value)) : missing(id.code);
}

Value compute_mode_of(const Gpu& gpu) {
  const auto mode = ask<unsigned>("nvmlDeviceGetComputeMode", gpu.device);
  return mode ? known(compute_mode(mode.value)) : missing(mode.code);
}

Value performance_state(const Gpu& gpu) {
  const auto state = ask<unsigned>("nvmlDeviceGetPerformanceState", gpu.device);
  return state ? known(format("P%u", state.value)) : missing(state.code);
}

Value pci(const Gpu& gpu, PciPart part, int digits) {
  const Answer<nvmlPciInfo_t> answer = gpu.pci();
  if (!answer) return missing(answer.code);
  const nvmlPciInfo_t& info = answer.value;
  const auto number = [&] {
    switch (part) {
      case PciPart::domain: return info.domain;
      case PciPart::bus: return info.bus;
      case PciPart::device: return info.device;
      case PciPart::base_class: return extended_pci(gpu).baseClass;
      case PciPart::sub_class: return extended_pci(gpu).subClass;
      case PciPart::device_id: return info.pciDeviceId;
      case PciPart::sub_system_id: return info.pciSubSystemId;
    }
    return 0u;
  }();
  return known(format("%0*X", digits, number));
}

Value pcie_throughput(const Gpu& gpu, bool received) {
  return number(ask<unsigned>("nvmlDeviceGetPcieThroughput", gpu.device, received ? 1u : 0u));
}

Value memory(const Gpu& gpu, uint64_t MemoryUse::* part) {
  const Answer<MemoryUse> memory = gpu.memory();
  const uint64_t incomplete = is_since_580() ? (1 << 20) - 1 : 0;  // counts as one there
  return memory ? known(std::to_string(((memory.value.*part) + incomplete) >> 20)) : missing(memory.code);
}

Value bar1(const Gpu& gpu, unsigned long long Bar1::* part) {
  const auto answer = ask<Bar1>("nvmlDeviceGetBAR1MemoryInfo", gpu.device);
  return answer ? known(std::to_string((answer.value.*part) >> 20)) : missing(answer.code);
}

Value utilization(const Gpu& gpu, bool of_memory) {
  const auto rates = ask<nvmlUtilization_t>("nvmlDeviceGetUtilizationRates", gpu.device);
  if (!rates) return missing(rates.code);
  return known(std::to_string(of_memory ? rates.value.memory : rates.value.gpu));
}

Value engine_utilization(const Gpu& gpu, const char* function) {
  return number(ask_pair<unsigned>(function, gpu.device, false));
}

SessionStats encoder_stats(const Gpu& gpu) {
  unsigned sessions = 0, frames = 0, latency = 0;
  const nvmlReturn_t code = call("nvmlDeviceGetEncoderStats", gpu.device, &sessions, &frames, &latency);
  return session_stats(code, sessions, frames, latency);
}

SessionStats frame_buffer_capture_stats(const Gpu& gpu) {
  const auto stats = ask<nvmlFBCStats_t>("nvmlDeviceGetFBCStats", gpu.device);
  return session_stats(stats.code, stats.value.sessionsCount, stats.value.averageFPS, stats.value.averageLatency);
}

Value temperature(const Gpu& gpu) { return number(ask<unsigned>("nvmlDeviceGetTemperature", gpu.device, 0u)); }

Value memory_temperature(const Gpu& gpu) {
  constexpr unsigned kMemoryTemperature = 82;
  return number(field(gpu, kMemoryTemperature, 0));
}

Answer<int> temperature_margin(const Gpu& gpu) {
  nvmlMarginTemperature_v1_t margin = {};
  margin.version = kMarginTemperatureV1Tag;
  Answer<int> answer;
  answer.code = call("nvmlDeviceGetMarginTemperature", gpu.device, &margin);
  answer.value = margin.marginTemperature;
  return answer;
}

Value temperature_limit(const Gpu& gpu, unsigned id) {
  const Answer<unsigned> distance = field(gpu, id, 0);
  return distance ? known(std::to_string(static_cast<int>(distance.value))) : missing(distance.code);
}

Value temperature_threshold(const Gpu& gpu, unsigned which) {
  return number(ask<unsigned>("nvmlDeviceGetTemperatureThreshold", gpu.device, which));
}

Value power(const Gpu& gpu, const char* function) { return watts(ask<unsigned>(function, gpu.device)); }
Value power_field(const Gpu& gpu, unsigned id, unsigned scope) { return watts(field(gpu, id, scope)); }
Value power_limit(const Gpu& gpu, bool highest) {
  return watts(ask_pair<unsigned>("nvmlDeviceGetPowerManagementLimitConstraints", gpu.device, highest));
}

Value clock(const Gpu& gpu, const char* function, Clock type) {
  return number(ask<unsigned>(function, gpu.device, static_cast<unsigned>(type)));
}

Value customer_boost_clock(const Gpu& gpu) {
  return number(ask<unsigned>("nvmlDeviceGetMaxCustomerBoostClock", gpu.device, 0u));
}

std::vector<unsigned> supported_memory_clocks(const Gpu& gpu) {
  std::vector<unsigned> clocks(512);
  auto count = static_cast<unsigned>(clocks.size());
  const nvmlReturn_t code = call("nvmlDeviceGetSupportedMemoryClocks", gpu.device, &count, clocks.data());
  clocks.resize(code == NVML_SUCCESS ? count : 0);
  return clocks;
}

std::vector<unsigned> supported_graphics_clocks(const Gpu& gpu, unsigned memory_clock) {
  std::vector<unsigned> clocks(512);
  auto count = static_cast<unsigned>(clocks.size());
  const nvmlReturn_t code =
      call("nvmlDeviceGetSupportedGraphicsClocks", gpu.device, memory_clock, &count, clocks.data());
  clocks.resize(code == NVML_SUCCESS ? count : 0);
  return clocks;
}

const ClockReason kClockReasons[] = {
    {"Idle", "gpu_idle", 0x1, 0, true},
    {"Applications Clocks Setting", "applications_clocks_setting", 0x2, 0, true},
    {"SW Power Cap", "sw_power_cap", 0x4, 0, true},
    {"HW Slowdown", "hw_slowdown", 0x8, 0, true},
    {"HW Thermal Slowdown", "hw_thermal_slowdown", 0x40, 1, true},
    {"HW Power Brake Slowdown", "hw_power_brake_slowdown", 0x80, 1, true},
    {"Sync Boost", "sync_boost", 0x10, 0, true},
    {"SW Thermal Slowdown", "sw_thermal_slowdown", 0x20, 0, true},
    {"Display Clock Setting", "display_clocks_setting", 0x100, 0, false},
};
const size_t kClockReasonCount = sizeof kClockReasons / sizeof kClockReasons[0];

Answer<unsigned long long> clock_reasons(const Gpu& gpu) {
  return ask<unsigned long long>("nvmlDeviceGetCurrentClocksThrottleReasons", gpu.device);
}
Answer<unsigned long long> supported_clock_reasons(const Gpu& gpu) {
  return ask<unsigned long long>("nvmlDeviceGetSupportedClocksThrottleReasons", gpu.device);
}

Value ecc_errors(const Gpu& gpu, unsigned type, unsigned counter) {
  Answer<unsigned long long> answer;
  answer.code = call("nvmlDeviceGetTotalEccErrors", gpu.device, type, counter, &answer.value);
  return number(answer);
}

Value ecc_errors_at(const Gpu& gpu, unsigned type, unsigned counter, unsigned place) {
  Answer<unsigned long long> answer;
  answer.code = call("nvmlDeviceGetMemoryErrorCounter", gpu.device, type, counter, place, &answer.value);
  return number(answer);
}

Value retired_pages(const Gpu& gpu, unsigned cause) {
  Answer<unsigned> answer;
  unsigned long long addresses[64];
  answer.value = 64;
  answer.code = call("nvmlDeviceGetRetiredPages", gpu.device, cause, &answer.value, &addresses[0]);
  return number(answer);
}

Value retirement_pending(const Gpu& gpu) {
  const auto pending = ask<unsigned>("nvmlDeviceGetRetiredPagesPendingStatus", gpu.device);
  return pending ? known(pending.value != 0 ? "Yes" : "No") : missing(pending.code);
}

RemappedRows remapped_rows(const Gpu& gpu) {
  unsigned numbers[4] = {};
  const nvmlReturn_t code =
      call("nvmlDeviceGetRemappedRows", gpu.device, &numbers[0], &numbers[1], &numbers[2], &numbers[3]);
  if (code != NVML_SUCCESS) return {missing(code), missing(code), missing(code), missing(code)};
  const auto text = [&](int at) { return known(std::to_string(numbers[at])); };
  return {text(0), text(1), text(2), text(3)};
}

}  // namespace smi
