#include "simulator/activity.h"

#include <ctime>

#include "simulator/faults.h"
#include "simulator/slots.h"

namespace simulator {
namespace {

uint64_t milliseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1000000;
}

uint32_t between(uint32_t idle, uint32_t busy, uint32_t percent) {
  return idle + static_cast<uint32_t>(uint64_t{busy > idle ? busy - idle : 0} * percent / 100);
}

}  // namespace

uint32_t utilizationOf(const Machine& machine, uint32_t gpu) {
  const uint32_t fixed = machine.gpus[gpu].utilization.load(std::memory_order_relaxed);
  return fixed != kFollows ? fixed : computedShare(machine, gpu);
}

uint32_t powerOf(const Machine& machine, uint32_t gpu) {
  const uint32_t fixed = machine.gpus[gpu].powerMw.load(std::memory_order_relaxed);
  if (fixed != kFollows) return fixed;
  const Model& model = *machine.description.gpus[gpu].model;
  return between(model.idlePowerMw, model.busyPowerMw, utilizationOf(machine, gpu));
}

uint32_t temperatureOf(const Machine& machine, uint32_t gpu) {
  const uint32_t fixed = machine.gpus[gpu].temperature.load(std::memory_order_relaxed);
  if (fixed != kFollows) return fixed;
  const Model& model = *machine.description.gpus[gpu].model;
  return between(model.idleTemperature, model.busyTemperature, utilizationOf(machine, gpu));
}

bool isAwake(const Machine& machine, uint32_t gpu) {
  return hasLiveContext(machine, gpu) || utilizationOf(machine, gpu) > 0;
}

uint32_t highestClock(const Model& model, Clock clock) {
  return clock == Clock::Memory ? model.memoryMhz : clock == Clock::Video ? model.videoMhz : model.smMhz;
}

uint32_t clockOf(const Machine& machine, uint32_t gpu, Clock clock) {
  const Model& model = *machine.description.gpus[gpu].model;
  const bool awake = isAwake(machine, gpu);
  switch (clock) {
    case Clock::Memory: return awake ? model.memoryMhz : model.idleMemoryMhz;
    case Clock::Video: return awake ? model.videoMhz : model.videoMhz / 2;
    default: return awake ? model.busySmMhz : model.idleSmMhz;
  }
}

void notePower(const Machine& machine, uint32_t gpu) {
  GpuState& state = machine.gpus[gpu];
  if (hasQuirk(machine, kFrozenEnergy)) return;
  const uint64_t now = milliseconds();
  uint64_t since = state.energySinceMs.load(std::memory_order_relaxed);
  // Whoever wins adds what was used since; the counter only grows, whoever reads it meanwhile. The state outlives a
  // boot, the clock doesn't.
  if (since != now && state.energySinceMs.compare_exchange_strong(since, now) && since != 0 && since < now)
    state.energyMj.fetch_add((now - since) * state.energyMw.load(std::memory_order_relaxed) / 1000);
  state.energyMw.store(powerOf(machine, gpu), std::memory_order_relaxed);
}

uint64_t energyOf(const Machine& machine, uint32_t gpu) {
  notePower(machine, gpu);
  return machine.gpus[gpu].energyMj.load();
}

}  // namespace simulator
