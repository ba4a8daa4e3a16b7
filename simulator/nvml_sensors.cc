// Measurements: power, energy, utilization, temperature, fans; and the limits of power and temperature.
#include <cstring>
#include <ctime>

#include "simulator/activity.h"
#include "simulator/nvml.h"

using namespace simulator;

NVML_GETTER(nvmlDeviceGetPowerUsage, unsigned, power, oldest, power_of(*q.machine, q.device.gpu))
NVML_GETTER(nvmlDeviceGetEnforcedPowerLimit, unsigned, power_limit, oldest, q.model().power_limit_mw)
NVML_GETTER(nvmlDeviceGetPowerManagementLimit, unsigned, power_limit, oldest, q.model().power_limit_mw)
NVML_GETTER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, power_limit, oldest, q.model().power_limit_mw)
NVML_GETTER(nvmlDeviceGetPowerManagementMode, int, power_limit, oldest, 1)
NVML_GETTER(nvmlDeviceGetPowerSource, unsigned, power_limit, early_r535, 0)  // AC

NVML_EXPORT nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t handle, unsigned* lowest, unsigned* highest) {
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::power_limit, lowest && highest ? lowest : nullptr);
  if (result != NVML_SUCCESS) return result;
  *lowest = question.model().lowest_power_limit_mw;
  *highest = question.model().highest_power_limit_mw;
  return NVML_SUCCESS;
}

NVML_GETTER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, energy, oldest,
            energy_of(*q.machine, q.device.gpu))

NVML_EXPORT nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t* out) {
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::utilization, out);
  if (result != NVML_SUCCESS) return result;
  if (mig_on(*question.machine, question.device.gpu)) return NVML_ERROR_NOT_SUPPORTED;
  out->gpu = utilization_of(*question.machine, question.device.gpu);
  out->memory = out->gpu / 2;
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetTemperature(nvmlDevice_t handle, int sensor, unsigned* out) {
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::temperature, out);
  if (result != NVML_SUCCESS) return result;
  if (sensor != 0) return NVML_ERROR_INVALID_ARGUMENT;
  *out = temperature_of(*question.machine, question.device.gpu);
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetTemperatureV(nvmlDevice_t handle, nvmlTemperature_v1_t* out) {
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::temperature, out, Symbols::current);
  if (result != NVML_SUCCESS) return result;
  if (out->version != kTemperatureV1Tag) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (out->sensorType != 0) return NVML_ERROR_INVALID_ARGUMENT;
  out->temperature = static_cast<int>(temperature_of(*question.machine, question.device.gpu));
  return NVML_SUCCESS;
}

namespace {

int highest_operating_temperature(const Question& q) { return static_cast<int>(q.model().slowdown_temperature) - 2; }

// Cards since Ada and Hopper tell how far they are from it.
bool knows_margin(const Question& q) {
  return q.model().slowdown_temperature != 0 && q.model().compute_capability >= 89;
}

}  // namespace

NVML_EXPORT nvmlDeviceGetTemperatureThreshold(nvmlDevice_t handle, unsigned threshold, unsigned* out) {
  constexpr unsigned kThresholds = 8;
  if (threshold >= kThresholds) return NVML_ERROR_INVALID_ARGUMENT;
  return answer(handle, Call::temperature, Symbols::oldest, out, [&](const Question& q) -> Known {
    switch (threshold) {
      case 0: return unless_zero(q.model().shutdown_temperature);
      case 1: return unless_zero(q.model().slowdown_temperature);
      case 2: return q.has_hbm() ? Known(95) : std::nullopt;
      case 3: return q.model().slowdown_temperature ? Known(highest_operating_temperature(q)) : std::nullopt;
      default: return std::nullopt;  // the acoustic limit, which notebooks have
    }
  });
}

NVML_EXPORT nvmlDeviceGetMarginTemperature(nvmlDevice_t handle, nvmlMarginTemperature_v1_t* out) {
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::temperature, out, Symbols::current);
  if (result != NVML_SUCCESS) return result;
  if (out->version != kMarginTemperatureV1Tag) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (!knows_margin(question)) return NVML_ERROR_NOT_SUPPORTED;
  out->marginTemperature = highest_operating_temperature(question) -
                           static_cast<int>(temperature_of(*question.machine, question.device.gpu));
  return NVML_SUCCESS;
}

namespace {

// As fast as the GPU is hot.
Known fan_percent(const Question& q) {
  const Model& model = q.model();
  if (model.fans == 0) return std::nullopt;
  const uint32_t now = temperature_of(*q.machine, q.device.gpu), idle = model.idle_temperature;
  const uint32_t full = model.slowdown_temperature;
  if (now <= idle) return model.idle_fan_percent;
  if (now >= full) return 100;
  const uint32_t percent = model.idle_fan_percent + (now - idle) * 100 / (full - idle);
  return percent < 100 ? percent : 100;
}

template <typename Know>
nvmlReturn_t answer_of_fan(nvmlDevice_t handle, Symbols since, unsigned fan, unsigned* out, Know know) {
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::fan, out, since);
  if (result != NVML_SUCCESS) return result;
  if (question.model().fans == 0) return NVML_ERROR_NOT_SUPPORTED;
  if (fan >= question.model().fans) return NVML_ERROR_INVALID_ARGUMENT;
  *out = static_cast<unsigned>(know(question));
  return NVML_SUCCESS;
}

}  // namespace

NVML_GETTER(nvmlDeviceGetFanSpeed, unsigned, fan, oldest, fan_percent(q))
NVML_GETTER(nvmlDeviceGetNumFans, unsigned, fan, early_r535, unless_zero(q.model().fans))

NVML_EXPORT nvmlDeviceGetFanSpeed_v2(nvmlDevice_t handle, unsigned fan, unsigned* out) {
  return answer_of_fan(handle, Symbols::oldest, fan, out, [](const Question& q) { return *fan_percent(q); });
}
NVML_EXPORT nvmlDeviceGetTargetFanSpeed(nvmlDevice_t handle, unsigned fan, unsigned* out) {
  return answer_of_fan(handle, Symbols::early_r535, fan, out, [](const Question& q) { return *fan_percent(q); });
}
// By temperature, in steps or not: 0.
NVML_EXPORT nvmlDeviceGetFanControlPolicy_v2(nvmlDevice_t handle, unsigned fan, unsigned* out) {
  return answer_of_fan(handle, Symbols::early_r535, fan, out, [](const Question&) { return 0; });
}

NVML_EXPORT nvmlDeviceGetMinMaxFanSpeed(nvmlDevice_t handle, unsigned* lowest, unsigned* highest) {
  if (!highest) return NVML_ERROR_INVALID_ARGUMENT;
  const nvmlReturn_t result = answer_of_fan(handle, Symbols::early_r535, 0, lowest,
                                            [](const Question& q) { return q.model().idle_fan_percent; });
  if (result == NVML_SUCCESS) *highest = 100;
  return result;
}

NVML_EXPORT nvmlDeviceGetFanSpeedRPM(nvmlDevice_t handle, nvmlFanSpeedInfo_v1_t* out) {
  if (out && out->version != kFanSpeedInfoV1Tag) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  return answer_of_fan(handle, Symbols::current, out ? out->fan : 0, out ? &out->speed : nullptr,
                       [](const Question& q) { return *fan_percent(q) * 30; });
}

namespace {

struct Field {
  unsigned id;
  unsigned type;  // 1 unsigned int, 3 unsigned long long, 5 int
  Call call;
  Known (*know)(const Question&, unsigned scope);
};

Known remapped_rows(const Question& q, unsigned) {
  return q.model().ecc == Ecc::on && q.model().compute_capability >= 80 ? Known(0) : std::nullopt;
}
Known nvlink_traffic(const Question& q, unsigned) { return q.model().nvlinks ? Known(0) : std::nullopt; }
Known margin_at(const Question& q, uint32_t temperature) {
  if (!knows_margin(q)) return std::nullopt;
  return static_cast<unsigned long long>(highest_operating_temperature(q) - static_cast<int>(temperature));
}

// Scope 0 is the GPU. Only superchips know the power of their module (1) and memory (2).
Known of_gpu(unsigned scope, Known power) { return scope == 0 ? power : std::nullopt; }
Known power_now(const Question& q, unsigned scope) { return of_gpu(scope, power_of(*q.machine, q.device.gpu)); }
Known power_limit(const Question& q, unsigned scope) { return of_gpu(scope, q.model().power_limit_mw); }

// The scope is the link.
Known of_link(const Question& q, unsigned link, unsigned value) {
  return link < q.model().nvlinks ? Known(value) : std::nullopt;
}
// MB/s
unsigned link_speed(const Question& q) {
  switch (architecture_of(q.model()).nvlink_version) {
    case 2: return 25781;
    case 3: return 25000;
    default: return 26562;
  }
}

constexpr Field kFields[] = {
    {82, 1, Call::temperature,
     [](const Question& q, unsigned) {  // the memory's temperature
       return q.has_hbm() ? Known(temperature_of(*q.machine, q.device.gpu) + 6) : std::nullopt;
     }},
    {83, 3, Call::energy, [](const Question& q, unsigned) { return Known(energy_of(*q.machine, q.device.gpu)); }},
    {91, 1, Call::nvlink, [](const Question& q, unsigned) { return unless_zero(q.model().nvlinks); }},
    {94, 1, Call::pcie, [](const Question&, unsigned) { return Known(0); }},  // replays
    {138, 3, Call::nvlink, nvlink_traffic},
    {139, 3, Call::nvlink, nvlink_traffic},
    {140, 3, Call::nvlink, nvlink_traffic},
    {141, 3, Call::nvlink, nvlink_traffic},
    {142, 1, Call::ecc, remapped_rows},
    {143, 1, Call::ecc, remapped_rows},
    {144, 1, Call::ecc, remapped_rows},
    {145, 1, Call::ecc, remapped_rows},
    {147, 1, Call::nvlink,  // NVLinks that lead to switches
     [](const Question& q, unsigned) {
       const bool to_switch = q.model().nvlinks && nvlink_of(q.machine->description, q.device.gpu, 0).to_switch;
       return to_switch ? Known(q.model().nvlinks) : std::nullopt;
     }},
    {164, 1, Call::nvlink, [](const Question& q, unsigned link) { return of_link(q, link, link_speed(q)); }},
    {165, 1, Call::nvlink,  // whether the link is active
     [](const Question& q, unsigned link) {
       return of_link(q, link, nvlink_of(q.machine->description, q.device.gpu, link).is_active);
     }},
    {166, 1, Call::nvlink,
     [](const Question& q, unsigned link) { return of_link(q, link, architecture_of(q.model()).nvlink_version); }},
    {185, 1, Call::power, power_now},  // average
    {186, 1, Call::power, power_now},  // instant
    {187, 1, Call::power_limit,
     [](const Question& q, unsigned scope) { return of_gpu(scope, q.model().lowest_power_limit_mw); }},
    {188, 1, Call::power_limit,
     [](const Question& q, unsigned scope) { return of_gpu(scope, q.model().highest_power_limit_mw); }},
    {189, 1, Call::power_limit, power_limit},  // default
    {190, 1, Call::power_limit, power_limit},  // current
    {192, 1, Call::power_limit, power_limit},  // requested
    // Distances from the highest operating temperature: shutdown, slowdown, the memory's highest, the GPU's highest
    {193, 5, Call::temperature,
     [](const Question& q, unsigned) { return margin_at(q, q.model().shutdown_temperature); }},
    {194, 5, Call::temperature,
     [](const Question& q, unsigned) { return margin_at(q, q.model().slowdown_temperature); }},
    {195, 5, Call::temperature,
     [](const Question& q, unsigned) { return q.has_hbm() && knows_margin(q) ? Known(0) : std::nullopt; }},
    {196, 5, Call::temperature, [](const Question& q, unsigned) { return knows_margin(q) ? Known(0) : std::nullopt; }},
};

}  // namespace

NVML_EXPORT nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count, nvmlFieldValue_t* values) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::fields);
  if (result != NVML_SUCCESS) return result;
  if (!values || count <= 0) return NVML_ERROR_INVALID_ARGUMENT;
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  for (int i = 0; i < count; ++i) {
    nvmlFieldValue_t& value = values[i];
    value.timestamp = static_cast<long long>(now.tv_sec) * 1000000 + now.tv_nsec / 1000;
    value.latencyUsec = 0;
    value.valueType = 1;
    value.nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    memset(&value.value, 0, sizeof value.value);
    for (const Field& field : kFields) {
      if (field.id != value.fieldId) continue;
      value.valueType = field.type;
      value.nvmlReturn = answer(handle, field.call, Symbols::oldest, &value.value.ullVal,
                                [&](const Question& q) { return field.know(q, value.scopeId); });
    }
  }
  return NVML_SUCCESS;
}
