// Faults that a call meets before it does anything: it may be counted, then a hang, a delay, a GPU that is lost, an
// error switched on.
#pragma once
#include <ctime>

#include "simulator/state.h"

namespace simulator {

// Blocks while the call hangs, until the fault is lifted.
void hang(const std::atomic<uint64_t>& mask, uint64_t bit);

// Accurate: sleeps when there is time to, spins for the rest.
void delay(uint32_t microseconds);
// As delay, one thread of this process after the other.
void delay_one_by_one(uint32_t microseconds);

// Only when asked for: processes would take each other's cache lines away.
inline void count(const Machine& machine, unsigned call) {
  CallCounts& calls = machine.header->calls;
  if (__builtin_expect(calls.on.load(std::memory_order_relaxed) != 0, 0))
    calls.made[call].fetch_add(1, std::memory_order_relaxed);
}

// An XID error of a GPU, which wakes who waits for events.
void raise_xid(const Machine& machine, uint32_t gpu, uint32_t xid);
// Sleeps until there are other than `count` events; false at `end` (CLOCK_MONOTONIC), or when a signal came.
bool sleep_until_event(const Machine& machine, uint32_t count, const timespec& end);

// For a call about one GPU. The machine's latency holds where the GPU has none of its own.
inline void stall(const Machine& machine, uint32_t gpu, Call call) {
  const auto i = static_cast<unsigned>(call);
  count(machine, i);
  const Faults& own = machine.gpus[gpu].faults;
  const Faults& all = machine.header->faults;
  if (__builtin_expect((own.hang.load(std::memory_order_relaxed) & call_bit(i)) != 0, 0)) hang(own.hang, call_bit(i));
  if (__builtin_expect((all.hang.load(std::memory_order_relaxed) & call_bit(i)) != 0, 0)) hang(all.hang, call_bit(i));
  uint32_t latency = own.latency_us[i].load(std::memory_order_relaxed);
  if (!latency) latency = all.latency_us[i].load(std::memory_order_relaxed);
  if (__builtin_expect(latency != 0, 0)) has_quirk(machine, kSerial) ? delay_one_by_one(latency) : delay(latency);
}

// For a call that concerns no single GPU.
inline void stall(const Machine& machine, Call call) {
  const auto i = static_cast<unsigned>(call);
  count(machine, i);
  const Faults& all = machine.header->faults;
  if (__builtin_expect((all.hang.load(std::memory_order_relaxed) & call_bit(i)) != 0, 0)) hang(all.hang, call_bit(i));
  const uint32_t latency = all.latency_us[i].load(std::memory_order_relaxed);
  if (__builtin_expect(latency != 0, 0)) delay(latency);
}

// The code switched on for this call; 0 = none.
inline uint32_t injected_error(const Machine& machine, uint32_t gpu, Call call) {
  const auto i = static_cast<unsigned>(call);
  const uint32_t own = machine.gpus[gpu].faults.error[i].load(std::memory_order_relaxed);
  return own ? own : machine.header->faults.error[i].load(std::memory_order_relaxed);
}

inline uint32_t injected_error(const Machine& machine, Call call) {
  return machine.header->faults.error[static_cast<unsigned>(call)].load(std::memory_order_relaxed);
}

inline uint32_t health_of(const Machine& machine, uint32_t gpu) {
  return machine.gpus[gpu].health.load(std::memory_order_relaxed);
}

inline bool mig_on(const Machine& machine, uint32_t gpu) {
  return machine.gpus[gpu].mig.load(std::memory_order_relaxed) && machine.description.gpus[gpu].can_mig();
}

// Whether there is such an instance at present; unit 1 is the first.
inline bool instance_exists(const Machine& machine, uint32_t gpu, uint32_t unit) {
  const uint32_t absent = machine.gpus[gpu].absent_instances.load(std::memory_order_relaxed);
  return mig_on(machine, gpu) && machine.description.gpus[gpu].instances[unit - 1].present &&
         !(absent >> (unit - 1) & 1);
}

}  // namespace simulator
