// The simulated driver as nvidia-smi sees it: a client of libnvidia-ml.so.1 like any other.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "simulator/nvml_abi.h"

namespace smi {

// The exit codes that NVIDIA documents for nvidia-smi are NVML's, where they fit.
constexpr int kInvalidArgument = 2;
constexpr int kNotAvailable = 3;
constexpr int kNoDevices = 6;
constexpr int kFailed = 255;

// An answer of the driver: a value, or the reason why there is none.
template <typename T>
struct Answer {
  nvmlReturn_t code = NVML_ERROR_NOT_SUPPORTED;
  T value = {};
  explicit operator bool() const { return code == NVML_SUCCESS; }
};

struct MemoryUse {
  uint64_t total, reserved, used, free;  // bytes
};

struct Process {
  uint32_t pid;
  uint64_t bytes;
  bool bytes_known;
  uint32_t gpu_instance, compute_instance;  // kNoInstance outside of MIG
  std::string type;                         // "C", "G", "C+G", "M+C"
  std::string name;
};
constexpr uint32_t kNoInstance = 0xffffffff;

// Opens the library that lies beside this program. 0, or the exit code, after saying why.
int open();

// The library's words for a code: "GPU is lost".
std::string error_text(nvmlReturn_t code);

// A function of the library; null where the simulated driver is too old to have it.
void* function(const char* name);

// Calls a function, with a device or without.
template <typename... Arguments>
nvmlReturn_t call(const char* name, Arguments... arguments) {
  void* found = function(name);
  if (found == nullptr) return NVML_ERROR_FUNCTION_NOT_FOUND;
  return reinterpret_cast<nvmlReturn_t (*)(Arguments...)>(found)(arguments...);
}

// Answers of functions of the form (device, T*) and (device, what, T*).
template <typename T>
Answer<T> ask(const char* name, nvmlDevice_t device) {
  Answer<T> answer;
  answer.code = call(name, device, &answer.value);
  return answer;
}
template <typename T>
Answer<T> ask(const char* name, nvmlDevice_t device, unsigned what) {
  Answer<T> answer;
  answer.code = call(name, device, what, &answer.value);
  return answer;
}
// Asks functions of the form (device, T*, T*) for the first or the second value.
template <typename T>
Answer<T> ask_pair(const char* name, nvmlDevice_t device, bool second) {
  T values[2] = {};
  Answer<T> answer;
  answer.code = call(name, device, &values[0], &values[1]);
  answer.value = values[second ? 1 : 0];
  return answer;
}
// Asks functions of the form (device, char*, length).
Answer<std::string> ask_text(const char* name, nvmlDevice_t device);

// "Wed Nov 25 23:27:04 2026"
std::string date();

std::string driver_version();
// Whether the driver is of branch 580 or newer, whose nvidia-smi was compared, too.
bool is_since_580();
std::string nvml_version();
std::string cuda_version();  // "13.0"

struct Gpu {
  unsigned index;
  nvmlDevice_t device;
  std::string bus_id;  // "00000000:19:00.0"

  Answer<MemoryUse> memory() const;
  Answer<nvmlPciInfo_t> pci() const;
};

struct Instance {
  unsigned slot;    // NVML's index: there may be gaps
  unsigned number;  // consecutive over those that exist, as `nvidia-smi -L` counts them
  nvmlDevice_t device;
  std::string name, uuid;
  unsigned gpu_instance, compute_instance;
};

// How many GPUs the driver has.
unsigned gpu_count();

// All GPUs, or those that `ids` names (index, UUID or PCI bus id, separated by commas), in the driver's order. 0, or
// the exit code, after saying why. Names of no GPU count only if all are.
int find_gpus(const std::string& ids, std::vector<Gpu>& gpus);

bool is_mig(const Gpu& gpu);
std::vector<Instance> instances_of(const Gpu& gpu);
// Some drivers can't list any.
bool can_list_processes(const Gpu& gpu);
// With `compute_only` those that compute, as --query-compute-apps lists them.
std::vector<Process> processes_of(const Gpu& gpu, bool compute_only);
Answer<MemoryUse> memory_of(nvmlDevice_t device);

// Whether a list with commas has the word.
bool is_listed(const std::string& word, const std::string& list);

// "Default", "Exclusive_Process", …
std::string compute_mode(unsigned mode);

}  // namespace smi
