// The readings of a GPU that follow from what runs on it, unless `set` has fixed them: functions of the shared state
// and the time, so that nothing has to run in the background.
#pragma once
#include "simulator/state.h"

namespace simulator {

uint32_t utilization_of(const Machine& machine, uint32_t gpu);  // percent
uint32_t power_of(const Machine& machine, uint32_t gpu);        // milliwatts
uint32_t temperature_of(const Machine& machine, uint32_t gpu);  // degrees Celsius

// A GPU with a context is awake: its clocks are high.
bool is_awake(const Machine& machine, uint32_t gpu);

enum class Clock { graphics, sm, memory, video };
uint32_t clock_of(const Machine& machine, uint32_t gpu, Clock clock);  // MHz
uint32_t highest_clock(const Model& model, Clock clock);

// The energy that a GPU has used, in millijoules. Between two calls it has used the power noted by the first, so a
// change of what runs on a GPU is followed by note_power.
uint64_t energy_of(const Machine& machine, uint32_t gpu);
void note_power(const Machine& machine, uint32_t gpu);

}  // namespace simulator
