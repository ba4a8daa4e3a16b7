#include "simulator/activity.h"

#include "process/futex.h"
#include "simulator/faults.h"
#include "simulator/slots.h"

namespace simulator {
namespace {

uint32_t between(uint32_t idle, uint32_t busy, uint32_t percent) {
  return idle + static_cast<uint32_t>(uint64_t{busy > idle ? busy - idle : 0} * percent / 100);
}

}  // namespace

uint32_t utilization_of(const Machine& machine, uint32_t gpu) {
  const uint32_t fixed = machine.gpus[gpu].utilization.load(std::memory_order_relaxed);
  return fixed != kFollows ? fixed : computed_share(machine, gpu);
}

uint32_t power_of(const Machine& machine, uint32_t gpu) {
  const uint32_t fixed = machine.gpus[gpu].power_mw.load(std::memory_order_relaxed);
  if (fixed != kFollows) return fixed;
  const Model& model = *machine.description.gpus[gpu].model;
  return between(model.idle_power_mw, model.busy_power_mw, utilization_of(machine, gpu));
}

uint32_t temperature_of(const Machine& machine, uint32_t gpu) {
  const uint32_t fixed = machine.gpus[gpu].temperature.load(std::memory_order_relaxed);
  if (fixed != kFollows) return fixed;
  const Model& model = *machine.description.gpus[gpu].model;
  return between(model.idle_temperature, model.busy_temperature, utilization_of(machine, gpu));
}

bool is_awake(const Machine& machine, uint32_t gpu) {
  return has_live_context(machine, gpu) || utilization_of(machine, gpu) > 0;
}

uint32_t highest_clock(const Model& model, Clock clock) {
  return clock == Clock::memory ? model.memory_mhz : clock == Clock::video ? model.video_mhz : model.sm_mhz;
}

uint32_t clock_of(const Machine& machine, uint32_t gpu, Clock clock) {
  const Model& model = *machine.description.gpus[gpu].model;
  const bool awake = is_awake(machine, gpu);
  switch (clock) {
    case Clock::memory: return awake ? model.memory_mhz : model.idle_memory_mhz;
    case Clock::video: return awake ? model.video_mhz : model.video_mhz / 2;
    default: return awake ? model.busy_sm_mhz : model.idle_sm_mhz;
  }
}

void note_power(const Machine& machine, uint32_t gpu) {
  GpuState& state = machine.gpus[gpu];
  const auto now = static_cast<uint64_t>(gpu_owner::process::monotonic_milliseconds());
  uint64_t since = state.energy_since_ms.load(std::memory_order_relaxed);
  // The winner adds the energy used since; the counter only grows, also for readers meanwhile. The state outlives a
  // boot, the clock doesn't.
  if (since != now && state.energy_since_ms.compare_exchange_strong(since, now) && since != 0 && since < now)
    state.energy_mj.fetch_add((now - since) * state.energy_mw.load(std::memory_order_relaxed) / 1000);
  state.energy_mw.store(power_of(machine, gpu), std::memory_order_relaxed);
}

uint64_t energy_of(const Machine& machine, uint32_t gpu) {
  note_power(machine, gpu);
  return machine.gpus[gpu].energy_mj.load();
}

}  // namespace simulator
