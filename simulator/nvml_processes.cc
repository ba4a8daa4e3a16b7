// The lists of processes, in all the forms that drivers have had.
#include <csignal>
#include <cstring>
#include <ctime>

#include "simulator/nvml.h"

using namespace simulator;

namespace {

constexpr unsigned long long kUnknownMemory = ~0ull;

nvmlProcessDetail_v1_t detail_of(const Question& question, uint32_t pid, uint32_t unit, uint64_t bytes) {
  nvmlProcessDetail_v1_t detail;
  memset(&detail, 0, sizeof detail);
  detail.pid = pid + question.machine->header->pid_offset.load(std::memory_order_relaxed);
  detail.usedGpuMemory =
      injected_error(*question.machine, question.device.gpu, Call::process_memory) ? kUnknownMemory : bytes;
  detail.gpuInstanceId = detail.computeInstanceId = 0xffffffff;
  if (unit > 0) {
    detail.gpuInstanceId = question.gpu().instances[unit - 1].gpu_instance_id;
    detail.computeInstanceId = question.gpu().instances[unit - 1].compute_instance_id;
  }
  return detail;
}

enum class Kind { compute, graphics, mps };

// With an MPS server on a GPU, what else computes there are its clients: on the list of those and on that of compute
// processes, as since Volta. The server itself is on the latter only.
bool is_listed(const ProcessEntry& entry, Kind kind, bool mps) {
  if (kind == Kind::graphics) return entry.type == kGraphics || entry.type == kBoth;
  if (kind == Kind::compute) return entry.type != kGraphics;
  return mps && (entry.type == kCompute || entry.type == kBoth);
}

template <typename Visit>
void visit_processes(const Question& question, Kind kind, Visit visit) {
  const Machine& machine = *question.machine;
  const uint32_t gpu = question.device.gpu, unit = question.device.unit;
  if (question.state().hidden_processes.load(std::memory_order_relaxed)) return;
  if (kind == Kind::graphics && unit == 0 && shows_graphics(machine, gpu))
    for (uint32_t i = 0; i < question.gpu().graphics_count; ++i) {
      const GraphicsProcess& process = question.gpu().graphics[i];
      visit(detail_of(question, process.pid, 0, process.memory_mib * kMiB));
    }
  const bool mps = kind == Kind::mps && has_mps_server(machine, gpu);
  for_each_process(machine, gpu, [&](const ProcessEntry& entry) {
    if (is_listed(entry, kind, mps) && (unit == 0 || entry.unit == unit))
      visit(detail_of(question, entry.pid, entry.unit, entry.bytes));
  });
}

// Each older form is a beginning of the newest one.
template <typename Entry>
nvmlReturn_t write_processes(const Question& question, Kind kind, unsigned* count, Entry* entries) {
  unsigned found = 0;
  const unsigned room = *count;
  visit_processes(question, kind, [&](const nvmlProcessDetail_v1_t& detail) {
    if (found < room && entries) memcpy(entries + found, &detail, sizeof *entries);
    ++found;
  });
  *count = found;
  if (found > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  return found && !entries ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

enum class Form { unsuffixed, v2, v3 };

nvmlReturn_t list_processes(nvmlDevice_t handle, Call call, Form form, unsigned* count, void* entries) {
  constexpr Symbols kSince[] = {Symbols::oldest, Symbols::old, Symbols::early_r535};
  Question question;
  const nvmlReturn_t result = question.ask(handle, call, kSince[static_cast<int>(form)]);
  if (result != NVML_SUCCESS) return result;
  const Machine& machine = *question.machine;
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  const Kind kind = call == Call::processes ? Kind::compute : call == Call::mps_processes ? Kind::mps : Kind::graphics;
  const bool is_r450 = machine.description.release() >= 450 && machine.description.release() < 470;
  if (form == Form::unsuffixed && !(kind == Kind::mps && is_r450))
    return write_processes(question, kind, count, static_cast<nvmlProcessInfo_v1_t*>(entries));
  if (form == Form::v3 && machine.description.symbols == Symbols::early_r535)
    return write_processes(question, kind, count, static_cast<nvmlProcessDetail_v1_t*>(entries));
  return write_processes(question, kind, count, static_cast<nvmlProcessInfo_v2_t*>(entries));
}

}  // namespace

NVML_EXPORT nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t handle, unsigned* count, void* entries) {
  return list_processes(handle, Call::processes, Form::unsuffixed, count, entries);
}
NVML_EXPORT nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t handle, unsigned* count, void* entries) {
  return list_processes(handle, Call::processes, Form::v2, count, entries);
}
NVML_EXPORT nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned* count, void* entries) {
  return list_processes(handle, Call::processes, Form::v3, count, entries);
}
NVML_EXPORT nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t handle, unsigned* count, void* entries) {
  return list_processes(handle, Call::graphics_processes, Form::unsuffixed, count, entries);
}
NVML_EXPORT nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t handle, unsigned* count, void* entries) {
  return list_processes(handle, Call::graphics_processes, Form::v2, count, entries);
}
NVML_EXPORT nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t handle, unsigned* count, void* entries) {
  return list_processes(handle, Call::graphics_processes, Form::v3, count, entries);
}
NVML_EXPORT nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t handle, unsigned* count, void* entries) {
  return list_processes(handle, Call::mps_processes, Form::unsuffixed, count, entries);
}
NVML_EXPORT nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t handle, unsigned* count, void* entries) {
  return list_processes(handle, Call::mps_processes, Form::v2, count, entries);
}
NVML_EXPORT nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned* count, void* entries) {
  return list_processes(handle, Call::mps_processes, Form::v3, count, entries);
}

NVML_EXPORT nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t handle, nvmlProcessDetailList_v1_t* list) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::processes, Symbols::current);
  if (result != NVML_SUCCESS) return result;
  if (!list) return NVML_ERROR_INVALID_ARGUMENT;
  if (list->version != kProcessDetailListV1Tag) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (list->mode > 2) return NVML_ERROR_INVALID_ARGUMENT;
  constexpr Kind kKinds[] = {Kind::compute, Kind::graphics, Kind::mps};
  return write_processes(question, kKinds[list->mode], &list->numProcArrayEntries, list->procArray);
}

// The driver samples only processes that compute. All samples are of this moment.
NVML_EXPORT nvmlDeviceGetProcessUtilization(nvmlDevice_t handle, nvmlProcessUtilizationSample_t* samples,
                                            unsigned* count, unsigned long long last_seen) {
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::utilization, count);
  if (result != NVML_SUCCESS) return result;
  if (mig_on(*question.machine, question.device.gpu)) return NVML_ERROR_NOT_SUPPORTED;
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  const auto now = static_cast<unsigned long long>(time.tv_sec) * 1000000 + static_cast<uint64_t>(time.tv_nsec) / 1000;
  const unsigned room = samples ? *count : 0;
  *count = 0;
  if (now <= last_seen || question.state().hidden_processes.load(std::memory_order_relaxed))
    return NVML_ERROR_NOT_FOUND;
  for_each_process(*question.machine, question.device.gpu, [&](const ProcessEntry& entry) {
    if (!entry.alive || entry.utilization == 0) return;
    const uint32_t pid = entry.pid + question.machine->header->pid_offset.load(std::memory_order_relaxed);
    if (*count < room) samples[*count] = {pid, now, entry.utilization, entry.utilization / 2, 0, 0};
    ++*count;
  });
  if (*count == 0) return NVML_ERROR_NOT_FOUND;
  return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t handle, nvmlConfComputeMemSizeInfo_t* out) {
  if (!handle) raise(SIGSEGV);  // as in 580.159, which reads the device before it checks the handle
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::memory, Symbols::early_r535);
  if (result != NVML_SUCCESS) return result;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  out->protectedMemSizeKib = 0;
  out->unprotectedMemSizeKib = question.gpu().total() / 1024;
  return NVML_SUCCESS;
}
