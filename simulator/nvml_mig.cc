// MIG: one GPU cut into instances, each with a handle of its own.
#include <cstring>

#include "simulator/nvml.h"

using namespace simulator;

namespace {

nvmlReturn_t ask_instance(Question* question, nvmlDevice_t handle, const void* out) {
  const nvmlReturn_t result = question->ask(handle, Call::mig);
  if (result != NVML_SUCCESS) return result;
  return out && question->device.unit ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

}  // namespace

NVML_EXPORT nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned* current, unsigned* pending) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::mig, Symbols::old);
  if (result != NVML_SUCCESS) return result;
  if (!current || !pending) return NVML_ERROR_INVALID_ARGUMENT;
  if (!question.gpu().can_mig() || question.device.unit) return NVML_ERROR_NOT_SUPPORTED;
  *current = *pending = mig_on(*question.machine, question.device.gpu);
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t handle, unsigned* out) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::mig, Symbols::old);
  if (result != NVML_SUCCESS) return result;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  *out = mig_on(*question.machine, question.device.gpu) ? kUnits - 1 : 0;
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t handle, unsigned index, nvmlDevice_t* out) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::mig, Symbols::old);
  if (result != NVML_SUCCESS) return result;
  if (!out || question.device.unit) return NVML_ERROR_INVALID_ARGUMENT;
  if (!mig_on(*question.machine, question.device.gpu)) return NVML_ERROR_NOT_SUPPORTED;
  if (index >= kUnits - 1) return NVML_ERROR_INVALID_ARGUMENT;
  if (!instance_exists(*question.machine, question.device.gpu, index + 1)) return NVML_ERROR_NOT_FOUND;
  *out = handle_of(question.device.gpu, index + 1);
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned* out) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::mig);
  if (result != NVML_SUCCESS) return result;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  *out = question.device.unit != 0;
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t handle, nvmlDevice_t* out) {
  Question question;
  const nvmlReturn_t result = ask_instance(&question, handle, out);
  if (result == NVML_SUCCESS) *out = handle_of(question.device.gpu, 0);
  return result;
}

NVML_EXPORT nvmlDeviceGetGpuInstanceId(nvmlDevice_t handle, unsigned* out) {
  Question question;
  const nvmlReturn_t result = ask_instance(&question, handle, out);
  if (result == NVML_SUCCESS) *out = question.gpu().instances[question.device.unit - 1].gpu_instance_id;
  return result;
}

NVML_EXPORT nvmlDeviceGetComputeInstanceId(nvmlDevice_t handle, unsigned* out) {
  Question question;
  const nvmlReturn_t result = ask_instance(&question, handle, out);
  if (result == NVML_SUCCESS) *out = question.gpu().instances[question.device.unit - 1].compute_instance_id;
  return result;
}

NVML_EXPORT nvmlDeviceGetAttributes_v2(nvmlDevice_t handle, nvmlDeviceAttributes_t* out) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::attributes, Symbols::old);
  if (result != NVML_SUCCESS) return result;
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  if (question.device.unit == 0) return NVML_ERROR_NOT_SUPPORTED;
  const MigInstance& instance = question.gpu().instances[question.device.unit - 1];
  memset(out, 0, sizeof *out);
  out->multiprocessorCount = question.gpu().model->multiprocessors / 7 * instance.slices;
  out->sharedCopyEngineCount = instance.slices;
  out->gpuInstanceSliceCount = instance.slices;
  out->computeInstanceSliceCount = instance.slices;
  out->memorySizeMB = instance.memory / kMiB;
  return NVML_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetAttributes(nvmlDevice_t handle, nvmlDeviceAttributes_t* out) {
  return nvmlDeviceGetAttributes_v2(handle, out);
}
