// MIG instances: mig -lgi and -lci.
#include <algorithm>
#include <cstdio>

#include "smi/subcommands.h"
#include "smi/values.h"

namespace smi {
namespace {

// Profiles of GPU instances: their ID in NVIDIA's list, slices of memory, and where they may begin. The driver fills
// the end first with the larger ones.
struct Profile {
  unsigned slices, id, size;
  std::vector<unsigned> starts;
};

unsigned slices_of(const Instance& instance) {
  return ask<nvmlDeviceAttributes_t>("nvmlDeviceGetAttributes_v2", instance.device).value.gpuInstanceSliceCount;
}

const Profile& profile_of(const Instance& instance) {
  static const Profile kProfiles[] = {
      {1, 19, 1, {0, 1, 2, 3, 4, 5, 6}}, {2, 14, 2, {0, 2, 4}}, {3, 9, 4, {4, 0}}, {4, 5, 4, {0}}, {7, 0, 8, {0}}};
  const unsigned slices = slices_of(instance);
  for (const Profile& profile : kProfiles) {
    if (profile.slices >= slices) return profile;
  }
  return kProfiles[4];
}

// Where each instance begins. NVML's function for it is not simulated: larger instances choose first.
std::vector<unsigned> placements(const std::vector<Instance>& instances) {
  std::vector<size_t> order(instances.size());
  for (size_t at = 0; at < order.size(); at++) order[at] = at;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return profile_of(instances[a]).slices > profile_of(instances[b]).slices;
  });
  std::vector<unsigned> starts(instances.size());
  unsigned taken = 0;  // a bit for each slice of memory
  for (const size_t at : order) {
    const Profile& profile = profile_of(instances[at]);
    for (const unsigned start : profile.starts) {
      const unsigned mask = ((1u << profile.size) - 1) << start;
      if ((taken & mask) != 0) continue;
      taken |= mask;
      starts[at] = start;
      break;
    }
  }
  return starts;
}

}  // namespace

int show_instances(const Words& words) {
  const Options options(words, {"-i --id=", "-lgi --list-gpu-instances", "-lci --list-compute-instances"});
  if (options.code() != 0) return options.code();
  const bool gpu_instances = options.has("--list-gpu-instances");
  if (!gpu_instances && !options.has("--list-compute-instances")) {
    printf("Of `nvidia-smi mig` only -lgi and -lci are simulated.\n");
    return kInvalidArgument;
  }
  std::vector<Gpu> gpus;
  const int code = find_gpus(options.value("--id", ""), gpus);
  if (code != 0) return code;
  if (std::none_of(gpus.begin(), gpus.end(), is_mig)) {
    printf("No MIG-enabled devices found.\n");
    return 0;
  }
  const char* frame = gpu_instances ? "+-------------------------------------------------------+\n"
                                    : "+--------------------------------------------------------------------+\n";
  bool any = false;
  for (const Gpu& gpu : gpus) {
    const std::vector<Instance> instances = instances_of(gpu);
    const std::vector<unsigned> starts = placements(instances);
    for (size_t at = 0; at < instances.size(); at++) {
      const Instance& instance = instances[at];
      const Profile& profile = profile_of(instance);
      if (!any && gpu_instances)
        printf(
            "%s"
            "| GPU instances:                                        |\n"
            "| GPU   Name             Profile  Instance   Placement  |\n"
            "|                          ID       ID       Start:Size |\n"
            "|=======================================================|\n",
            frame);
      else if (!any)
        printf(
            "%s"
            "| Compute instances:                                                 |\n"
            "| GPU     GPU       Name             Profile   Instance   Placement  |\n"
            "|       Instance                       ID        ID       Start:Size |\n"
            "|         ID                                                         |\n"
            "|====================================================================|\n",
            frame);
      any = true;
      const std::string name = "MIG " + instance.name;
      if (gpu_instances)
        printf("|%4u  %-18s%4u%9u%11u:%-6u|\n", gpu.index, name.c_str(), profile.id, instance.gpu_instance, starts[at],
               profile.size);
      else
        printf("|%4u%7u       %-18s%4u%10u%11u:%-6u|\n", gpu.index, instance.gpu_instance, name.c_str(),
               profile.slices - 1, instance.compute_instance, 0u, profile.slices);
      fputs(frame, stdout);
    }
  }
  if (any) return 0;
  printf("No %s instances found: Not Found\n", gpu_instances ? "GPU" : "compute");
  return kNoDevices;
}

}  // namespace smi
