#include "simulator/smi/driver.h"

#include <dlfcn.h>
#include <time.h>
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

// nvidia-smi's exit codes are NVML's codes, but not for all.
int exit_code(nvmlReturn_t code) {
  for (const int same : {2, 3, 4, 6, 8, 9, 11, 12, 13, 14, 15, 17, 18, 19, 23}) {
    if (code == same) return code;
  }
  return kFailed;
}

int unreachable(unsigned index, nvmlReturn_t code) {
  if (code == NVML_ERROR_RESET_REQUIRED) {
    printf(
        "Unable to determine the device handle for GPU%u: A GPU reset must occur before this GPU can be used again.\n"
        "\n.\n",
        index);
    return exit_code(code);
  }
  const bool lost = code == NVML_ERROR_GPU_IS_LOST;
  printf("Unable to determine the device handle for GPU%u: %s\n\n\n", index,
         lost ? "GPU is lost.  Reboot the system to recover this GPU" : error_text(code).c_str());
  return exit_code(code);
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

// A process may be in several lists: it computes and draws.
void add_process(Process process, std::vector<Process>& out) {
  for (Process& other : out) {
    if (other.pid != process.pid || other.gpu_instance != process.gpu_instance ||
        other.compute_instance != process.compute_instance)
      continue;
    if (other.type.find(process.type) == std::string::npos) other.type += "+" + process.type;
    return;
  }
  process.name = process_name(process.pid);
  out.push_back(process);
}

void add_processes(const std::string& function, nvmlDevice_t device, const char* type, std::vector<Process>& out) {
  std::vector<nvmlProcessInfo_v2_t> entries;
  // The _v3 of early R535 drivers writes larger entries; _v2 means the same in all. R450 and R460 have such entries of
  // clients of MPS, too, under the old name.
  const bool is_r450 = function.find("MPS") != std::string::npos &&
                       smi::function((function + "_v2").c_str()) == nullptr &&
                       smi::function("nvmlDeviceGetComputeRunningProcesses_v2") != nullptr;
  if (list((is_r450 ? function : function + "_v2").c_str(), device, entries)) {
    for (const auto& entry : entries)
      add_process({entry.pid, entry.usedGpuMemory, entry.usedGpuMemory != kNoBytes, entry.gpuInstanceId,
                   entry.computeInstanceId, type, ""},
                  out);
    return;
  }
  std::vector<nvmlProcessInfo_v1_t> older;
  list(function.c_str(), device, older);
  for (const auto& entry : older)
    add_process({entry.pid, entry.usedGpuMemory, entry.usedGpuMemory != kNoBytes, kNoInstance, kNoInstance, type, ""},
                out);
}

// Whether a list names the GPU. Bus IDs are "0000:19:00.0" and "00000000:19:00.0", in any case.
bool is_named(const Gpu& gpu, const std::string& ids) {
  const Answer<std::string> uuid = ask_text("nvmlDeviceGetUUID", gpu.device);
  for (size_t start = 0; start <= ids.size();) {
    const size_t end = std::min(ids.find(',', start), ids.size());
    const std::string id = ids.substr(start, end - start);
    if (id == std::to_string(gpu.index) || (uuid && id == uuid.value)) return true;
    if (id.size() >= 12 && id.size() <= gpu.bus_id.size() &&
        strcasecmp(gpu.bus_id.c_str() + gpu.bus_id.size() - id.size(), id.c_str()) == 0)
      return true;
    start = end + 1;
  }
  return false;
}

}  // namespace

void* function(const char* name) { return dlsym(library, name); }

std::string error_text(nvmlReturn_t code) {
  const auto text = reinterpret_cast<const char* (*)(nvmlReturn_t)>(function("nvmlErrorString"));
  return text != nullptr ? text(code) : "Unknown Error";
}

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
    printf(
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
        "NVIDIA "
        "driver is installed and running.\n\n");
  else
    printf("Failed to initialize NVML: %s\n", error_text(code).c_str());
  return exit_code(code);
}

Answer<std::string> ask_text(const char* name, nvmlDevice_t device) {
  char text[kTextLength] = "";
  Answer<std::string> answer;
  answer.code = call(name, device, text, kTextLength);
  answer.value = text;
  return answer;
}

std::string date() {
  const time_t now = time(nullptr);
  tm local;
  localtime_r(&now, &local);
  char text[64];
  strftime(text, sizeof text, "%a %b %e %H:%M:%S %Y", &local);
  return text;
}

std::string nvml_version() {
  char text[kTextLength] = "";
  return call("nvmlSystemGetNVMLVersion", text, kTextLength) == NVML_SUCCESS ? text : "N/A";
}

std::string driver_version() {
  char text[kTextLength] = "";
  return call("nvmlSystemGetDriverVersion", text, kTextLength) == NVML_SUCCESS ? text : "N/A";
}

bool is_since_580() { return atoi(driver_version().c_str()) >= 580; }

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

unsigned gpu_count() {
  unsigned count = 0;
  call("nvmlDeviceGetCount_v2", &count);
  return count;
}

int find_gpus(const std::string& ids, std::vector<Gpu>& gpus) {
  unsigned count = 0;
  const nvmlReturn_t counted = call("nvmlDeviceGetCount_v2", &count);
  if (counted != NVML_SUCCESS) {
    printf("Failed to count the GPUs: %s\n", error_text(counted).c_str());
    return exit_code(counted);
  }
  for (unsigned index = 0; index < count; index++) {
    Gpu gpu = {index, nullptr, ""};
    nvmlReturn_t code = call("nvmlDeviceGetHandleByIndex_v2", index, &gpu.device);
    // GPUs that this user may not use are left out.
    if (code == NVML_ERROR_NO_PERMISSION) continue;
    const Answer<nvmlPciInfo_t> pci = gpu.pci();
    if (code == NVML_SUCCESS && (pci.code == NVML_ERROR_GPU_IS_LOST || pci.code == NVML_ERROR_RESET_REQUIRED))
      code = pci.code;
    gpu.bus_id = pci ? pci.value.busId : "N/A";
    if (!ids.empty() && !is_named(gpu, ids)) continue;
    if (code != NVML_SUCCESS) return unreachable(index, code);
    gpus.push_back(gpu);
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
    instance.slot = slot;
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
  add_processes("nvmlDeviceGetComputeRunningProcesses", gpu.device, "C", processes);
  if (compute_only) return processes;
  add_processes("nvmlDeviceGetGraphicsRunningProcesses", gpu.device, "G", processes);
  add_processes("nvmlDeviceGetMPSComputeRunningProcesses", gpu.device, "M+C", processes);
  return processes;
}

bool can_list_processes(const Gpu& gpu) {
  std::vector<nvmlProcessInfo_v2_t> entries;
  std::vector<nvmlProcessInfo_v1_t> older;
  return list("nvmlDeviceGetComputeRunningProcesses_v2", gpu.device, entries) ||
         list("nvmlDeviceGetComputeRunningProcesses", gpu.device, older);
}

bool is_listed(const std::string& word, const std::string& list) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

std::string compute_mode(unsigned mode) {
  constexpr const char* kModes[] = {"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"};
  return mode < 4 ? kModes[mode] : "Unknown";
}

}  // namespace smi
