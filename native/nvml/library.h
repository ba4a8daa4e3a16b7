// NVML as loaded: symbols resolved once, version differences settled here, so that no other file sees a _v2 or _v3.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "dl/library.h"
#include "nvml/abi.h"

namespace gpu_owner::nvml {

struct Memory {
  double total = NAN, used = NAN, free = NAN, reserved = NAN;  // bytes; NaN = not known
};

struct PciAddress {
  uint32_t domain = 0, bus = 0, device = 0;
  bool operator==(const PciAddress& other) const {
    return domain == other.domain && bus == other.bus && device == other.device;
  }
};

class Library {
 public:
  // Loads the library: `path` alone if not empty, else the usual places. False: see attempts() and missing().
  bool load(const std::string& path);
  // nvmlInit, once. Attaches no GPU.
  Code init();
  // nvmlShutdown: for a user of NVML that comes and goes. Ours never ends.
  Code shutdown();

  const std::string& path() const { return opened_.path; }
  // The file that the linker took for it.
  std::string file() const { return dl::loaded_from(opened_.handle); }
  const std::vector<dl::Attempt>& attempts() const { return opened_.attempts; }
  // A symbol that every NVML has and this library lacks, else empty.
  const std::string& missing() const { return missing_; }

  Code device_count(uint32_t& count) const;
  Code device_handle(uint32_t index, Device& device) const;
  // Finds one GPU without touching the others.
  Code device_handle(const std::string& uuid, Device& device) const;
  Code uuid(Device device, std::string& text) const;
  Code name(Device device, std::string& text) const;
  Code pci_bus_id(Device device, std::string& text) const;
  Code memory(Device device, Memory& memory) const;
  Code power_milliwatts(Device device, uint32_t& value) const;
  Code power_limit_milliwatts(Device device, uint32_t& value) const;
  // Since the driver was loaded; Volta and newer.
  Code energy_millijoules(Device device, uint64_t& value) const;
  Code utilization_percent(Device device, uint32_t& value) const;
  // The largest of what the driver remembers since then, in microseconds since 1970: some 14 s on an H200.
  Code peak_utilization_percent(Device device, uint64_t since, uint32_t& value) const;
  Code temperature_celsius(Device device, int32_t& value) const;
  Code compute_mode(Device device, uint32_t& value) const;
  Code display_active(Device device, uint32_t& value) const;
  Code persistence_mode(Device device, uint32_t& value) const;
  // ECC errors since the last reset that could not be corrected.
  Code uncorrectable_errors(Device device, uint64_t& count) const;
  // Whether faulty memory waits for a reset to be replaced by spare memory, and whether that has failed: rows since
  // Ampere, pages before (which don't tell of a failure).
  Code memory_repair(Device device, bool& pending, bool& failed) const;
  Code mig_mode(Device device, uint32_t& current) const;
  Code mig_max_count(Device device, uint32_t& count) const;
  Code mig_handle(Device device, uint32_t slot, Device& instance) const;
  Code gpu_instance_id(Device instance, uint32_t& id) const;
  Code compute_instance_id(Device instance, uint32_t& id) const;
  // mps: clients of an MPS server (Multi-Process Service); since Volta they are among the compute processes, too.
  enum class ProcessKind { compute, graphics, mps };
  Code processes(Device device, ProcessKind kind, std::vector<Process>& list) const;
  // Samples since then, in microseconds since 1970. NOT_FOUND: no process has computed since.
  Code process_utilization(Device device, uint64_t since, std::vector<ProcessUtilization>& list) const;
  Code driver_version(std::string& text) const;
  Code pci_address(Device device, PciAddress& address) const;
  // How far two GPUs are from each other on PCIe: nvmlGpuTopologyLevel_t.
  Code topology_level(Device first, Device second, int32_t& level) const;
  // Whether two GPUs can use NVLink between them.
  Code nvlink_peers(Device first, Device second, bool& usable) const;
  // Links are numbered from 0. INVALID_ARGUMENT or NOT_SUPPORTED: the GPU has no such link.
  Code nvlink_state(Device device, uint32_t link, bool& active) const;
  Code nvlink_remote_address(Device device, uint32_t link, PciAddress& address) const;
  // nvmlIntNvLinkDeviceType_t; since R460.
  Code nvlink_remote_type(Device device, uint32_t link, uint32_t& type) const;
  // The processors near a GPU, and the NUMA nodes, ascending.
  Code near_cpus(Device device, std::vector<uint32_t>& numbers) const;
  Code near_nodes(Device device, std::vector<uint32_t>& numbers) const;

 private:
  template <typename... Arguments>
  using Call = int (*)(Arguments...);
  struct ProcessCall {
    Call<Device, uint32_t*, void*> function;
    size_t size;  // the size of one entry
  };

  void detect_early_r535();

  dl::Opened opened_;
  std::string missing_;

  Call<> init_ = nullptr, shutdown_ = nullptr;
  Call<uint32_t*> count_ = nullptr;
  Call<uint32_t, Device*> handle_ = nullptr;
  Call<const char*, Device*> handle_by_uuid_ = nullptr;
  Call<Device, char*, uint32_t> uuid_ = nullptr, name_ = nullptr;
  Call<Device, PciInfo*> pci_ = nullptr;
  Call<Device, MemoryV1*> memory_v1_ = nullptr;
  Call<Device, MemoryV2*> memory_v2_ = nullptr;
  Call<Device, uint32_t*> power_ = nullptr, power_limit_ = nullptr, compute_mode_ = nullptr, display_active_ = nullptr;
  Call<Device, uint32_t*> persistence_ = nullptr;
  Call<Device, uint64_t*> energy_ = nullptr;
  Call<Device, uint32_t, uint32_t, unsigned long long*> ecc_errors_ = nullptr;
  Call<Device, uint32_t*, uint32_t*, uint32_t*, uint32_t*> remapped_rows_ = nullptr;
  Call<Device, uint32_t*> pages_pending_ = nullptr;
  Call<Device, Utilization*> utilization_ = nullptr;
  Call<Device, int, unsigned long long, int*, uint32_t*, UtilizationSample*> samples_ = nullptr;
  Call<Device, ProcessUtilization*, uint32_t*, unsigned long long> process_utilization_ = nullptr;
  Call<Device, TemperatureV1*> temperature_v_ = nullptr;
  Call<Device, uint32_t, uint32_t*> temperature_ = nullptr;
  Call<Device, uint32_t*, uint32_t*> mig_mode_ = nullptr;
  Call<Device, uint32_t*> mig_max_count_ = nullptr, gpu_instance_ = nullptr, compute_instance_ = nullptr;
  Call<Device, uint32_t, Device*> mig_handle_ = nullptr;
  Call<char*, uint32_t> driver_version_ = nullptr;
  Call<Device, Device, int32_t*> topology_level_ = nullptr;
  Call<Device, Device, int, int*> p2p_status_ = nullptr;
  Call<Device, uint32_t, uint32_t*> nvlink_state_ = nullptr, nvlink_remote_type_ = nullptr;
  Call<Device, uint32_t, PciInfo*> nvlink_remote_ = nullptr;
  Call<Device, uint32_t, unsigned long*> cpu_affinity_ = nullptr;
  Call<Device, uint32_t, unsigned long*, uint32_t> memory_affinity_ = nullptr;
  ProcessCall compute_[3] = {}, graphics_[3] = {}, mps_[3] = {};  // newest first
};

// NVML's name for a return code, e.g. "GPU_IS_LOST"; texts without the library.
const char* code_text(int code);

}  // namespace gpu_owner::nvml
