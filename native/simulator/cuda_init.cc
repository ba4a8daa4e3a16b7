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

pthread_mutex_t g_initMutex = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;
std::atomic<Driver*> g_driver{nullptr};
std::atomic<pid_t> g_pid{0};  // that initialised, successfully or not
CUresult g_initResult = CUDA_ERROR_NOT_INITIALIZED;
OwnSlot g_slot;

bool forkedSince() {
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
  driver->processType = kCompute;
  if (type && strcmp(type, "graphics") == 0) driver->processType = kGraphics;
  if (type && strcmp(type, "compute+graphics") == 0) driver->processType = kBoth;
  if (type && strcmp(type, "mps-server") == 0) driver->processType = kMpsServer;
  const char* utilization = getenv("GPU_OWNER_SIMULATE_UTILIZATION");
  driver->utilization = utilization ? static_cast<uint32_t>(atoi(utilization)) : 0;
  driver->deviceCount =
      visibleDevices(driver->machine, getenv("CUDA_VISIBLE_DEVICES"), getenv("CUDA_DEVICE_ORDER"), driver->devices);
  // As with real drivers, it takes longer the more GPUs are visible.
  stall(driver->machine, Call::CudaInit);
  for (uint32_t i = 0; i < driver->deviceCount; ++i) {
    const Faults& faults = driver->machine.gpus[driver->devices[i].gpu].faults;
    const auto call = static_cast<unsigned>(Call::CudaInit);
    hang(faults.hang, callBit(call));
    delay(faults.latencyUs[call]);
  }
  if (const uint32_t injected = injectedError(driver->machine, Call::CudaInit)) return static_cast<CUresult>(injected);
  if (driver->deviceCount == 0) return CUDA_ERROR_NO_DEVICE;
  g_driver.store(driver, std::memory_order_release);
  return CUDA_SUCCESS;
}

}  // namespace

Driver* initializedDriver() {
  Driver* driver = g_driver.load(std::memory_order_acquire);
  return driver && !forkedSince() ? driver : nullptr;
}

void complain(const Error& error) {
  char line[sizeof error.message + 32];
  const int length = snprintf(line, sizeof line, "gpu-owner simulator: %s\n", error.message);
  if (length > 0 && write(STDERR_FILENO, line, static_cast<size_t>(length)) < 0) return;
}

Guard::Guard() { pthread_mutex_lock(&g_mutex); }
Guard::~Guard() { pthread_mutex_unlock(&g_mutex); }

OwnSlot* ownSlot(Driver* driver) {
  if (g_slot.slot) return &g_slot;
  Error error = {};
  if (takeSlot(driver->machine, driver->processType, driver->utilization, &g_slot, &error)) return &g_slot;
  complain(error);
  return nullptr;
}

}  // namespace simulator

using namespace simulator;

CUDA_EXPORT cuInit(unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (forkedSince()) return CUDA_ERROR_NOT_INITIALIZED;
  pthread_mutex_lock(&g_initMutex);
  // Also a failure for want of devices is final: the environment is not looked at again.
  if (g_pid.load(std::memory_order_acquire) == 0) g_initResult = initialize();
  const CUresult result = g_initResult;
  pthread_mutex_unlock(&g_initMutex);
  return result;
}

CUDA_EXPORT cuDriverGetVersion(int* out) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (const Driver* driver = initializedDriver()) {
    *out = driver->machine.description.cudaVersion;
    return CUDA_SUCCESS;
  }
  auto* description = static_cast<MachineDescription*>(malloc(sizeof(MachineDescription)));
  Error error;
  const bool known = description && describe(description, &error);
  *out = known ? description->cudaVersion : 13000;
  free(description);
  return CUDA_SUCCESS;
}
