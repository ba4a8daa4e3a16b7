// Clocks, performance states, and why clocks are not at their highest.
#include <algorithm>
#include <ctime>

#include "simulator/activity.h"
#include "simulator/nvml.h"

using namespace simulator;

namespace {

template <typename Know>
nvmlReturn_t answer_of_clock(nvmlDevice_t handle, unsigned type, unsigned* out, Know know,
                             Symbols since = Symbols::oldest) {
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::clocks, out, since);
  if (result != NVML_SUCCESS) return result;
  if (type > static_cast<unsigned>(Clock::video)) return NVML_ERROR_INVALID_ARGUMENT;
  const Known clock = know(question, static_cast<Clock>(type));
  if (!clock) return NVML_ERROR_NOT_SUPPORTED;
  *out = static_cast<unsigned>(*clock);
  return NVML_SUCCESS;
}

Known current_clock(const Question& q, Clock clock) { return clock_of(*q.machine, q.device.gpu, clock); }
Known maximal_clock(const Question& q, Clock clock) { return highest_clock(q.model(), clock); }

// Clocks that a program may ask for, of cards for servers.
Known applications_clock(const Question& q, Clock clock) {
  const Model& model = q.model();
  if (clock == Clock::video || (model.brand != Brand::nvidia && model.brand != Brand::tesla)) return std::nullopt;
  return clock == Clock::memory ? model.memory_mhz : model.busy_sm_mhz;
}

// P0, and one with low clocks where idle GPUs go to.
unsigned state_of(const Question& q) { return is_awake(*q.machine, q.device.gpu) ? 0 : q.model().idle_state; }

constexpr unsigned long long kIdle = 1, kSoftwarePowerCap = 4, kHardwareSlowdown = 8, kSoftwareThermal = 0x20,
                             kHardwareThermal = 0x40, kAllReasons = 0x1ff;

Known reasons_now(const Question& q) {
  const Model& model = q.model();
  const uint32_t gpu = q.device.gpu;
  unsigned long long reasons = utilization_of(*q.machine, gpu) == 0 ? kIdle : 0;
  if (power_of(*q.machine, gpu) >= model.power_limit_mw / 100 * 98) reasons |= kSoftwarePowerCap;
  const uint32_t temperature = temperature_of(*q.machine, gpu);
  const uint32_t slowdown = model.slowdown_temperature;
  if (slowdown == 0 || temperature + 2 < slowdown) return reasons;
  return reasons | (temperature < slowdown ? kSoftwareThermal : kHardwareSlowdown | kHardwareThermal);
}

}  // namespace

NVML_EXPORT nvmlDeviceGetClockInfo(nvmlDevice_t handle, unsigned type, unsigned* out) {
  return answer_of_clock(handle, type, out, current_clock);
}
NVML_EXPORT nvmlDeviceGetMaxClockInfo(nvmlDevice_t handle, unsigned type, unsigned* out) {
  return answer_of_clock(handle, type, out, maximal_clock);
}
NVML_EXPORT nvmlDeviceGetApplicationsClock(nvmlDevice_t handle, unsigned type, unsigned* out) {
  return answer_of_clock(handle, type, out, applications_clock);
}
NVML_EXPORT nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t handle, unsigned type, unsigned* out) {
  return answer_of_clock(handle, type, out, applications_clock);
}
NVML_EXPORT nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t handle, unsigned type, unsigned* out) {
  return answer_of_clock(handle, type, out, maximal_clock);
}
NVML_EXPORT nvmlDeviceGetClock(nvmlDevice_t handle, unsigned type, unsigned which, unsigned* out) {
  constexpr Known (*kWhich[])(const Question&, Clock) = {current_clock, applications_clock, applications_clock,
                                                         maximal_clock};
  return which < 4 ? answer_of_clock(handle, type, out, kWhich[which]) : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_EXPORT nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t handle, unsigned* count, unsigned* out) {
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::clocks, count);
  if (result != NVML_SUCCESS) return result;
  const unsigned clocks[] = {question.model().memory_mhz, question.model().idle_memory_mhz};
  return give_list(clocks, clocks[0] == clocks[1] ? 1 : 2, count, out);
}

// In steps of 15 MHz, the highest first.
NVML_EXPORT nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t handle, unsigned memory_clock, unsigned* count,
                                                 unsigned* out) {
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::clocks, count);
  if (result != NVML_SUCCESS) return result;
  const Model& model = question.model();
  unsigned clocks[256], found = 0;
  const unsigned highest = memory_clock == model.memory_mhz ? model.sm_mhz : model.idle_sm_mhz;
  if (memory_clock != model.memory_mhz && memory_clock != model.idle_memory_mhz) return NVML_ERROR_NOT_FOUND;
  for (unsigned clock = highest; clock > 0 && clock >= model.idle_sm_mhz && found < 256; clock -= std::min(clock, 15u))
    clocks[found++] = clock;
  return give_list(clocks, found, count, out);
}

// Before Pascal, this could be switched.
NVML_EXPORT nvmlDeviceGetAutoBoostedClocksEnabled(nvmlDevice_t handle, int* enabled, int* by_default) {
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::clocks, enabled && by_default ? enabled : nullptr);
  if (result != NVML_SUCCESS) return result;
  if (question.model().compute_capability >= 60) return NVML_ERROR_NOT_SUPPORTED;
  *enabled = *by_default = 1;
  return NVML_SUCCESS;
}

NVML_GETTER(nvmlDeviceGetPerformanceState, unsigned, clocks, oldest, state_of(q))
NVML_GETTER(nvmlDeviceGetPowerState, unsigned, clocks, oldest, state_of(q))
NVML_GETTER(nvmlDeviceGetAdaptiveClockInfoStatus, unsigned, clocks, early_r535, 0)
NVML_GETTER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, clocks, oldest, reasons_now(q))
NVML_GETTER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, clocks, early_r535, reasons_now(q))
NVML_GETTER(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, clocks, oldest, kAllReasons)
NVML_GETTER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, clocks, early_r535, kAllReasons)

NVML_EXPORT nvmlDeviceGetSupportedPerformanceStates(nvmlDevice_t handle, unsigned* states, unsigned size) {
  constexpr unsigned kUnknownState = 32;
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::clocks, states, Symbols::early_r535);
  if (result != NVML_SUCCESS) return result;
  const unsigned room = size / sizeof *states, idle = question.model().idle_state;
  if (room < 2) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < room; ++i) states[i] = i == 0 ? 0 : i == 1 && idle ? idle : kUnknownState;
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetMinMaxClockOfPState(nvmlDevice_t handle, unsigned type, unsigned state, unsigned* lowest,
                                             unsigned* highest) {
  if (!highest) return NVML_ERROR_INVALID_ARGUMENT;
  const auto know = [&](const Question& q, Clock clock) -> Known {
    const Model& model = q.model();
    if (clock == Clock::video || (state != 0 && state != model.idle_state)) return std::nullopt;
    const uint32_t idle = clock == Clock::memory ? model.idle_memory_mhz : model.idle_sm_mhz;
    *highest = state == 0 ? highest_clock(model, clock) : idle;
    return state == 0 && clock == Clock::memory ? *highest : idle;
  };
  return answer_of_clock(handle, type, lowest, know, Symbols::early_r535);
}

// For how long something has held the clocks down: never.
NVML_EXPORT nvmlDeviceGetViolationStatus(nvmlDevice_t handle, unsigned policy, nvmlViolationTime_t* out) {
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::clocks, out);
  if (result != NVML_SUCCESS) return result;
  if (policy > 11) return NVML_ERROR_INVALID_ARGUMENT;
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  *out = {static_cast<unsigned long long>(now.tv_sec) * 1000000, 0};
  return NVML_SUCCESS;
}
