// Encoders and decoders of video, and captured frames: there, and idle.
#include "simulator/nvml.h"

using namespace simulator;

namespace {

nvmlReturn_t idle_codec(nvmlDevice_t handle, Symbols since, uint32_t compute_capability, unsigned* percent,
                        unsigned* sampling_period_us) {
  Question question;
  const nvmlReturn_t result =
      question.ask_gpu(handle, Call::codec, percent && sampling_period_us ? percent : nullptr, since);
  if (result != NVML_SUCCESS) return result;
  if (question.model().compute_capability < compute_capability) return NVML_ERROR_NOT_SUPPORTED;
  *percent = 0;
  *sampling_period_us = 167000;
  return NVML_SUCCESS;
}

}  // namespace

NVML_EXPORT nvmlDeviceGetEncoderUtilization(nvmlDevice_t handle, unsigned* percent, unsigned* sampling_period_us) {
  return idle_codec(handle, Symbols::oldest, 0, percent, sampling_period_us);
}
NVML_EXPORT nvmlDeviceGetDecoderUtilization(nvmlDevice_t handle, unsigned* percent, unsigned* sampling_period_us) {
  return idle_codec(handle, Symbols::oldest, 0, percent, sampling_period_us);
}
NVML_EXPORT nvmlDeviceGetJpgUtilization(nvmlDevice_t handle, unsigned* percent, unsigned* sampling_period_us) {
  return idle_codec(handle, Symbols::early_r535, 80, percent, sampling_period_us);
}
NVML_EXPORT nvmlDeviceGetOfaUtilization(nvmlDevice_t handle, unsigned* percent, unsigned* sampling_period_us) {
  return idle_codec(handle, Symbols::early_r535, 75, percent, sampling_period_us);
}

NVML_EXPORT nvmlDeviceGetEncoderCapacity(nvmlDevice_t handle, unsigned codec, unsigned* out) {
  if (codec > 2) return NVML_ERROR_INVALID_ARGUMENT;
  return answer(handle, Call::codec, Symbols::oldest, out, [](const Question&) { return Known(100); });
}

NVML_EXPORT nvmlDeviceGetEncoderStats(nvmlDevice_t handle, unsigned* sessions, unsigned* frames_per_second,
                                      unsigned* latency) {
  Question question;
  const bool complete = sessions && frames_per_second && latency;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::codec, complete ? sessions : nullptr);
  if (result == NVML_SUCCESS) *sessions = *frames_per_second = *latency = 0;
  return result;
}

NVML_EXPORT nvmlDeviceGetFBCStats(nvmlDevice_t handle, nvmlFBCStats_t* out) {
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::codec, out);
  if (result == NVML_SUCCESS) *out = {0, 0, 0};
  return result;
}

// Lists, and how long they are: empty.
NVML_GETTER(nvmlDeviceGetEncoderSessions, unsigned, codec, oldest, 0)
NVML_GETTER(nvmlDeviceGetFBCSessions, unsigned, codec, oldest, 0)
