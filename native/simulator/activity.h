// The readings of a GPU that follow from what runs on it, unless `set` has fixed them: functions of the shared state
// and the time, so that nothing has to run in the background.
#pragma once
#include "simulator/state.h"

namespace simulator {

uint32_t utilizationOf(const Machine& machine, uint32_t gpu);  // percent
uint32_t powerOf(const Machine& machine, uint32_t gpu);        // milliwatts
uint32_t temperatureOf(const Machine& machine, uint32_t gpu);  // degrees Celsius

// A GPU with a context is awake: its clocks are high.
bool isAwake(const Machine& machine, uint32_t gpu);

enum class Clock { Graphics, Sm, Memory, Video };
uint32_t clockOf(const Machine& machine, uint32_t gpu, Clock clock);  // MHz
uint32_t highestClock(const Model& model, Clock clock);

// The energy that a GPU has used, in millijoules. Between two calls it has used the power noted by the first, so
// whoever changes what runs on a GPU calls notePower afterwards.
uint64_t energyOf(const Machine& machine, uint32_t gpu);
void notePower(const Machine& machine, uint32_t gpu);

}  // namespace simulator
