#include "smi/driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace smi {
namespace {

void* library = nullptr;

constexpr unsigned kTextLength = 96;
constexpr uint64_t kNoBytes = ~uint64_t{0};

// build/simulator/libnvidia-ml.so.1, seen from build/simulator/bin/nvidia-smi.
std::string library_path() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0 || length == ssize_t{sizeof path}) return "libnvidia-ml.so.1";
  std::string text(path, static_cast<size_t>(length));
  for (int i = 0; i < 2; i++) text.erase(text.rfind('/'));
  return text + "/libnvidia-ml.so.1";
}

std::string error_text(nvmlReturn_t code) {
  const auto text = reinterpret_cast<const char* (*)(nvmlReturn_t)>(function("nvmlErrorString"));
  return text != nullptr ? text(code) : "Unknown Error";
}

int unreachable(unsigned index, nvmlReturn_t code) {
  const bool lost = code == NVML_ERROR_GPU_IS_LOST;
  printf("Unable to determine the device handle for GPU%u: %s\n", index,
         lost ? "GPU is lost.  Reboot the system to recover this GPU" : error_text(code).c_str());
  return code > 0 && code < 255 ? code : 255;
}

std::string process_name(uint32_t pid) {
  char name[1024] = "";
  if (call("nvmlSystemGetProcessName", pid, name, unsigned{sizeof name}) == NVML_SUCCESS && name[0] != 0) return name;
  return "[Not Found]";
}

// Drivers have one or several of these functions, and entries of two sizes.
template <typename Entry>
bool list(const char* name, nvmlDevice_t device, std::vector<Entry>& entries) {
  for (int tries = 0; tries < 8; tries++) {
    auto count = static_cast<unsigned>(entries.size());
    const nvmlReturn_t code = call(name, device, &count, entries.data());
    entries.resize(count);
    if (code == NVML_SUCCESS) return true;
    if (code != NVML_ERROR_INSUFFICIENT_SIZE) break;
    entries.resize(count + 4);
  }
  entries.clear();
  return false;
}

void add_processes(const std::string& function, nvmlDevice_t device, bool graphics, std::vector<Process>& out) {
  std::vector<nvmlProcessInfo_v2_t> entries;
  // The _v3 of early R535 drivers writes larger entries; _v2 means the same in all.
  if (list((function + "_v2").c_str(), device, entries)) {
    for (const auto& entry : entries)
      out.push_back({entry.pid, entry.usedGpuMemory, entry.usedGpuMemory != kNoBytes, entry.gpuInstanceId,
                     entry.computeInstanceId, graphics, process_name(entry.pid)});
    return;
  }
  std::vector<nvmlProcessInfo_v1_t> older;
  list(function.c_str(), device, older);
  for (const auto& entry : older)
    out.push_back({entry.pid, entry.usedGpuMemory, entry.usedGpuMemory != kNoBytes, kNoInstance, kNoInstance, graphics,
                   process_name(entry.pid)});
}

bool is_called(const Gpu& gpu, const std::string& id) {
  if (id == std::to_string(gpu.index)) return true;
  const Answer<std::string> uuid = ask_text("nvmlDeviceGetUUID", gpu.device);
  if (uuid && id == uuid.value) return true;
  // As "0000:19:00.0" and "00000000:19:00.0", in any case
  return id.size() >= 12 && id.size() <= gpu.bus_id.size() &&
         strcasecmp(gpu.bus_id.c_str() + gpu.bus_id.size() - id.size(), id.c_str()) == 0;
}

}  // namespace

void* function(const char* name) { return dlsym(library, name); }

int open() {
  const char* machine = getenv("GPU_OWNER_SIMULATE");
  if (machine == nullptr || machine[0] == 0) {
    fprintf(stderr, "nvidia-smi: this one shows simulated machines only: start it by `gpu-owner simulate shell`\n");
    return NVML_ERROR_DRIVER_NOT_LOADED;
  }
  library = dlopen(library_path().c_str(), RTLD_NOW);
  if (library == nullptr) {
    printf("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. %s\n", dlerror());
    return 12;
  }
  const nvmlReturn_t code = call("nvmlInit_v2");
  if (code == NVML_SUCCESS) return 0;
  if (code == NVML_ERROR_DRIVER_NOT_LOADED)
    printf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n");
  else
    printf("Failed to initialize NVML: %s\n", error_text(code).c_str());
  return code > 0 && code < 255 ? code : 255;
}

Answer<std::string> ask_text(const char* name, nvmlDevice_t device) {
  char text[kTextLength] = "";
  Answer<std::string> answer;
  answer.code = call(name, device, text, kTextLength);
  answer.value = text;
  return answer;
}

std::string driver_version() {
  char text[kTextLength] = "";
  return call("nvmlSystemGetDriverVersion", text, kTextLength) == NVML_SUCCESS ? text : "N/A";
}

std::string cuda_version() {
  int version = 0;
  if (call("nvmlSystemGetCudaDriverVersion", &version) != NVML_SUCCESS) return "N/A";
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Answer<MemoryUse> memory_of(nvmlDevice_t device) {
  Answer<MemoryUse> answer;
  nvmlMemory_v2_t memory = {};
  memory.version = kMemoryV2Tag;
  answer.code = call("nvmlDeviceGetMemoryInfo_v2", device, &memory);
  answer.value = {memory.total, memory.reserved, memory.used, memory.free};
  if (answer.code != NVML_ERROR_FUNCTION_NOT_FOUND) return answer;
  nvmlMemory_t older = {};
  answer.code = call("nvmlDeviceGetMemoryInfo", device, &older);
  answer.value = {older.total, 0, older.used, older.free};
  return answer;
}

Answer<MemoryUse> Gpu::memory() const { return memory_of(device); }

Answer<nvmlPciInfo_t> Gpu::pci() const { return ask<nvmlPciInfo_t>("nvmlDeviceGetPciInfo_v3", device); }

int find_gpus(const std::string& ids, std::vector<Gpu>& gpus) {
  unsigned count = 0;
  const nvmlReturn_t code = call("nvmlDeviceGetCount_v2", &count);
  if (code != NVML_SUCCESS) {
    printf("Failed to count the GPUs: %s\n", error_text(code).c_str());
    return code < 255 ? code : 255;
  }
  std::vector<Gpu> all;
  for (unsigned index = 0; index < count; index++) {
    Gpu gpu = {index, nullptr, ""};
    nvmlReturn_t code = call("nvmlDeviceGetHandleByIndex_v2", index, &gpu.device);
    const Answer<nvmlPciInfo_t> pci = gpu.pci();
    if (code == NVML_SUCCESS && pci.code == NVML_ERROR_GPU_IS_LOST) code = pci.code;
    if (code != NVML_SUCCESS && (ids.empty() || is_listed(std::to_string(index), ids))) return unreachable(index, code);
    gpu.bus_id = pci ? pci.value.busId : "N/A";
    if (code == NVML_SUCCESS) all.push_back(gpu);
  }
  if (ids.empty()) gpus = all;
  for (size_t start = 0; start < ids.size();) {
    const size_t end = std::min(ids.find(',', start), ids.size());
    const std::string id = ids.substr(start, end - start);
    const auto found = std::find_if(all.begin(), all.end(), [&](const Gpu& gpu) { return is_called(gpu, id); });
    if (found == all.end()) {
      printf("No devices were found: no GPU is called %s\n", id.c_str());
      return kNoDevices;
    }
    gpus.push_back(*found);
    start = end + 1;
  }
  if (!gpus.empty()) return 0;
  printf("No devices were found\n");
  return kNoDevices;
}

bool is_mig(const Gpu& gpu) {
  const Answer<unsigned> mode = ask_pair<unsigned>("nvmlDeviceGetMigMode", gpu.device, false);
  return mode && mode.value == 1;
}

std::vector<Instance> instances_of(const Gpu& gpu) {
  std::vector<Instance> instances;
  if (!is_mig(gpu)) return instances;
  const Answer<unsigned> slots = ask<unsigned>("nvmlDeviceGetMaxMigDeviceCount", gpu.device);
  for (unsigned slot = 0; slot < slots.value; slot++) {
    Instance instance = {};
    if (call("nvmlDeviceGetMigDeviceHandleByIndex", gpu.device, slot, &instance.device) != NVML_SUCCESS) continue;
    instance.number = static_cast<unsigned>(instances.size());
    instance.uuid = ask_text("nvmlDeviceGetUUID", instance.device).value;
    // "NVIDIA A100-SXM4-80GB MIG 3g.40gb"
    const std::string name = ask_text("nvmlDeviceGetName", instance.device).value;
    const size_t profile = name.rfind("MIG ");
    instance.name = profile == std::string::npos ? name : name.substr(profile + 4);
    instance.gpu_instance = ask<unsigned>("nvmlDeviceGetGpuInstanceId", instance.device).value;
    instance.compute_instance = ask<unsigned>("nvmlDeviceGetComputeInstanceId", instance.device).value;
    instances.push_back(instance);
  }
  return instances;
}

std::vector<Process> processes_of(const Gpu& gpu, bool compute_only) {
  std::vector<Process> processes;
  add_processes("nvmlDeviceGetComputeRunningProcesses", gpu.device, false, processes);
  if (!compute_only) add_processes("nvmlDeviceGetGraphicsRunningProcesses", gpu.device, true, processes);
  return processes;
}

bool is_listed(const std::string& word, const std::string& list) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

std::string compute_mode(unsigned mode) {
  constexpr const char* kModes[] = {"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"};
  return mode < 4 ? kModes[mode] : "Unknown";
}

}  // namespace smi
