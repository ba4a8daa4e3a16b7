// Initialisation, which is counted, and what concerns the driver as a whole.
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <new>

#include "simulator/nvml.h"

namespace simulator {
namespace {

pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;
unsigned g_references = 0;
std::atomic<Machine*> g_machine{nullptr};
Machine* g_last = nullptr;

void complain(const Error& error) {
  char line[sizeof error.message + 32];
  const int length = snprintf(line, sizeof line, "gpu-owner simulator: %s\n", error.message);
  if (length > 0 && write(STDERR_FILENO, line, static_cast<size_t>(length)) < 0) return;
}

// Never unmapped, for other threads may still be in a call: kept for the next initialisation, or given up if that is
// of another machine.
Machine* open_machine(Error* error) {
  void* memory = mmap(nullptr, sizeof(Machine), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    error->set("out of memory");
    return nullptr;
  }
  auto* machine = new (memory) Machine;
  if (!attach(machine, error)) {
    munmap(memory, sizeof(Machine));
    return nullptr;
  }
  if (g_last && strcmp(g_last->directory, machine->directory) == 0 && g_last->slots_inode == machine->slots_inode) {
    detach(machine);
    munmap(memory, sizeof(Machine));
    return g_last;
  }
  g_last = machine;
  return machine;
}

nvmlReturn_t initialize() {
  nvmlReturn_t result = NVML_SUCCESS;
  pthread_mutex_lock(&g_mutex);
  if (g_references == 0) {
    Error error = {};
    Machine* machine = open_machine(&error);
    if (!machine) {
      complain(error);
      result = NVML_ERROR_DRIVER_NOT_LOADED;
    } else if (const uint32_t injected = injected_error(*machine, Call::init)) {
      result = static_cast<nvmlReturn_t>(injected);
    } else {
      g_machine.store(machine, std::memory_order_release);
    }
  }
  if (result == NVML_SUCCESS) ++g_references;
  const Machine* machine = g_last;
  pthread_mutex_unlock(&g_mutex);
  if (result == NVML_SUCCESS) stall(*machine, Call::init);
  return result;
}

// The texts of the library (550), which health checks search for. The header nvml.h has others.
const char* error_text(nvmlReturn_t code) {
  constexpr const char* kTexts[] = {
      "Success",
      "Uninitialized",
      "Invalid Argument",
      "Not Supported",
      "Insufficient Permissions",
      "Already Initialized",
      "Not Found",
      "Insufficient Size",
      "Insufficient External Power",
      "Driver Not Loaded",
      "Timeout",
      "Interrupt Request Issue",
      "NVML Shared Library Not Found",
      "Function Not Found",
      "Corrupted infoROM",
      "GPU is lost",
      "GPU requires reset",
      "GPU access blocked by the operating system",
      "Driver/library version mismatch",
      "In use by another client",
      "Insufficient Memory",
      "No data",
      "vGPU ECC not supported",
      "Insufficient Resources",
      "Invalid Frequency",
      "Argument version mismatch",
      "Requested functionality has been deprecated",
      "System is not in ready state",
      "No supported GPUs were found",
      "Resource not in correct state to perform requested operation",
  };
  return code >= 0 && code < static_cast<int>(sizeof kTexts / sizeof kTexts[0]) ? kTexts[code] : "Unknown Error";
}

}  // namespace

const Machine* initialized_machine() { return g_machine.load(std::memory_order_acquire); }

nvmlReturn_t give_text(const char* text, char* out, unsigned length) {
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  const size_t size = strlen(text) + 1;
  if (length < size) return NVML_ERROR_INSUFFICIENT_SIZE;
  memcpy(out, text, size);
  return NVML_SUCCESS;
}

}  // namespace simulator

using namespace simulator;

NVML_EXPORT nvmlInit_v2() { return initialize(); }
NVML_EXPORT nvmlInit() { return initialize(); }
// NO_GPUS = 1, NO_ATTACH = 2: nothing is attached at initialisation anyway.
NVML_EXPORT nvmlInitWithFlags(unsigned flags) { return flags & ~3u ? NVML_ERROR_INVALID_ARGUMENT : initialize(); }

NVML_EXPORT nvmlShutdown() {
  nvmlReturn_t result = NVML_SUCCESS;
  pthread_mutex_lock(&g_mutex);
  if (g_references == 0)
    result = NVML_ERROR_UNINITIALIZED;
  else if (--g_references == 0)
    g_machine.store(nullptr, std::memory_order_release);
  pthread_mutex_unlock(&g_mutex);
  return result;
}

extern "C" __attribute__((visibility("default"))) const char* nvmlErrorString(nvmlReturn_t code) {
  return error_text(code);
}

NVML_EXPORT nvmlSystemGetDriverVersion(char* out, unsigned length) {
  const Machine* machine = initialized_machine();
  return machine ? give_text(machine->description.driver_version, out, length) : NVML_ERROR_UNINITIALIZED;
}

NVML_EXPORT nvmlSystemGetNVMLVersion(char* out, unsigned length) {
  const Machine* machine = initialized_machine();
  return machine ? give_text(machine->description.nvml_version, out, length) : NVML_ERROR_UNINITIALIZED;
}

NVML_EXPORT nvmlSystemGetCudaDriverVersion_v2(int* out) {
  const Machine* machine = initialized_machine();
  if (!machine) return NVML_ERROR_UNINITIALIZED;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  *out = machine->description.cuda_version;
  return NVML_SUCCESS;
}
NVML_EXPORT nvmlSystemGetCudaDriverVersion(int* out) { return nvmlSystemGetCudaDriverVersion_v2(out); }

// "r580_00"
NVML_EXPORT nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_v1_t* out, unsigned length) {
  const Machine* machine = initialized_machine();
  if (!machine) return NVML_ERROR_UNINITIALIZED;
  if (!driver_has(*machine, Symbols::current)) return NVML_ERROR_FUNCTION_NOT_FOUND;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  if (out->version != kDriverBranchV1Tag) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  char branch[16];
  snprintf(branch, sizeof branch, "r%.3s_00", machine->description.driver_version);
  return give_text(branch, out->branch, length < sizeof out->branch ? length : sizeof out->branch);
}

// Things that no simulated machine has: cards for syncing, S-class systems, GPUs that the driver was told to leave out.
static nvmlReturn_t none(unsigned* count) {
  if (!initialized_machine()) return NVML_ERROR_UNINITIALIZED;
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}
NVML_EXPORT nvmlSystemGetHicVersion(unsigned* count, void*) { return none(count); }
NVML_EXPORT nvmlUnitGetCount(unsigned* count) { return none(count); }
NVML_EXPORT nvmlGetExcludedDeviceCount(unsigned* count) { return none(count); }

// Only the made-up processes have names of their own: the others are real.
NVML_EXPORT nvmlSystemGetProcessName(unsigned pid, char* out, unsigned length) {
  const Machine* machine = initialized_machine();
  if (!machine) return NVML_ERROR_UNINITIALIZED;
  const char* made_up = graphics_process_name(machine->description, pid);
  if (made_up) return give_text(made_up, out, length);
  if (!out || length == 0) return NVML_ERROR_INVALID_ARGUMENT;
  char path[64];
  snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  FILE* file = fopen(path, "re");
  if (!file) return NVML_ERROR_NOT_FOUND;
  const size_t size = fread(out, 1, length - 1, file);
  fclose(file);
  out[size] = 0;
  return NVML_SUCCESS;
}
