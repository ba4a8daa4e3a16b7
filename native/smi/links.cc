// How GPUs are joined: topo -m, and nvlink -s.
#include <cstdio>
#include <cstring>

#include "smi/subcommands.h"
#include "smi/values.h"

namespace smi {
namespace {

constexpr unsigned kMostLinks = 18;

bool is_active(const Gpu& gpu, unsigned link) {
  const auto state = ask<unsigned>("nvmlDeviceGetNvLinkState", gpu.device, link);
  return state && state.value == 1;
}

// The links between two GPUs. All links to a switch lead to all GPUs.
unsigned links_between(const Gpu& one, const Gpu& other) {
  constexpr unsigned kSwitch = 2;
  unsigned count = 0;
  for (unsigned link = 0; link < kMostLinks; link++) {
    if (!is_active(one, link)) continue;
    const auto type = ask<unsigned>("nvmlDeviceGetNvLinkRemoteDeviceType", one.device, link);
    const auto remote = ask<nvmlPciInfo_t>("nvmlDeviceGetNvLinkRemotePciInfo_v2", one.device, link);
    const bool leads_there = remote && other.bus_id == remote.value.busId;
    if ((type && type.value == kSwitch) || leads_there) count++;
  }
  return count;
}

std::string connection(const Gpu& one, const Gpu& other) {
  if (one.index == other.index) return " X ";
  const unsigned links = links_between(one, other);
  if (links > 0) return "NV" + std::to_string(links);
  Answer<unsigned> level;
  level.code = call("nvmlDeviceGetTopologyCommonAncestor", one.device, other.device, &level.value);
  if (!level) return "N/A";
  switch (level.value) {
    case 0:
    case 10: return "PIX";
    case 20: return "PXB";
    case 30: return "PHB";
    case 40: return "NODE";
    default: return "SYS";
  }
}

// A mask as "0-15,32-47"
std::string ranges(const char* function, const Gpu& gpu) {
  constexpr unsigned kWords = 64, kBits = 64;
  unsigned long mask[kWords] = {};
  const nvmlReturn_t code = strcmp(function, "nvmlDeviceGetMemoryAffinity") == 0
                                ? call(function, gpu.device, unsigned{kWords}, &mask[0], 0u)
                                : call(function, gpu.device, unsigned{kWords}, &mask[0]);
  std::string text;
  if (code != NVML_SUCCESS) return text;
  const auto has = [&](unsigned bit) { return bit < kWords * kBits && (mask[bit / kBits] >> (bit % kBits) & 1) != 0; };
  for (unsigned bit = 0; bit < kWords * kBits; bit++) {
    if (!has(bit) || (bit > 0 && has(bit - 1))) continue;
    unsigned last = bit;
    while (has(last + 1)) last++;
    text += (text.empty() ? "" : ",") + std::to_string(bit);
    if (last > bit) text += "-" + std::to_string(last);
  }
  return text;
}

}  // namespace

int show_topology(const Words& words) {
  const Options options(words, {"-m --matrix"});
  if (options.code() != 0) return options.code();
  std::vector<Gpu> gpus;
  const int code = find_gpus("", gpus);
  if (code != 0) return code;
  if (!options.has("--matrix")) {
    printf("Of `nvidia-smi topo` only -m is simulated.\n");
    return kInvalidArgument;
  }
  printf("\t\033[4m");
  for (const Gpu& gpu : gpus) printf("GPU%u\t", gpu.index);
  printf("CPU Affinity\tNUMA Affinity\tGPU NUMA ID\033[0m\n");
  for (const Gpu& gpu : gpus) {
    printf("GPU%u\t", gpu.index);
    for (const Gpu& other : gpus) printf("%s\t", connection(gpu, other).c_str());
    const Value node = number_of(gpu, "nvmlDeviceGetNumaNodeId");
    printf("%s\t%s\t\t%s\n", ranges("nvmlDeviceGetCpuAffinity", gpu).c_str(),
           ranges("nvmlDeviceGetMemoryAffinity", gpu).c_str(), node.text.c_str());
  }
  printf(
      "\nLegend:\n\n"
      "  X    = Self\n"
      "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)\n"
      "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node\n"
      "  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)\n"
      "  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)\n"
      "  PIX  = Connection traversing at most a single PCIe bridge\n"
      "  NV#  = Connection traversing a bonded set of # NVLinks\n");
  return 0;
}

int show_links(const Words& words) {
  const Options options(words, {"-i --id=", "-s --status"});
  if (options.code() != 0) return options.code();
  std::vector<Gpu> gpus;
  const int code = find_gpus(options.value("--id", ""), gpus);
  if (code != 0) return code;
  if (!options.has("--status")) {
    printf("Of `nvidia-smi nvlink` only -s is simulated.\n");
    return kInvalidArgument;
  }
  for (const Gpu& gpu : gpus) {
    if (!is_active(gpu, 0)) continue;
    printf("GPU %u: %s (UUID: %s)\n", gpu.index, ask_text("nvmlDeviceGetName", gpu.device).value.c_str(),
           ask_text("nvmlDeviceGetUUID", gpu.device).value.c_str());
    for (unsigned link = 0; link < kMostLinks; link++) {
      if (is_active(gpu, link)) printf("\t Link %u: %g GB/s\n", link, link_speed(gpu, link) / 1000.0);
    }
  }
  return 0;
}

}  // namespace smi
