// Functions that the simulated driver is too old to have. Programs choose by
// dlsym: a function that is there, and answers FUNCTION_NOT_FOUND, leads some
// of them astray. So this library, while it is loaded, takes them out of its
// own table of symbols.
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cstdlib>
#include <cstring>

#include "simulator/error.h"
#include "simulator/machines.h"
#include "simulator/state.h"

namespace simulator {
namespace {

// The first release of each, by its major version. From NVIDIA's Debian packages
// (libnvidia-ml1.symbols.in, up to 440), the libraries 470, 535 and 550, nvml.h
// of CUDA 11.8, and nvidia-ml-py for each release between and after them.
constexpr struct {
  long since;
  const char* name;
} kNewerFunctions[] = {
    {410, "nvmlDeviceGetFBCSessions"},
    {410, "nvmlDeviceGetFBCStats"},
    {410, "nvmlDeviceGetGridLicensableFeatures_v2"},
    {410, "nvmlDeviceGetRetiredPages_v2"},
    {410, "nvmlSystemGetCudaDriverVersion_v2"},
    {418, "nvmlDeviceGetFanSpeed_v2"},
    {430, "nvmlDeviceGetHostVgpuMode"},
    {430, "nvmlDeviceGetPgpuMetadataString"},
    {440, "nvmlDeviceGetGridLicensableFeatures_v3"},
    {450, "nvmlDeviceGetArchitecture"},
    {450, "nvmlDeviceGetAttributes"},
    {450, "nvmlDeviceGetAttributes_v2"},
    {450, "nvmlDeviceGetComputeInstanceId"},
    {450, "nvmlDeviceGetComputeRunningProcesses_v2"},
    {450, "nvmlDeviceGetCpuAffinityWithinScope"},
    {450, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle"},
    {450, "nvmlDeviceGetGpuInstanceById"},
    {450, "nvmlDeviceGetGpuInstanceId"},
    {450, "nvmlDeviceGetGpuInstancePossiblePlacements"},
    {450, "nvmlDeviceGetGpuInstanceProfileInfo"},
    {450, "nvmlDeviceGetGpuInstanceRemainingCapacity"},
    {450, "nvmlDeviceGetGpuInstances"},
    {450, "nvmlDeviceGetGraphicsRunningProcesses_v2"},
    {450, "nvmlDeviceGetMaxMigDeviceCount"},
    {450, "nvmlDeviceGetMemoryAffinity"},
    {450, "nvmlDeviceGetMigDeviceHandleByIndex"},
    {450, "nvmlDeviceGetMigMode"},
    {450, "nvmlDeviceGetRemappedRows"},
    {450, "nvmlDeviceGetRowRemapperHistogram"},
    {450, "nvmlDeviceIsMigDeviceHandle"},
    {450, "nvmlEventSetWait_v2"},
    {470, "nvmlDeviceGetClkMonStatus"},
    {470, "nvmlDeviceGetGpuInstancePossiblePlacements_v2"},
    {470, "nvmlDeviceGetGridLicensableFeatures_v4"},
    {470, "nvmlDeviceGetMPSComputeRunningProcesses_v2"},
    {470, "nvmlDeviceGetNvLinkRemoteDeviceType"},
    {470, "nvmlGetExcludedDeviceCount"},
    {495, "nvmlDeviceGetBusType"},
    {495, "nvmlDeviceGetIrqNum"},
    {510, "nvmlDeviceGetAdaptiveClockInfoStatus"},
    {510, "nvmlDeviceGetComputeRunningProcesses_v3"},
    {510, "nvmlDeviceGetGpuInstanceProfileInfoV"},
    {510, "nvmlDeviceGetGraphicsRunningProcesses_v3"},
    {510, "nvmlDeviceGetGspFirmwareMode"},
    {510, "nvmlDeviceGetGspFirmwareVersion"},
    {510, "nvmlDeviceGetMPSComputeRunningProcesses_v3"},
    {510, "nvmlDeviceGetMemoryBusWidth"},
    {510, "nvmlDeviceGetMemoryInfo_v2"},
    {510, "nvmlDeviceGetNumFans"},
    {510, "nvmlDeviceGetNumGpuCores"},
    {510, "nvmlDeviceGetPcieLinkMaxSpeed"},
    {510, "nvmlDeviceGetPowerSource"},
    {515, "nvmlDeviceGetDefaultEccMode"},
    {515, "nvmlDeviceGetDynamicPstatesInfo"},
    {515, "nvmlDeviceGetGpcClkVfOffset"},
    {515, "nvmlDeviceGetMinMaxClockOfPState"},
    {515, "nvmlDeviceGetMinMaxFanSpeed"},
    {515, "nvmlDeviceGetPcieSpeed"},
    {515, "nvmlDeviceGetSupportedPerformanceStates"},
    {515, "nvmlDeviceGetThermalSettings"},
    {520, "nvmlDeviceGetGpcClkMinMaxVfOffset"},
    {520, "nvmlDeviceGetMemClkMinMaxVfOffset"},
    {520, "nvmlDeviceGetMemClkVfOffset"},
    {520, "nvmlDeviceGetTargetFanSpeed"},
    {520, "nvmlGpmMetricsGet"},
    {520, "nvmlGpmQueryDeviceSupport"},
    {520, "nvmlGpmSampleAlloc"},
    {520, "nvmlGpmSampleFree"},
    {520, "nvmlGpmSampleGet"},
    {525, "nvmlDeviceGetFanControlPolicy_v2"},
    {525, "nvmlDeviceGetGpuFabricInfo"},
    {525, "nvmlDeviceGetGpuMaxPcieLinkGeneration"},
    {525, "nvmlDeviceGetVgpuCapabilities"},
    {525, "nvmlDeviceGetVgpuSchedulerCapabilities"},
    {525, "nvmlDeviceGetVgpuSchedulerLog"},
    {525, "nvmlDeviceGetVgpuSchedulerState"},
    {525, "nvmlGpmMigSampleGet"},
    {535, "nvmlDeviceGetConfComputeGpuAttestationReport"},
    {535, "nvmlDeviceGetConfComputeGpuCertificate"},
    {535, "nvmlDeviceGetConfComputeMemSizeInfo"},
    {535, "nvmlDeviceGetConfComputeProtectedMemoryUsage"},
    {535, "nvmlDeviceGetCurrentClocksEventReasons"},
    {535, "nvmlDeviceGetJpgUtilization"},
    {535, "nvmlDeviceGetLastBBXFlushTime"},
    {535, "nvmlDeviceGetModuleId"},
    {535, "nvmlDeviceGetOfaUtilization"},
    {535, "nvmlDeviceGetRunningProcessDetailList"},
    {535, "nvmlDeviceGetSramEccErrorStatus"},
    {535, "nvmlDeviceGetSupportedClocksEventReasons"},
    {535, "nvmlGpmQueryIfStreamingEnabled"},
    {550, "nvmlDeviceGetC2cModeInfoV"},
    {550, "nvmlDeviceGetGpuFabricInfoV"},
    {550, "nvmlDeviceGetNumaNodeId"},
    {550, "nvmlDeviceGetPciInfoExt"},
    {550, "nvmlDeviceGetProcessesUtilizationInfo"},
    {550, "nvmlDeviceGetVgpuHeterogeneousMode"},
    {550, "nvmlDeviceGetVgpuInstancesUtilizationInfo"},
    {550, "nvmlDeviceGetVgpuProcessesUtilizationInfo"},
    {550, "nvmlDeviceGetVgpuTypeCreatablePlacements"},
    {550, "nvmlDeviceGetVgpuTypeSupportedPlacements"},
    {555, "nvmlDeviceGetCapabilities"},
    {555, "nvmlDeviceGetClockOffsets"},
    {555, "nvmlSystemGetDriverBranch"},
    {570, "nvmlDeviceGetCoolerInfo"},
    {570, "nvmlDeviceGetCurrentClockFreqs"},
    {570, "nvmlDeviceGetDramEncryptionMode"},
    {570, "nvmlDeviceGetDriverModel_v2"},
    {570, "nvmlDeviceGetFanSpeedRPM"},
    {570, "nvmlDeviceGetMarginTemperature"},
    {570, "nvmlDeviceGetNvlinkBwMode"},
    {570, "nvmlDeviceGetNvlinkSupportedBwModes"},
    {570, "nvmlDeviceGetPerformanceModes"},
    {570, "nvmlDeviceGetPlatformInfo"},
    {570, "nvmlDeviceGetTemperatureV"},
    {580, "nvmlDeviceGetAddressingMode"},
    {580, "nvmlDeviceGetGpuInstanceProfileInfoByIdV"},
    {580, "nvmlDeviceGetNvLinkInfo"},
    {580, "nvmlDeviceGetPdi"},
    {580, "nvmlDeviceGetPowerMizerMode_v1"},
    {580, "nvmlDeviceGetRepairStatus"},
    {580, "nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts"},
};

bool driver_lacks(const MachineDescription& machine, const char* name) {
  // The first releases of 535 had no other list than that with larger entries.
  if (machine.symbols == Symbols::early_r535 && strcmp(name, "nvmlDeviceGetRunningProcessDetailList") == 0) return true;
  for (const auto& function : kNewerFunctions) {
    if (strcmp(function.name, name) == 0) return function.since > machine.release();
  }
  return false;
}

// How many symbols there are, from the hash table that the linker looks names
// up in.
size_t count_symbols(const uint32_t* hash_table) {
  const uint32_t buckets = hash_table[0], first = hash_table[1], bloom_words = hash_table[2];
  const auto* bucket = hash_table + 4 + size_t{bloom_words} * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t* chain = bucket + buckets;
  uint32_t last = 0;
  for (uint32_t i = 0; i < buckets; ++i) last = bucket[i] > last ? bucket[i] : last;
  if (last < first) return first;
  while ((chain[last - first] & 1) == 0) ++last;
  return last + 1;
}

struct Table {
  ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  size_t count = 0;
};

// This library's own table.
int find_table(dl_phdr_info* object, size_t, void* out) {
  const auto here = reinterpret_cast<ElfW(Addr)>(&kNewerFunctions);
  bool is_ours = false;
  const ElfW(Dyn)* dynamic = nullptr;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr) & segment = object->dlpi_phdr[i];
    const ElfW(Addr) start = object->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD) is_ours = is_ours || (here >= start && here < start + segment.p_memsz);
    if (segment.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(start);
  }
  if (!is_ours || dynamic == nullptr) return 0;
  // glibc has made addresses of these offsets, other libraries of C haven't.
  const auto address = [&](ElfW(Addr) at) { return at < object->dlpi_addr ? object->dlpi_addr + at : at; };
  Table& table = *static_cast<Table*>(out);
  for (; dynamic->d_tag != DT_NULL; ++dynamic) {
    const ElfW(Addr) at = address(dynamic->d_un.d_ptr);
    if (dynamic->d_tag == DT_SYMTAB) table.symbols = reinterpret_cast<ElfW(Sym)*>(at);
    if (dynamic->d_tag == DT_STRTAB) table.names = reinterpret_cast<const char*>(at);
    if (dynamic->d_tag == DT_GNU_HASH) table.count = count_symbols(reinterpret_cast<const uint32_t*>(at));
  }
  return 1;
}

__attribute__((constructor)) void hide_newer_functions() {
  static MachineDescription machine;
  Error error = {};
  const char* name = getenv("GPU_OWNER_SIMULATE");
  if (name == nullptr || name[0] == 0 || !describe(&machine, &error)) return;
  Table table;
  dl_iterate_phdr(find_table, &table);
  if (table.symbols == nullptr || table.names == nullptr || table.count == 0) return;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t start = reinterpret_cast<uintptr_t>(table.symbols) & ~(page - 1);
  const size_t size = reinterpret_cast<uintptr_t>(table.symbols + table.count) - start;
  // The build keeps code out of these pages. Where they can't be written, the
  // functions answer FUNCTION_NOT_FOUND.
  if (mprotect(reinterpret_cast<void*>(start), size, PROT_READ | PROT_WRITE) != 0) return;
  for (size_t i = 0; i < table.count; ++i) {
    ElfW(Sym) & symbol = table.symbols[i];
    if (!driver_lacks(machine, table.names + symbol.st_name)) continue;
    symbol.st_value = 0;
    symbol.st_shndx = SHN_UNDEF;
  }
  mprotect(reinterpret_cast<void*>(start), size, PROT_READ);
}

}  // namespace
}  // namespace simulator
