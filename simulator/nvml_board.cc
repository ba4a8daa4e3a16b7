// The board: numbers and versions, properties of its chip, and the modes that it is in.
#include <cstdio>
#include <cstring>

#include "simulator/nvml.h"

using namespace simulator;

namespace {

bool is_for_servers(const Question& q) { return q.model().brand == Brand::nvidia || q.model().brand == Brand::tesla; }

// Different for each GPU, and always the same.
uint64_t number_of(const Gpu& gpu) {
  uint64_t number = 0;
  for (const char* c = gpu.uuid; *c; ++c) number = number * 31 + static_cast<unsigned char>(*c);
  return number;
}

bool serial_of(const Gpu& gpu, char (&out)[30]) {
  snprintf(out, sizeof out, "13%011llu", static_cast<unsigned long long>(number_of(gpu) % 100000000000));
  return gpu.model->brand != Brand::geforce;
}

template <typename Write>
nvmlReturn_t answer_text(nvmlDevice_t handle, char* out, unsigned length, Write write,
                         Symbols since = Symbols::oldest) {
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::board, out, since);
  if (result != NVML_SUCCESS) return result;
  char text[64];
  return write(question, text) ? give_text(text, out, length) : NVML_ERROR_NOT_SUPPORTED;
}

}  // namespace

NVML_GETTER(nvmlDeviceGetBrand, unsigned, board, oldest, static_cast<unsigned>(q.model().brand))
NVML_GETTER(nvmlDeviceGetBoardId, unsigned, board, oldest, q.gpu().bus << 8)
NVML_GETTER(nvmlDeviceGetMultiGpuBoard, unsigned, board, oldest, 0)
NVML_GETTER(nvmlDeviceGetModuleId, unsigned, board, early_r535,
            q.model().nvlinks ? Known(q.device.gpu + 1) : std::nullopt)
NVML_GETTER(nvmlDeviceGetInforomConfigurationChecksum, unsigned, board, oldest, number_of(q.gpu()) & 0xffffffff)
NVML_GETTER(nvmlDeviceGetIrqNum, unsigned, board, early_r535, 100 + q.device.gpu)
NVML_GETTER(nvmlDeviceGetBusType, unsigned, board, early_r535, 2)  // PCIe
NVML_GETTER(nvmlDeviceGetVirtualizationMode, unsigned, board, oldest, 0)
NVML_GETTER(nvmlDeviceGetArchitecture, unsigned, attributes, old, architecture_of(q.model()).number)
NVML_GETTER(nvmlDeviceGetNumGpuCores, unsigned, attributes, early_r535,
            q.model().multiprocessors* architecture_of(q.model()).cores_per_multiprocessor)
NVML_GETTER(nvmlDeviceGetMemoryBusWidth, unsigned, attributes, early_r535, unless_zero(q.model().memory_bus_bits))

NVML_EXPORT nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int* major, int* minor) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::attributes);
  if (result != NVML_SUCCESS) return result;
  if (!major || !minor) return NVML_ERROR_INVALID_ARGUMENT;
  *major = static_cast<int>(question.model().compute_capability / 10);
  *minor = static_cast<int>(question.model().compute_capability % 10);
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetSerial(nvmlDevice_t handle, char* out, unsigned length) {
  return answer_text(handle, out, length, [](const Question& q, char (&text)[64]) {
    char serial[30];
    const bool known = serial_of(q.gpu(), serial);
    strcpy(text, serial);
    return known;
  });
}

NVML_EXPORT nvmlDeviceGetHandleBySerial(const char* serial, nvmlDevice_t* out) {
  const Machine* machine = initialized_machine();
  if (!machine) return NVML_ERROR_UNINITIALIZED;
  if (!serial || !out) return NVML_ERROR_INVALID_ARGUMENT;
  for (uint32_t gpu = 0; gpu < machine->gpu_count; ++gpu) {
    char own[30];
    if (serial_of(machine->description.gpus[gpu], own) && strcmp(own, serial) == 0)
      return give_handle(*machine, gpu, out);
  }
  return NVML_ERROR_NOT_FOUND;
}

NVML_EXPORT nvmlDeviceGetVbiosVersion(nvmlDevice_t handle, char* out, unsigned length) {
  return answer_text(handle, out, length, [](const Question& q, char (&text)[64]) {
    const unsigned device = q.model().pci_device_id >> 16;
    snprintf(text, sizeof text, "%s.%02X.00.%02X", architecture_of(q.model()).vbios, device & 0xff, device >> 8);
    return true;
  });
}

NVML_EXPORT nvmlDeviceGetBoardPartNumber(nvmlDevice_t handle, char* out, unsigned length) {
  return answer_text(handle, out, length, [](const Question& q, char (&text)[64]) {
    snprintf(text, sizeof text, "900-2%04X-0000-000", q.model().pci_device_id >> 16);
    return is_for_servers(q);
  });
}

NVML_EXPORT nvmlDeviceGetInforomImageVersion(nvmlDevice_t handle, char* out, unsigned length) {
  return answer_text(handle, out, length, [](const Question& q, char (&text)[64]) {
    snprintf(text, sizeof text, "G%03X.0200.00.03", q.model().pci_device_id >> 20);
    return true;
  });
}

// Objects: 0 OEM, 1 ECC, 2 power.
NVML_EXPORT nvmlDeviceGetInforomVersion(nvmlDevice_t handle, unsigned object, char* out, unsigned length) {
  if (object > 3) return NVML_ERROR_INVALID_ARGUMENT;
  return answer_text(handle, out, length, [&](const Question& q, char (&text)[64]) {
    strcpy(text, object == 0 ? "2.1" : "7.16");
    return object == 0 || (object == 1 && q.model().ecc != Ecc::none);
  });
}

NVML_EXPORT nvmlDeviceValidateInforom(nvmlDevice_t handle) {
  Question question;
  return question.ask_gpu(handle, Call::board, &question);
}

// The firmware that runs part of the driver on the GPU, since Turing. There is no length: a version's buffer has 80.
NVML_EXPORT nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t handle, char* out) {
  return answer_text(
      handle, out, 80,
      [](const Question& q, char (&text)[64]) {
        snprintf(text, sizeof text, "%s", q.machine->description.driver_version);
        return q.model().compute_capability >= 75;
      },
      Symbols::early_r535);
}

NVML_EXPORT nvmlDeviceGetGspFirmwareMode(nvmlDevice_t handle, unsigned* enabled, unsigned* by_default) {
  Question question;
  const nvmlReturn_t result =
      question.ask_gpu(handle, Call::board, enabled && by_default ? enabled : nullptr, Symbols::early_r535);
  if (result != NVML_SUCCESS) return result;
  *enabled = *by_default = question.model().compute_capability >= 75;
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceOnSameBoard(nvmlDevice_t first, nvmlDevice_t second, int* out) {
  Question a, b;
  nvmlReturn_t result = a.ask_gpu(first, Call::board, out);
  if (result == NVML_SUCCESS) result = b.ask_gpu(second, Call::board, out);
  if (result == NVML_SUCCESS) *out = a.device.gpu == b.device.gpu;
  return result;
}

// With MIG on, a GPU is in default mode and can't be put into another.
NVML_EXPORT nvmlDeviceGetComputeMode(nvmlDevice_t handle, int* out) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::compute_mode);
  if (result != NVML_SUCCESS) return result;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  *out = mig_on(*question.machine, question.device.gpu)
             ? 0
             : static_cast<int>(question.state().compute_mode.load(std::memory_order_relaxed));
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetDisplayActive(nvmlDevice_t handle, int* out) {
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::display, out);
  if (result == NVML_SUCCESS) *out = question.state().display.load(std::memory_order_relaxed) != 0;
  return result;
}
NVML_EXPORT nvmlDeviceGetDisplayMode(nvmlDevice_t handle, int* out) { return nvmlDeviceGetDisplayActive(handle, out); }

NVML_EXPORT nvmlDeviceGetPersistenceMode(nvmlDevice_t handle, int* out) {
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::persistence, out);
  if (result == NVML_SUCCESS) *out = question.machine->description.persistence;
  return result;
}

NVML_GETTER(nvmlDeviceGetAccountingMode, int, board, oldest, 0)
NVML_GETTER(nvmlDeviceGetAccountingBufferSize, unsigned, board, oldest, 4000)
NVML_GETTER(nvmlDeviceGetAccountingPids, unsigned, board, oldest, 0)
