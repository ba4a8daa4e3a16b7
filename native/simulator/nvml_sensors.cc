// Memory, power, utilization, temperature, and the modes a GPU is in.
#include <cstring>
#include <ctime>

#include "simulator/nvml.h"

using namespace simulator;

namespace {

struct Memory {
  uint64_t total, reserved, free, used;
};

Memory memoryOf(const Question& question) {
  const Device device = question.device;
  const Usage usage = usageOf(*question.machine, device.gpu);
  Memory memory;
  memory.total = unitTotal(*question.machine, device.gpu, device.unit);
  memory.reserved = unitReserved(*question.machine, device.gpu, device.unit);
  memory.used = device.unit ? usage.units[device.unit] : usage.gpu;
  const uint64_t taken = memory.used + memory.reserved;
  memory.free = taken < memory.total ? memory.total - taken : 0;
  return memory;
}

// Questions that a MIG instance doesn't answer.
nvmlReturn_t askGpu(Question* question, nvmlDevice_t handle, Call call, const void* out) {
  const nvmlReturn_t result = question->ask(handle, call);
  if (result != NVML_SUCCESS) return result;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  return question->device.unit ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

}  // namespace

NVML_EXPORT nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t* out) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::Memory);
  if (result != NVML_SUCCESS) return result;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  const Memory memory = memoryOf(question);
  out->total = memory.total;
  out->free = memory.free;
  out->used = memory.total - memory.free;
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t* out) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::Memory);
  if (result != NVML_SUCCESS) return result;
  if (!driverHas(*question.machine, Symbols::EarlyR535)) return NVML_ERROR_FUNCTION_NOT_FOUND;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  if (out->version != kMemoryV2Tag) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  const Memory memory = memoryOf(question);
  out->total = memory.total;
  out->reserved = memory.reserved;
  out->free = memory.free;
  out->used = memory.used;
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetPowerUsage(nvmlDevice_t handle, unsigned* out) {
  Question question;
  const nvmlReturn_t result = askGpu(&question, handle, Call::Power, out);
  if (result == NVML_SUCCESS) *out = question.state().powerMw.load(std::memory_order_relaxed);
  return result;
}

NVML_EXPORT nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t handle, unsigned* out) {
  Question question;
  const nvmlReturn_t result = askGpu(&question, handle, Call::PowerLimit, out);
  if (result == NVML_SUCCESS) *out = question.gpu().model->powerLimitMw;
  return result;
}
NVML_EXPORT nvmlDeviceGetPowerManagementLimit(nvmlDevice_t handle, unsigned* out) {
  return nvmlDeviceGetEnforcedPowerLimit(handle, out);
}

NVML_EXPORT nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t handle, unsigned long long* out) {
  Question question;
  const nvmlReturn_t result = askGpu(&question, handle, Call::Energy, out);
  if (result != NVML_SUCCESS) return result;
  *out = hasQuirk(*question.machine, kFrozenEnergy) ? question.state().energyMj.load() : energyOf(question.state());
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t* out) {
  Question question;
  const nvmlReturn_t result = askGpu(&question, handle, Call::Utilization, out);
  if (result != NVML_SUCCESS) return result;
  if (migOn(*question.machine, question.device.gpu)) return NVML_ERROR_NOT_SUPPORTED;
  out->gpu = question.state().utilization.load(std::memory_order_relaxed);
  out->memory = out->gpu / 2;
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetTemperature(nvmlDevice_t handle, int sensor, unsigned* out) {
  Question question;
  const nvmlReturn_t result = askGpu(&question, handle, Call::Temperature, out);
  if (result != NVML_SUCCESS) return result;
  if (sensor != 0) return NVML_ERROR_INVALID_ARGUMENT;
  *out = question.state().temperature.load(std::memory_order_relaxed);
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetTemperatureV(nvmlDevice_t handle, nvmlTemperature_v1_t* out) {
  Question question;
  const nvmlReturn_t result = askGpu(&question, handle, Call::Temperature, out);
  if (result != NVML_SUCCESS) return result;
  if (!driverHas(*question.machine, Symbols::Current)) return NVML_ERROR_FUNCTION_NOT_FOUND;
  if (out->version != kTemperatureV1Tag) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (out->sensorType != 0) return NVML_ERROR_INVALID_ARGUMENT;
  out->temperature = static_cast<int>(question.state().temperature.load(std::memory_order_relaxed));
  return NVML_SUCCESS;
}

// With MIG on, a GPU is in default mode and can't be put into another.
NVML_EXPORT nvmlDeviceGetComputeMode(nvmlDevice_t handle, int* out) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::ComputeMode);
  if (result != NVML_SUCCESS) return result;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  *out = migOn(*question.machine, question.device.gpu)
             ? 0
             : static_cast<int>(question.state().computeMode.load(std::memory_order_relaxed));
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetDisplayActive(nvmlDevice_t handle, int* out) {
  Question question;
  const nvmlReturn_t result = askGpu(&question, handle, Call::Display, out);
  if (result == NVML_SUCCESS) *out = question.state().display.load(std::memory_order_relaxed) != 0;
  return result;
}
NVML_EXPORT nvmlDeviceGetDisplayMode(nvmlDevice_t handle, int* out) { return nvmlDeviceGetDisplayActive(handle, out); }

NVML_EXPORT nvmlDeviceGetPersistenceMode(nvmlDevice_t handle, int* out) {
  Question question;
  const nvmlReturn_t result = askGpu(&question, handle, Call::Persistence, out);
  if (result == NVML_SUCCESS) *out = question.machine->description.persistence;
  return result;
}

NVML_EXPORT nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count, nvmlFieldValue_t* values) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::Fields);
  if (result != NVML_SUCCESS) return result;
  if (!values || count <= 0) return NVML_ERROR_INVALID_ARGUMENT;
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  for (int i = 0; i < count; ++i) {
    nvmlFieldValue_t& value = values[i];
    value.timestamp = static_cast<long long>(now.tv_sec) * 1000000 + now.tv_nsec / 1000;
    value.latencyUsec = 0;
    value.valueType = 1;  // unsigned int
    memset(&value.value, 0, sizeof value.value);
    const bool power = value.fieldId == 185 || value.fieldId == 186;  // average, instant
    value.nvmlReturn = power ? nvmlDeviceGetPowerUsage(handle, &value.value.uiVal) : NVML_ERROR_NOT_SUPPORTED;
  }
  return NVML_SUCCESS;
}
