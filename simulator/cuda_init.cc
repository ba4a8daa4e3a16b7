// Initialisation, which is once per process, and what it fixes.
#include <sys/mman.h>
#include <unistd.h>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "simulator/cuda.h"

namespace simulator {
namespace {

pthread_mutex_t g_init_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;
std::atomic<Driver*> g_driver{nullptr};
std::atomic<pid_t> g_pid{0};  // that initialised, successfully or not
CUresult g_init_result = CUDA_ERROR_NOT_INITIALIZED;
OwnSlot g_slot;

bool forked_since() {
  const pid_t pid = g_pid.load(std::memory_order_acquire);
  return pid != 0 && pid != getpid();
}

CUresult initialize() {
  void* memory = mmap(nullptr, sizeof(Driver), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  auto* driver = new (memory) Driver;
  Error error = {};
  if (!attach(&driver->machine, &error)) {
    munmap(memory, sizeof(Driver));
    complain(error);
    return CUDA_ERROR_UNKNOWN;
  }
  g_pid.store(getpid(), std::memory_order_release);
  // How the tool makes processes of other types.
  const char* type = getenv("GPU_OWNER_SIMULATE_PROCESS_TYPE");
  driver->process_type = kCompute;
  if (type && strcmp(type, "graphics") == 0) driver->process_type = kGraphics;
  if (type && strcmp(type, "compute+graphics") == 0) driver->process_type = kBoth;
  if (type && strcmp(type, "mps-server") == 0) driver->process_type = kMpsServer;
  const char* utilization = getenv("GPU_OWNER_SIMULATE_UTILIZATION");
  driver->utilization = utilization ? static_cast<uint32_t>(atoi(utilization)) : 0;
  driver->device_count =
      visible_devices(driver->machine, getenv("CUDA_VISIBLE_DEVICES"), getenv("CUDA_DEVICE_ORDER"), driver->devices);
  // As with real drivers, it takes longer the more GPUs are visible.
  stall(driver->machine, Call::cuda_init);
  for (uint32_t i = 0; i < driver->device_count; ++i) {
    const Faults& faults = driver->machine.gpus[driver->devices[i].gpu].faults;
    const auto call = static_cast<unsigned>(Call::cuda_init);
    hang(faults.hang, call_bit(call));
    delay(faults.latency_us[call]);
  }
  if (const uint32_t injected = injected_error(driver->machine, Call::cuda_init))
    return static_cast<CUresult>(injected);
  for (uint32_t i = 0; i < driver->device_count; ++i) {
    if (const uint32_t injected = injected_error(driver->machine, driver->devices[i].gpu, Call::cuda_init))
      return static_cast<CUresult>(injected);
  }
  if (driver->device_count == 0) return CUDA_ERROR_NO_DEVICE;
  g_driver.store(driver, std::memory_order_release);
  return CUDA_SUCCESS;
}

}  // namespace

Driver* initialized_driver() {
  Driver* driver = g_driver.load(std::memory_order_acquire);
  return driver && !forked_since() ? driver : nullptr;
}

void complain(const Error& error) {
  char line[sizeof error.message + 32];
  const int length = snprintf(line, sizeof line, "gpu-owner simulator: %s\n", error.message);
  if (length > 0 && write(STDERR_FILENO, line, static_cast<size_t>(length)) < 0) return;
}

Guard::Guard() { pthread_mutex_lock(&g_mutex); }
Guard::~Guard() { pthread_mutex_unlock(&g_mutex); }

OwnSlot* own_slot(Driver* driver) {
  if (g_slot.slot) return &g_slot;
  Error error = {};
  if (take_slot(driver->machine, driver->process_type, driver->utilization, &g_slot, &error)) return &g_slot;
  complain(error);
  return nullptr;
}

}  // namespace simulator

using namespace simulator;

CUDA_EXPORT cuInit(unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (forked_since()) return CUDA_ERROR_NOT_INITIALIZED;
  pthread_mutex_lock(&g_init_mutex);
  // Also a failure for want of devices is final: the environment is not looked at again.
  if (g_pid.load(std::memory_order_acquire) == 0) g_init_result = initialize();
  const CUresult result = g_init_result;
  pthread_mutex_unlock(&g_init_mutex);
  return result;
}

CUDA_EXPORT cuDriverGetVersion(int* out) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (const Driver* driver = initialized_driver()) {
    *out = driver->machine.description.cuda_version;
    return CUDA_SUCCESS;
  }
  auto* description = static_cast<MachineDescription*>(malloc(sizeof(MachineDescription)));
  Error error;
  const bool known = description && describe(description, &error);
  *out = known ? description->cuda_version : 13000;
  free(description);
  return CUDA_SUCCESS;
}
