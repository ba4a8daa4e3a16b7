// The processes that use a simulated GPU. A process is there while it holds the lock on its slot's byte: the kernel
// drops that, however the process ends. Totals are always counted anew, from the slots.
#pragma once
#include "simulator/state.h"

namespace simulator {

// The calling process's own slot.
struct OwnSlot {
  int file = -1;  // the open file description that holds the lock; shared with children that fork
  uint32_t index = 0;
  Slot* slot = nullptr;
};
bool take_slot(const Machine& machine, ProcessType type, uint32_t utilization, OwnSlot* own, Error* error);

// Contexts and memory of the calling process on a unit of a GPU.
void add_context(const Machine& machine, const OwnSlot& own, uint32_t gpu, uint32_t unit);
void remove_context(const Machine& machine, const OwnSlot& own, uint32_t gpu, uint32_t unit);
void add_bytes(const Machine& machine, const OwnSlot& own, uint32_t gpu, uint32_t unit, uint64_t bytes);
void remove_bytes(const Machine& machine, const OwnSlot& own, uint32_t gpu, uint32_t unit, uint64_t bytes);
bool has_contexts(const Machine& machine, const OwnSlot& own, uint32_t gpu);

// Exactly one process at a time can have a GPU in exclusive mode.
bool lock_exclusive(const OwnSlot& own, uint32_t gpu);
void unlock_exclusive(const OwnSlot& own, uint32_t gpu);

bool is_live(const Machine& machine, uint32_t slot);
// Dead, but the driver hasn't noticed yet.
bool is_lingering(const Machine& machine, Slot* slot, uint32_t generation);
// Empties a dead slot for reuse. Only a matter of tidiness: dead slots are ignored anyway.
void reap(const Machine& machine, uint32_t index);

inline uint64_t context_bytes(const Machine& machine, uint32_t type) {
  return type == kMpsServer ? kMpsServerBytes : has_quirk(machine, kSmallContexts) ? kSmallContextBytes : kContextBytes;
}

struct ProcessEntry {
  uint32_t pid;
  ProcessType type;
  uint32_t unit;
  uint32_t contexts;
  uint64_t bytes;        // contexts included
  uint32_t utilization;  // percent of the unit
  uint32_t slot;
  bool alive;
};

// Calls `visit` for each process and unit with a context on this GPU.
template <typename Visit>
inline void for_each_process(const Machine& machine, uint32_t gpu, Visit visit) {
  const uint64_t total = machine.description.gpus[gpu].total();
  for (uint32_t word = 0; word < kSlotWords; ++word) {
    uint64_t bits = machine.gpus[gpu].slots[word].load(std::memory_order_acquire);
    for (; bits; bits &= bits - 1) {
      const uint32_t index = word * 64 + static_cast<uint32_t>(__builtin_ctzll(bits));
      Slot* slot = machine.slot(index);
      ProcessEntry entries[kUnits];
      uint32_t count = 0;
      // Again if the slot changed hands in between; the limit is for a file that another program scribbles on.
      for (int attempt = 0; attempt < 8; ++attempt) {
        count = 0;
        const uint32_t generation = slot->generation.load(std::memory_order_acquire);
        const bool alive = is_live(machine, index);
        if (!alive && !is_lingering(machine, slot, generation)) {
          reap(machine, index);
          break;
        }
        for (uint32_t unit = 0; unit < kUnits; ++unit) {
          const Holding& holding = slot->holdings()[gpu * kUnits + unit];
          uint32_t contexts = holding.contexts.load(std::memory_order_acquire);
          if (!contexts) continue;
          uint64_t bytes = holding.bytes.load(std::memory_order_relaxed);
          if (contexts > 4096) contexts = 4096;
          if (bytes > total) bytes = total;
          const uint32_t type = slot->type.load(std::memory_order_relaxed);
          bytes += contexts * context_bytes(machine, type);
          const uint32_t utilization = slot->utilization.load(std::memory_order_relaxed);
          entries[count++] = {slot->pid.load(std::memory_order_relaxed),
                              type <= kMpsServer ? static_cast<ProcessType>(type) : kCompute,
                              unit,
                              contexts,
                              bytes,
                              utilization < 100 ? utilization : 100,
                              index,
                              alive};
        }
        std::atomic_thread_fence(std::memory_order_acquire);
        if (slot->generation.load(std::memory_order_relaxed) == generation) break;
        count = 0;
      }
      for (uint32_t i = 0; i < count; ++i) visit(entries[i]);
    }
  }
}

// Does an MPS server (Multi-Process Service) run on this GPU?
bool has_mps_server(const Machine& machine, uint32_t gpu);

// Whether a process has a context on this GPU; and how much of it all of them compute with, in percent. These reap no
// dead slots, so that reaping can call them.
bool has_live_context(const Machine& machine, uint32_t gpu);
uint32_t computed_share(const Machine& machine, uint32_t gpu);

// Memory in use, as the driver counts it, without what it reserves.
struct Usage {
  uint64_t gpu;
  uint64_t units[kUnits];
};
Usage usage_of(const Machine& machine, uint32_t gpu);
// Have more been taken than there is?
bool overcommitted(const Machine& machine, uint32_t gpu, uint32_t unit);
uint64_t unit_total(const Machine& machine, uint32_t gpu, uint32_t unit);
uint64_t unit_reserved(const Machine& machine, uint32_t gpu, uint32_t unit);

// Are an X server's processes shown on this GPU?
bool shows_graphics(const Machine& machine, uint32_t gpu);

}  // namespace simulator
