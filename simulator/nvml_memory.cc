// Device memory: how much is in use, and which errors it has had.
#include <cstring>

#include "simulator/nvml.h"

using namespace simulator;

namespace {

struct Memory {
  uint64_t total, reserved, free, used;
};

Memory memory_of(const Question& question) {
  const Device device = question.device;
  const Usage usage = usage_of(*question.machine, device.gpu);
  Memory memory;
  memory.total = unit_total(*question.machine, device.gpu, device.unit);
  memory.reserved = unit_reserved(*question.machine, device.gpu, device.unit);
  memory.used = device.unit ? usage.units[device.unit] : usage.gpu;
  const uint64_t taken = memory.used + memory.reserved;
  memory.free = taken < memory.total ? memory.total - taken : 0;
  return memory;
}

}  // namespace

NVML_EXPORT nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t* out) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::memory);
  if (result != NVML_SUCCESS) return result;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  const Memory memory = memory_of(question);
  out->total = memory.total;
  out->free = memory.free;
  out->used = memory.total - memory.free;
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t* out) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::memory, Symbols::early_r535);
  if (result != NVML_SUCCESS) return result;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  if (out->version != kMemoryV2Tag) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  const Memory memory = memory_of(question);
  out->total = memory.total;
  out->reserved = memory.reserved;
  out->free = memory.free;
  out->used = memory.used;
  return NVML_SUCCESS;
}

// The part that the CPU sees: little is mapped, a bit more with each process.
NVML_EXPORT nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t handle, nvmlBAR1Memory_t* out) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::bar1);
  if (result != NVML_SUCCESS) return result;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  const Device device = question.device;
  const uint64_t whole = question.model().bar1_mib * kMiB;
  if (whole == 0) return NVML_ERROR_NOT_SUPPORTED;
  out->bar1Total =
      device.unit ? whole / 8 * (question.gpu().instances[device.unit - 1].memory * 8 / question.gpu().total()) : whole;
  uint64_t mapped = device.unit ? 0 : kMiB;
  for_each_process(*question.machine, device.gpu, [&](const ProcessEntry& entry) {
    if (device.unit == 0 || entry.unit == device.unit) mapped += 2 * kMiB;
  });
  out->bar1Used = mapped < out->bar1Total ? mapped : out->bar1Total;
  out->bar1Free = out->bar1Total - out->bar1Used;
  return NVML_SUCCESS;
}

namespace {

// Cards that count errors have those that were set.
nvmlReturn_t ask_ecc(Question* question, nvmlDevice_t handle, const void* out, Symbols since = Symbols::oldest) {
  const nvmlReturn_t result = question->ask_gpu(handle, Call::ecc, out, since);
  if (result != NVML_SUCCESS) return result;
  return question->model().ecc == Ecc::on ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

// Since Ampere, rows of the memory that fail are remapped. Before, pages were retired.
bool remaps_rows(const Question& question) { return question.model().compute_capability >= 80; }

nvmlReturn_t retired_pages(nvmlDevice_t handle, unsigned cause, unsigned* count) {
  Question question;
  const nvmlReturn_t result = ask_ecc(&question, handle, count);
  if (result != NVML_SUCCESS) return result;
  if (cause > 1) return NVML_ERROR_INVALID_ARGUMENT;
  if (remaps_rows(question)) return NVML_ERROR_NOT_SUPPORTED;
  *count = 0;
  return NVML_SUCCESS;
}

}  // namespace

NVML_EXPORT nvmlDeviceGetEccMode(nvmlDevice_t handle, int* current, int* pending) {
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::ecc, current && pending ? current : nullptr);
  if (result != NVML_SUCCESS) return result;
  if (question.model().ecc == Ecc::none) return NVML_ERROR_NOT_SUPPORTED;
  *current = *pending = question.model().ecc == Ecc::on;
  return NVML_SUCCESS;
}
NVML_GETTER(nvmlDeviceGetDefaultEccMode, int, ecc, early_r535,
            q.model().ecc == Ecc::none ? Known() : Known(q.model().ecc == Ecc::on))

NVML_EXPORT nvmlDeviceGetTotalEccErrors(nvmlDevice_t handle, unsigned error, unsigned counter,
                                        unsigned long long* out) {
  Question question;
  const nvmlReturn_t result = ask_ecc(&question, handle, out);
  if (result != NVML_SUCCESS) return result;
  if (error > 1 || counter > 1) return NVML_ERROR_INVALID_ARGUMENT;
  *out = error == 1 ? question.state().ecc_errors.load() : 0;
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetDetailedEccErrors(nvmlDevice_t handle, unsigned error, unsigned counter,
                                           nvmlEccErrorCounts_t* out) {
  unsigned long long total;
  const nvmlReturn_t result = nvmlDeviceGetTotalEccErrors(handle, error, counter, out ? &total : nullptr);
  if (result == NVML_SUCCESS) *out = {total, total, total, total};
  return result;
}

NVML_EXPORT nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t handle, unsigned error, unsigned counter, unsigned location,
                                            unsigned long long* out) {
  constexpr unsigned kLocations = 8;
  const nvmlReturn_t result = nvmlDeviceGetTotalEccErrors(handle, error, counter, out);
  return result == NVML_SUCCESS && location >= kLocations ? NVML_ERROR_INVALID_ARGUMENT : result;
}

NVML_EXPORT nvmlDeviceGetRetiredPages(nvmlDevice_t handle, unsigned cause, unsigned* count, unsigned long long*) {
  return retired_pages(handle, cause, count);
}
NVML_EXPORT nvmlDeviceGetRetiredPages_v2(nvmlDevice_t handle, unsigned cause, unsigned* count, unsigned long long*,
                                         unsigned long long*) {
  return retired_pages(handle, cause, count);
}
NVML_EXPORT nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t handle, int* out) {
  Question question;
  const nvmlReturn_t result = ask_ecc(&question, handle, out);
  if (result != NVML_SUCCESS) return result;
  if (remaps_rows(question)) return NVML_ERROR_NOT_SUPPORTED;
  *out = question.state().memory_repair == kRepairPending;
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetRemappedRows(nvmlDevice_t handle, unsigned* corrected, unsigned* uncorrected,
                                      unsigned* pending, unsigned* failed) {
  Question question;
  const bool complete = corrected && uncorrected && pending && failed;
  const nvmlReturn_t result = ask_ecc(&question, handle, complete ? corrected : nullptr, Symbols::old);
  if (result != NVML_SUCCESS) return result;
  if (!remaps_rows(question)) return NVML_ERROR_NOT_SUPPORTED;
  const uint32_t repair = question.state().memory_repair;
  *corrected = *uncorrected = 0;
  *pending = repair == kRepairPending;
  *failed = repair == kRepairFailed;
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t handle, nvmlRowRemapperHistogramValues_t* out) {
  Question question;
  const nvmlReturn_t result = ask_ecc(&question, handle, out, Symbols::old);
  if (result != NVML_SUCCESS) return result;
  if (!remaps_rows(question)) return NVML_ERROR_NOT_SUPPORTED;
  *out = {question.model().memory_bus_bits / 8, 0, 0, 0, 0};  // banks, all of whose rows are left
  return NVML_SUCCESS;
}
