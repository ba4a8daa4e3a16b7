#include "nvml/library.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "dl/search.h"

namespace gpu_owner::nvml {
namespace {

constexpr const char* kSoname = "libnvidia-ml.so.1";
constexpr uint32_t kFirstProcessBuffer = 64;
constexpr uint32_t kMaxProcesses = 65536;  // a driver that wants more is not believed

template <typename Function, typename... Arguments>
Code call(Function function, Arguments... arguments) {
  return function != nullptr ? static_cast<Code>(function(arguments...)) : ERROR_FUNCTION_NOT_FOUND;
}

// Drivers have been seen to answer with what was in the memory before.
bool is_percentage(uint32_t value) { return value <= 100; }

template <typename Function>
Code read_string(Function function, Device device, std::string& text) {
  char buffer[kStringSize] = {};
  const Code code = call(function, device, buffer, static_cast<uint32_t>(sizeof buffer));
  if (code == SUCCESS) text.assign(buffer, strnlen(buffer, sizeof buffer));
  return code;
}

constexpr uint32_t kBits = sizeof(unsigned long) * 8;
constexpr uint32_t kMaxCpus = 4096, kMaxNodes = 1024;

std::vector<uint32_t> numbers_in(const unsigned long* words, size_t count) {
  std::vector<uint32_t> numbers;
  for (uint32_t i = 0; i < count * kBits; i++) {
    if ((words[i / kBits] >> i % kBits & 1) != 0) numbers.push_back(i);
  }
  return numbers;
}

}  // namespace

bool Library::load(const std::string& path) {
  opened_ = dl::open_first(path.empty() ? dl::driver_library_candidates(kSoname) : std::vector<std::string>{path});
  if (opened_.handle == nullptr) return false;
  void* library = opened_.handle;
  const auto resolve = [library](auto& function, const char* name, const char* older = nullptr) {
    return dl::resolve(library, name, function) || (older != nullptr && dl::resolve(library, older, function));
  };
  const auto need = [&](auto& function, const char* name, const char* older = nullptr) {
    if (!resolve(function, name, older) && missing_.empty()) missing_ = name;
  };
  missing_.clear();
  need(init_, "nvmlInit_v2", "nvmlInit");
  need(count_, "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount");
  need(handle_, "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex");
  need(uuid_, "nvmlDeviceGetUUID");
  need(memory_v1_, "nvmlDeviceGetMemoryInfo");
  resolve(shutdown_, "nvmlShutdown");
  resolve(memory_v2_, "nvmlDeviceGetMemoryInfo_v2");
  resolve(handle_by_uuid_, "nvmlDeviceGetHandleByUUID");
  resolve(name_, "nvmlDeviceGetName");
  resolve(pci_, "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2");
  resolve(power_, "nvmlDeviceGetPowerUsage");
  resolve(power_limit_, "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit");
  resolve(energy_, "nvmlDeviceGetTotalEnergyConsumption");
  resolve(utilization_, "nvmlDeviceGetUtilizationRates");
  resolve(samples_, "nvmlDeviceGetSamples");
  resolve(process_utilization_, "nvmlDeviceGetProcessUtilization");
  resolve(temperature_v_, "nvmlDeviceGetTemperatureV");
  resolve(temperature_, "nvmlDeviceGetTemperature");
  resolve(compute_mode_, "nvmlDeviceGetComputeMode");
  resolve(display_active_, "nvmlDeviceGetDisplayActive");
  resolve(persistence_, "nvmlDeviceGetPersistenceMode");
  resolve(ecc_errors_, "nvmlDeviceGetTotalEccErrors");
  resolve(remapped_rows_, "nvmlDeviceGetRemappedRows");
  resolve(pages_pending_, "nvmlDeviceGetRetiredPagesPendingStatus");
  resolve(mig_mode_, "nvmlDeviceGetMigMode");
  resolve(mig_max_count_, "nvmlDeviceGetMaxMigDeviceCount");
  resolve(mig_handle_, "nvmlDeviceGetMigDeviceHandleByIndex");
  resolve(gpu_instance_, "nvmlDeviceGetGpuInstanceId");
  resolve(compute_instance_, "nvmlDeviceGetComputeInstanceId");
  resolve(driver_version_, "nvmlSystemGetDriverVersion");
  resolve(topology_level_, "nvmlDeviceGetTopologyCommonAncestor");
  resolve(p2p_status_, "nvmlDeviceGetP2PStatus");
  resolve(nvlink_state_, "nvmlDeviceGetNvLinkState");
  resolve(nvlink_remote_, "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemotePciInfo");
  resolve(nvlink_remote_type_, "nvmlDeviceGetNvLinkRemoteDeviceType");
  resolve(cpu_affinity_, "nvmlDeviceGetCpuAffinity");
  resolve(memory_affinity_, "nvmlDeviceGetMemoryAffinity");
  const size_t sizes[] = {kProcessSizeV2, kProcessSizeV2, kProcessSizeV1};
  const char* const suffixes[] = {"_v3", "_v2", ""};
  for (int i = 0; i < 3; i++) {
    const std::string compute = std::string("nvmlDeviceGetComputeRunningProcesses") + suffixes[i];
    const std::string graphics = std::string("nvmlDeviceGetGraphicsRunningProcesses") + suffixes[i];
    resolve(compute_[i].function, compute.c_str());
    const std::string mps = std::string("nvmlDeviceGetMPSComputeRunningProcesses") + suffixes[i];
    resolve(graphics_[i].function, graphics.c_str());
    resolve(mps_[i].function, mps.c_str());
    compute_[i].size = graphics_[i].size = mps_[i].size = sizes[i];
  }
  // R450 and R460 gave the other lists new names with their longer entries, but not this one.
  if (compute_[1].function != nullptr && mps_[1].function == nullptr) mps_[2].size = kProcessSizeV2;
  return missing_.empty();
}

Code Library::init() {
  const Code code = call(init_);
  if (code == SUCCESS) detect_early_r535();
  return code;
}

Code Library::shutdown() { return call(shutdown_); }

// R535 drivers before 535.98 had a longer process entry under the name _v3. Found by nvitop (its pull requests 79, 89,
// 94). Told by the version: to ask a function without a device whether it exists crashes in 580.159.
void Library::detect_early_r535() {
  std::string version;
  unsigned minor = 0;
  if (driver_version(version) != SUCCESS || std::sscanf(version.c_str(), "535.%u", &minor) != 1 || minor >= 98) return;
  compute_[0].size = graphics_[0].size = mps_[0].size = kProcessSizeEarlyR535;
}

Code Library::device_count(uint32_t& count) const { return call(count_, &count); }
Code Library::device_handle(uint32_t index, Device& device) const { return call(handle_, index, &device); }
Code Library::device_handle(const std::string& uuid, Device& device) const {
  return call(handle_by_uuid_, uuid.c_str(), &device);
}

Code Library::uuid(Device device, std::string& text) const { return read_string(uuid_, device, text); }
Code Library::name(Device device, std::string& text) const { return read_string(name_, device, text); }

Code Library::pci_bus_id(Device device, std::string& text) const {
  PciInfo info = {};
  const Code code = call(pci_, device, &info);
  if (code == SUCCESS) text.assign(info.bus_id, strnlen(info.bus_id, sizeof info.bus_id));
  return code;
}

Code Library::pci_address(Device device, PciAddress& address) const {
  PciInfo info = {};
  const Code code = call(pci_, device, &info);
  if (code == SUCCESS) address = {info.domain, info.bus, info.device};
  return code;
}

Code Library::topology_level(Device first, Device second, int32_t& level) const {
  return call(topology_level_, first, second, &level);
}

Code Library::nvlink_peers(Device first, Device second, bool& usable) const {
  int status = 0;
  const Code code = call(p2p_status_, first, second, kP2pNvlink, &status);
  usable = status == kP2pOk;
  return code;
}

Code Library::nvlink_state(Device device, uint32_t link, bool& active) const {
  uint32_t state = 0;
  const Code code = call(nvlink_state_, device, link, &state);
  active = state != 0;
  return code;
}

Code Library::nvlink_remote_address(Device device, uint32_t link, PciAddress& address) const {
  PciInfo info = {};
  const Code code = call(nvlink_remote_, device, link, &info);
  if (code == SUCCESS) address = {info.domain, info.bus, info.device};
  return code;
}

Code Library::nvlink_remote_type(Device device, uint32_t link, uint32_t& type) const {
  return call(nvlink_remote_type_, device, link, &type);
}

Code Library::near_cpus(Device device, std::vector<uint32_t>& numbers) const {
  unsigned long words[kMaxCpus / kBits] = {};
  const Code code = call(cpu_affinity_, device, static_cast<uint32_t>(std::size(words)), words);
  if (code == SUCCESS) numbers = numbers_in(words, std::size(words));
  return code;
}

Code Library::near_nodes(Device device, std::vector<uint32_t>& numbers) const {
  constexpr uint32_t kScopeNode = 0;
  unsigned long words[kMaxNodes / kBits] = {};
  const Code code = call(memory_affinity_, device, static_cast<uint32_t>(std::size(words)), words, kScopeNode);
  if (code == SUCCESS) numbers = numbers_in(words, std::size(words));
  return code;
}

Code Library::memory(Device device, Memory& memory) const {
  MemoryV2 v2 = {};
  v2.version = kMemoryV2Version;
  Code code = call(memory_v2_, device, &v2);
  if (code == SUCCESS) {
    memory = {double(v2.total), double(v2.used), double(v2.free), double(v2.reserved)};
    return code;
  }
  if (code != ERROR_FUNCTION_NOT_FOUND && code != ERROR_NOT_SUPPORTED && code != ERROR_VERSION_MISMATCH) return code;
  MemoryV1 v1 = {};
  code = call(memory_v1_, device, &v1);
  if (code == SUCCESS) memory = {double(v1.total), double(v1.used), double(v1.free), NAN};
  return code;
}

Code Library::power_milliwatts(Device device, uint32_t& value) const { return call(power_, device, &value); }
Code Library::power_limit_milliwatts(Device device, uint32_t& value) const {
  return call(power_limit_, device, &value);
}

Code Library::energy_millijoules(Device device, uint64_t& value) const { return call(energy_, device, &value); }

Code Library::utilization_percent(Device device, uint32_t& value) const {
  Utilization utilization = {};
  const Code code = call(utilization_, device, &utilization);
  value = utilization.gpu;
  return code == SUCCESS && !is_percentage(value) ? ERROR_NO_DATA : code;
}

Code Library::temperature_celsius(Device device, int32_t& value) const {
  TemperatureV1 temperature = {kTemperatureV1Version, 0, 0};
  const Code code = call(temperature_v_, device, &temperature);
  value = temperature.celsius;
  if (code != ERROR_FUNCTION_NOT_FOUND && code != ERROR_NOT_SUPPORTED && code != ERROR_VERSION_MISMATCH) return code;
  uint32_t celsius = 0;
  const Code older = call(temperature_, device, 0u, &celsius);
  value = static_cast<int32_t>(celsius);
  return older;
}

Code Library::compute_mode(Device device, uint32_t& value) const { return call(compute_mode_, device, &value); }
Code Library::display_active(Device device, uint32_t& value) const { return call(display_active_, device, &value); }

Code Library::persistence_mode(Device device, uint32_t& value) const { return call(persistence_, device, &value); }

Code Library::uncorrectable_errors(Device device, uint64_t& count) const {
  constexpr uint32_t kUncorrected = 1, kSinceReset = 0;
  unsigned long long errors = 0;
  const Code code = call(ecc_errors_, device, kUncorrected, kSinceReset, &errors);
  count = errors;
  return code;
}

Code Library::memory_repair(Device device, bool& pending, bool& failed) const {
  uint32_t corrected = 0, uncorrected = 0, is_pending = 0, has_failed = 0;
  Code code = call(remapped_rows_, device, &corrected, &uncorrected, &is_pending, &has_failed);
  if (code == ERROR_NOT_SUPPORTED || code == ERROR_FUNCTION_NOT_FOUND) code = call(pages_pending_, device, &is_pending);
  pending = is_pending != 0;
  failed = has_failed != 0;
  return code;
}

Code Library::mig_mode(Device device, uint32_t& current) const {
  uint32_t pending = 0;
  return call(mig_mode_, device, &current, &pending);
}

Code Library::mig_max_count(Device device, uint32_t& count) const { return call(mig_max_count_, device, &count); }

Code Library::mig_handle(Device device, uint32_t slot, Device& instance) const {
  return call(mig_handle_, device, slot, &instance);
}

Code Library::gpu_instance_id(Device instance, uint32_t& id) const { return call(gpu_instance_, instance, &id); }
Code Library::compute_instance_id(Device instance, uint32_t& id) const {
  return call(compute_instance_, instance, &id);
}

Code Library::processes(Device device, ProcessKind kind, std::vector<Process>& list) const {
  list.clear();
  const ProcessCall* calls = kind == ProcessKind::compute ? compute_ : kind == ProcessKind::graphics ? graphics_ : mps_;
  Code code = ERROR_FUNCTION_NOT_FOUND;
  for (int version = 0; version < 3 && code == ERROR_FUNCTION_NOT_FOUND; version++) {
    const ProcessCall& newest = calls[version];
    if (newest.function == nullptr) continue;
    // One call into a buffer that is big enough already; asking for the number first would double the cost.
    alignas(uint64_t) char first[kFirstProcessBuffer * kProcessSizeEarlyR535];
    std::vector<uint64_t> larger;
    void* buffer = first;
    uint32_t room = kFirstProcessBuffer, count = room;
    code = static_cast<Code>(newest.function(device, &count, buffer));
    while (code == ERROR_INSUFFICIENT_SIZE && count < kMaxProcesses && room < kMaxProcesses) {
      room = count > room ? count : room;
      room += room / 4 + kFirstProcessBuffer;  // others may start meanwhile
      larger.resize(room * newest.size / sizeof(uint64_t));
      buffer = larger.data();
      count = room;
      code = static_cast<Code>(newest.function(device, &count, buffer));
    }
    if (code == SUCCESS && count > room) code = ERROR_INSUFFICIENT_SIZE;  // what can't be is not believed
    if (code != SUCCESS) continue;
    list.reserve(count);
    for (uint32_t i = 0; i < count; i++) {
      const char* entry = static_cast<const char*>(buffer) + i * newest.size;
      Process process = {0, kUnknownMemory, ~0u, ~0u};
      std::memcpy(&process, entry, newest.size < sizeof process ? newest.size : sizeof process);
      list.push_back(process);
    }
  }
  return code;
}

Code Library::peak_utilization_percent(Device device, uint64_t since, uint32_t& value) const {
  int type = 0;
  uint32_t count = 0;
  Code code = call(samples_, device, kUtilizationSamples, static_cast<unsigned long long>(since), &type, &count,
                   static_cast<UtilizationSample*>(nullptr));
  if (code != SUCCESS || count == 0) return code;
  std::vector<UtilizationSample> samples(count);
  code = call(samples_, device, kUtilizationSamples, static_cast<unsigned long long>(since), &type, &count,
              samples.data());
  value = 0;
  if (code != SUCCESS) return code;
  for (uint32_t i = 0; i < count && i < samples.size(); i++) {
    if (samples[i].microseconds > since && is_percentage(samples[i].value)) value = std::max(value, samples[i].value);
  }
  return code;
}

Code Library::process_utilization(Device device, uint64_t since, std::vector<ProcessUtilization>& list) const {
  Code code = ERROR_INSUFFICIENT_SIZE;
  uint32_t count = kFirstProcessBuffer;
  // Others may start meanwhile: then the next look has them.
  for (int attempt = 0; attempt < 2 && code == ERROR_INSUFFICIENT_SIZE && count < kMaxProcesses; attempt++) {
    list.resize(count);
    code = call(process_utilization_, device, list.data(), &count, static_cast<unsigned long long>(since));
  }
  list.resize(code == SUCCESS && count < list.size() ? count : code == SUCCESS ? list.size() : 0);
  const auto is_garbage = [](const ProcessUtilization& each) { return !is_percentage(each.sm); };
  list.erase(std::remove_if(list.begin(), list.end(), is_garbage), list.end());
  return code;
}

Code Library::driver_version(std::string& text) const {
  char buffer[kStringSize] = {};
  const Code code = call(driver_version_, buffer, static_cast<uint32_t>(sizeof buffer));
  if (code == SUCCESS) text.assign(buffer, strnlen(buffer, sizeof buffer));
  return code;
}

const char* code_text(int code) {
  switch (code) {
    case SUCCESS: return "success";
    case ERROR_UNINITIALIZED: return "NVML is not initialised";
    case ERROR_INVALID_ARGUMENT: return "invalid argument";
    case ERROR_NOT_SUPPORTED: return "not supported";
    case ERROR_NO_PERMISSION: return "no permission";
    case ERROR_NOT_FOUND: return "not found";
    case ERROR_INSUFFICIENT_SIZE: return "buffer too small";
    case ERROR_INSUFFICIENT_POWER: return "a power cable is not attached";
    case ERROR_DRIVER_NOT_LOADED: return "the NVIDIA driver is not loaded";
    case ERROR_IRQ_ISSUE: return "the kernel reports an interrupt problem with the GPU";
    case ERROR_LIBRARY_NOT_FOUND: return "a library of the driver could not be found";
    case ERROR_FUNCTION_NOT_FOUND: return "the driver lacks this function";
    case ERROR_GPU_IS_LOST: return "the GPU has fallen off the bus";
    case ERROR_RESET_REQUIRED: return "the GPU needs a reset";
    case ERROR_OPERATING_SYSTEM: return "the driver is blocked by the operating system";
    case ERROR_LIB_RM_VERSION_MISMATCH: return "the driver's library and kernel module have different versions";
    case ERROR_NO_DATA: return "no data";
    case ERROR_VERSION_MISMATCH: return "structure version not known to the driver";
    case ERROR_UNKNOWN: return "unknown driver error";
    default: return "driver error";
  }
}

}  // namespace gpu_owner::nvml
