// The state of a simulated machine, which anybody may have written, as programs see it through the simulated driver and
// the tool. Input: changes of the file: where, how many bytes, and which.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"
#include "simulator/nvml.h"
#include "simulator/tool.h"

// The functions of NVML that programs call.
#define DEVICE(name, ...) NVML_EXPORT nvmlDevice##name(nvmlDevice_t device, __VA_ARGS__)
NVML_EXPORT nvmlInit_v2();
NVML_EXPORT nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* out);
DEVICE(GetMigDeviceHandleByIndex, unsigned index, nvmlDevice_t* out);
DEVICE(GetMemoryInfo, nvmlMemory_t* out);
DEVICE(GetMemoryInfo_v2, nvmlMemory_v2_t* out);
DEVICE(GetName, char* out, unsigned length);
DEVICE(GetUUID, char* out, unsigned length);
DEVICE(GetPciInfo_v3, nvmlPciInfo_t* out);
DEVICE(GetMigMode, unsigned* current, unsigned* pending);
DEVICE(GetComputeMode, int* out);
DEVICE(GetPowerUsage, unsigned* out);
DEVICE(GetTemperature, int sensor, unsigned* out);
DEVICE(GetUtilizationRates, nvmlUtilization_t* out);
DEVICE(GetAttributes_v2, nvmlDeviceAttributes_t* out);
DEVICE(GetTotalEnergyConsumption, unsigned long long* out);
DEVICE(GetFanSpeed, unsigned* out);
DEVICE(GetClockInfo, unsigned type, unsigned* out);
DEVICE(GetCurrentClocksThrottleReasons, unsigned long long* out);
DEVICE(GetPcieThroughput, unsigned counter, unsigned* out);
DEVICE(GetBAR1MemoryInfo, nvmlBAR1Memory_t* out);
DEVICE(GetProcessUtilization, nvmlProcessUtilizationSample_t* out, unsigned* count, unsigned long long since);
DEVICE(GetFieldValues, int count, nvmlFieldValue_t* values);
DEVICE(RegisterEvents, unsigned long long types, nvmlEventSet_t set);
NVML_EXPORT nvmlEventSetCreate(nvmlEventSet_t* out);
NVML_EXPORT nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t* out, unsigned timeout_ms);
NVML_EXPORT nvmlEventSetFree(nvmlEventSet_t set);
DEVICE(GetComputeRunningProcesses_v3, unsigned* count, void* entries);
DEVICE(GetGraphicsRunningProcesses_v3, unsigned* count, void* entries);
DEVICE(GetMPSComputeRunningProcesses_v3, unsigned* count, void* entries);

namespace simulator {

int usage_error(const char*, ...) { return kExitUsage; }

}  // namespace simulator

namespace {

using namespace simulator;

constexpr const char* kMachine = "a100x4-mig";
Machine machine;
std::string fresh;  // the state of a new machine
OwnSlot slot;

Header* header() { return machine.header; }

void begin() {
  setenv("GPU_OWNER_SIMULATE", kMachine, 1);
  Error error;
  const bool attached = attach(&machine, &error);
  if (!attached) fprintf(stderr, "%s\n", error.message);
  EXPECT(attached && take_slot(machine, kCompute, 50, &slot, &error));
  add_context(machine, slot, 0, 1);
  add_context(machine, slot, 2, 0);
  add_bytes(machine, slot, 2, 0, 100 * kMiB);
  fresh.assign(reinterpret_cast<const char*>(header()), state_size(machine.gpu_count));
  EXPECT(nvmlInit_v2() == NVML_SUCCESS);
}

// Switches that make calls wait do what they say, for as long as they say.
void lift(Faults& faults) {
  faults.hang = 0;
  for (auto& latency : faults.latency_us) latency = 0;
}

void change(fuzz::Input& input) {
  memcpy(reinterpret_cast<char*>(header()), fresh.data(), fresh.size());
  while (!input.is_empty()) {
    const uint8_t where = input.byte();
    size_t at;
    // Where something stands, more often than anywhere.
    switch (where & 3) {
      case 0: at = input.number<uint16_t>() % sizeof(Header); break;
      case 1: at = sizeof(Header) + input.number<uint16_t>() % (machine.gpu_count * sizeof(GpuState)); break;
      case 2:
        at = static_cast<size_t>(reinterpret_cast<char*>(slot.slot) - reinterpret_cast<char*>(header())) +
             input.number<uint16_t>() % slot_stride(machine.gpu_count);
        break;
      default: at = input.number<uint32_t>() % fresh.size();
    }
    for (uint8_t count = where >> 2 & 31; count-- > 0 && !input.is_empty() && at < fresh.size(); ++at)
      reinterpret_cast<char*>(header())[at] = static_cast<char>(input.byte());
  }
  lift(header()->faults);
  for (uint32_t gpu = 0; gpu < machine.gpu_count; ++gpu) lift(machine.gpus[gpu].faults);
}

void check_unit(uint32_t gpu, uint32_t unit, const Usage& usage) {
  EXPECT((unit == 0 ? usage.gpu : usage.units[unit]) <=
         unit_total(machine, gpu, unit) - unit_reserved(machine, gpu, unit));
  overcommitted(machine, gpu, unit);
}

void ask(nvmlDevice_t device) {
  char text[96];
  unsigned number = 0, other = 0;
  int value = 0;
  nvmlMemory_t memory;
  if (nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS)
    EXPECT(memory.used <= memory.total && memory.free <= memory.total);
  nvmlMemory_v2_t memory2 = {};
  memory2.version = kMemoryV2Tag;
  if (nvmlDeviceGetMemoryInfo_v2(device, &memory2) == NVML_SUCCESS)
    EXPECT(memory2.used <= memory2.total && memory2.free <= memory2.total);
  if (nvmlDeviceGetName(device, text, sizeof text) == NVML_SUCCESS) EXPECT(memchr(text, 0, sizeof text));
  if (nvmlDeviceGetUUID(device, text, sizeof text) == NVML_SUCCESS) EXPECT(memchr(text, 0, sizeof text));
  nvmlPciInfo_t pci;
  nvmlDeviceGetPciInfo_v3(device, &pci);
  nvmlDeviceGetMigMode(device, &number, &other);
  nvmlDeviceGetComputeMode(device, &value);
  nvmlDeviceGetPowerUsage(device, &number);
  nvmlDeviceGetTemperature(device, 0, &number);
  nvmlUtilization_t utilization;
  nvmlDeviceGetUtilizationRates(device, &utilization);
  nvmlDeviceAttributes_t attributes;
  nvmlDeviceGetAttributes_v2(device, &attributes);
  unsigned long long large;
  nvmlDeviceGetTotalEnergyConsumption(device, &large);
  nvmlDeviceGetFanSpeed(device, &number);
  nvmlDeviceGetClockInfo(device, 1, &number);
  nvmlDeviceGetCurrentClocksThrottleReasons(device, &large);
  nvmlDeviceGetPcieThroughput(device, 1, &number);
  nvmlBAR1Memory_t bar1;
  if (nvmlDeviceGetBAR1MemoryInfo(device, &bar1) == NVML_SUCCESS) EXPECT(bar1.bar1Used <= bar1.bar1Total);
  nvmlFieldValue_t field = {};
  field.fieldId = 82;
  nvmlDeviceGetFieldValues(device, 1, &field);
  nvmlProcessUtilizationSample_t sample;
  unsigned samples = 1;
  nvmlDeviceGetProcessUtilization(device, &sample, &samples, 0);
  nvmlEventSet_t events;
  nvmlEventData_t event;
  EXPECT(nvmlEventSetCreate(&events) == NVML_SUCCESS);
  nvmlDeviceRegisterEvents(device, 8, events);
  nvmlEventSetWait_v2(events, &event, 0);
  nvmlEventSetFree(events);
  for (auto* list : {nvmlDeviceGetComputeRunningProcesses_v3, nvmlDeviceGetGraphicsRunningProcesses_v3,
                     nvmlDeviceGetMPSComputeRunningProcesses_v3}) {
    unsigned count = 0;
    list(device, &count, nullptr);
    count = count < 64 ? count : 64;
    std::vector<nvmlProcessInfo_v2_t> entries(count);
    list(device, &count, entries.data());
    std::vector<nvmlProcessInfo_v2_t> few(1);
    count = 1;
    list(device, &count, few.data());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (!machine.header) begin();
  fuzz::Input input(data, size);
  const bool is_new = input.byte() & 1;
  change(input);
  if (is_new) {
    // A program that starts now.
    Machine other;
    Error error = {};
    if (attach(&other, &error)) {
      EXPECT(other.gpu_count == machine.gpu_count);
      detach(&other);
    } else {
      const size_t length = strnlen(error.message, sizeof error.message);
      EXPECT(length > 0 && length < sizeof error.message && fuzz::is_printable(error.message, length));
    }
  }
  for (uint32_t gpu = 0; gpu < machine.gpu_count; ++gpu) {
    const Usage usage = usage_of(machine, gpu);
    for (uint32_t unit = 0; unit < kUnits; ++unit) check_unit(gpu, unit, usage);
    has_mps_server(machine, gpu);
    nvmlDevice_t device, instance;
    if (nvmlDeviceGetHandleByIndex_v2(gpu, &device) != NVML_SUCCESS) continue;
    ask(device);
    for (unsigned i = 0; i < kUnits; ++i)
      if (nvmlDeviceGetMigDeviceHandleByIndex(device, i, &instance) == NVML_SUCCESS) ask(instance);
  }
  char json[] = "--json";
  char* words[] = {json, nullptr};
  command_show(machine, {1, words});
  command_show(machine, {0, words});
  return 0;
}
