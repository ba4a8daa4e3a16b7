#include "simulator/slots.h"

#include <fcntl.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>

#include "process/futex.h"
#include "process/unique_fd.h"
#include "simulator/activity.h"

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

namespace simulator {

using gpu_owner::process::UniqueFd;

namespace {

struct flock lock_of(short type, int64_t byte) {
  struct flock lock;
  memset(&lock, 0, sizeof lock);
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(byte);
  lock.l_len = 1;
  return lock;
}

bool try_lock(int file, int64_t byte) {
  struct flock lock = lock_of(F_WRLCK, byte);
  return fcntl(file, F_OFD_SETLK, &lock) == 0;
}

void unlock(int file, int64_t byte) {
  struct flock lock = lock_of(F_UNLCK, byte);
  fcntl(file, F_OFD_SETLK, &lock);
}

// In doubt yes: no slot is taken away by mistake.
bool is_locked(int file, int64_t byte) {
  struct flock lock = lock_of(F_WRLCK, byte);
  return fcntl(file, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

Holding& holding_of(const OwnSlot& own, uint32_t gpu, uint32_t unit) {
  return own.slot->holdings()[gpu * kUnits + unit];
}

// Under the slot's allocation lock, with the owner dead. The pid goes last: until then the slot counts as unclean.
void clear(const Machine& machine, uint32_t index) {
  Slot* slot = machine.slot(index);
  const uint64_t bit = uint64_t{1} << index % 64;
  for (uint32_t gpu = 0; gpu < machine.gpu_count; ++gpu)
    if (machine.gpus[gpu].slots[index / 64].fetch_and(~bit) & bit) note_power(machine, gpu);
  for (uint32_t i = 0; i < machine.gpu_count * kUnits; ++i) {
    slot->holdings()[i].contexts = 0;
    slot->holdings()[i].bytes = 0;
  }
  slot->dead = 0;
  slot->type = kCompute;
  slot->utilization = 0;
  slot->pid = 0;
}

bool try_take(const Machine& machine, int file, uint32_t index, ProcessType type, uint32_t utilization) {
  Slot* slot = machine.slot(index);
  if (is_locked(file, liveness_byte(index)) || !try_lock(file, allocation_byte(index))) return false;
  bool taken = false;
  if (!is_locked(file, liveness_byte(index)) && (slot->pid == 0 || !is_lingering(machine, slot, slot->generation))) {
    // Emptied before the lock is taken: who sees the lock sees nothing of the last owner. Always: whatever the pid
    // says, a file that others can write to may hold anything.
    clear(machine, index);
    if (try_lock(file, liveness_byte(index))) {
      slot->generation.fetch_add(1);
      slot->type = type;
      slot->utilization = utilization;
      slot->pid = static_cast<uint32_t>(getpid());
      taken = true;
    }
  }
  unlock(file, allocation_byte(index));
  return taken;
}

}  // namespace

bool take_slot(const Machine& machine, ProcessType type, uint32_t utilization, OwnSlot* own, Error* error) {
  UniqueFd file(reopen_slots(machine));
  if (!file)
    return error->set("cannot open %s/slots again: %s; does this program close descriptors that aren't its own?",
                      machine.directory, strerror(errno));
  // From somewhere else each: many processes that start together don't meet at the same slot.
  const uint32_t first = static_cast<uint32_t>(getpid()) % kSlots;
  for (uint32_t i = 0; i < kSlots; ++i) {
    const uint32_t index = (first + i) % kSlots;
    if (!try_take(machine, file.get(), index, type, utilization)) continue;
    own->file = file.release();
    own->index = index;
    own->slot = machine.slot(index);
    return true;
  }
  return error->set("%u processes already use this simulated machine, which is all it has room for", kSlots);
}

void add_context(const Machine& machine, const OwnSlot& own, uint32_t gpu, uint32_t unit) {
  holding_of(own, gpu, unit).contexts.fetch_add(1, std::memory_order_release);
  machine.gpus[gpu].slots[own.index / 64].fetch_or(uint64_t{1} << own.index % 64, std::memory_order_release);
  note_power(machine, gpu);
}

void remove_context(const Machine& machine, const OwnSlot& own, uint32_t gpu, uint32_t unit) {
  holding_of(own, gpu, unit).contexts.fetch_sub(1, std::memory_order_release);
  if (!has_contexts(machine, own, gpu))
    machine.gpus[gpu].slots[own.index / 64].fetch_and(~(uint64_t{1} << own.index % 64), std::memory_order_release);
  note_power(machine, gpu);
}

void add_bytes(const Machine&, const OwnSlot& own, uint32_t gpu, uint32_t unit, uint64_t bytes) {
  holding_of(own, gpu, unit).bytes.fetch_add(bytes);
}

void remove_bytes(const Machine&, const OwnSlot& own, uint32_t gpu, uint32_t unit, uint64_t bytes) {
  holding_of(own, gpu, unit).bytes.fetch_sub(bytes);
}

bool has_contexts(const Machine&, const OwnSlot& own, uint32_t gpu) {
  for (uint32_t unit = 0; unit < kUnits; ++unit)
    if (holding_of(own, gpu, unit).contexts) return true;
  return false;
}

bool lock_exclusive(const OwnSlot& own, uint32_t gpu) { return try_lock(own.file, exclusive_byte(gpu)); }
void unlock_exclusive(const OwnSlot& own, uint32_t gpu) { unlock(own.file, exclusive_byte(gpu)); }

bool is_live(const Machine& machine, uint32_t slot) { return is_locked(machine.slots_file, liveness_byte(slot)); }

bool is_lingering(const Machine& machine, Slot* slot, uint32_t generation) {
  uint32_t teardown = machine.header->teardown_ms.load(std::memory_order_relaxed);
  if (teardown == 0) return false;
  if (teardown > kMaxTeardownMs) teardown = kMaxTeardownMs;
  constexpr uint64_t kTime = (uint64_t{1} << 48) - 1;
  const uint64_t now = static_cast<uint64_t>(gpu_owner::process::monotonic_milliseconds() + 1) & kTime;
  const uint64_t tag = uint64_t{generation & 0xffff} << 48;
  uint64_t seen = slot->dead.load();
  while ((seen & ~kTime) != tag || (seen & kTime) == 0)
    if (slot->dead.compare_exchange_weak(seen, tag | now)) return true;
  seen &= kTime;
  return seen <= now && now - seen < teardown;
}

void reap(const Machine& machine, uint32_t index) {
  // An open file description of its own: locks don't exclude threads, or a forked child, that share one. Closing it
  // drops the lock.
  const UniqueFd file(reopen_slots(machine));
  if (!file) return;
  Slot* slot = machine.slot(index);
  if (try_lock(file.get(), allocation_byte(index)) && !is_locked(file.get(), liveness_byte(index)) &&
      !is_lingering(machine, slot, slot->generation))
    clear(machine, index);
}

namespace {

// Calls `visit` with the index of each slot on this GPU until it returns true.
template <typename Visit>
bool any_slot(const Machine& machine, uint32_t gpu, Visit visit) {
  for (uint32_t word = 0; word < kSlotWords; ++word)
    for (uint64_t bits = machine.gpus[gpu].slots[word].load(std::memory_order_acquire); bits; bits &= bits - 1)
      if (visit(word * 64 + static_cast<uint32_t>(__builtin_ctzll(bits)))) return true;
  return false;
}

}  // namespace

bool has_live_context(const Machine& machine, uint32_t gpu) {
  return any_slot(machine, gpu, [&](uint32_t index) { return is_live(machine, index); });
}

uint32_t computed_share(const Machine& machine, uint32_t gpu) {
  const Gpu& description = machine.description.gpus[gpu];
  uint32_t percent = 0;
  any_slot(machine, gpu, [&](uint32_t index) {
    Slot* slot = machine.slot(index);
    const uint32_t utilization = slot->utilization.load(std::memory_order_relaxed);
    // Only then is a system call needed.
    if (utilization == 0 || !is_live(machine, index)) return false;
    for (uint32_t unit = 0; unit < kUnits; ++unit)
      if (slot->holdings()[gpu * kUnits + unit].contexts.load(std::memory_order_acquire))
        percent += (utilization < 100 ? utilization : 100) * (unit ? description.instances[unit - 1].slices : 7) / 7;
    return percent >= 100;
  });
  return percent < 100 ? percent : 100;
}

uint64_t unit_total(const Machine& machine, uint32_t gpu, uint32_t unit) {
  const Gpu& description = machine.description.gpus[gpu];
  return unit == 0 ? description.total() : description.instances[unit - 1].memory;
}

uint64_t unit_reserved(const Machine& machine, uint32_t gpu, uint32_t unit) {
  return unit == 0 ? machine.description.gpus[gpu].reserved() : 0;
}

bool shows_graphics(const Machine& machine, uint32_t gpu) {
  return machine.gpus[gpu].display.load(std::memory_order_relaxed) || machine.description.gpus[gpu].graphics_always;
}

namespace {

// Anything but a process of a slot.
uint64_t standing_use(const Machine& machine, uint32_t gpu) {
  const Gpu& description = machine.description.gpus[gpu];
  const uint64_t room = description.total() - description.reserved();
  uint64_t used = description.base_used;
  if (shows_graphics(machine, gpu))
    for (uint32_t i = 0; i < description.graphics_count; ++i) used += description.graphics[i].memory_mib * kMiB;
  const uint64_t hidden = machine.gpus[gpu].hidden_memory.load(std::memory_order_relaxed);
  return used + (hidden < room ? hidden : room);
}

}  // namespace

bool has_mps_server(const Machine& machine, uint32_t gpu) {
  bool found = false;
  for_each_process(machine, gpu, [&](const ProcessEntry& entry) { found |= entry.alive && entry.type == kMpsServer; });
  return found;
}

Usage usage_of(const Machine& machine, uint32_t gpu) {
  Usage usage = {};
  usage.gpu = standing_use(machine, gpu);
  for_each_process(machine, gpu, [&](const ProcessEntry& entry) {
    usage.units[entry.unit] += entry.bytes;
    usage.gpu += entry.bytes;
  });
  const uint64_t room = unit_total(machine, gpu, 0) - unit_reserved(machine, gpu, 0);
  if (usage.gpu > room) usage.gpu = room;
  for (uint32_t unit = 1; unit < kUnits; ++unit) {
    const uint64_t total = unit_total(machine, gpu, unit);
    if (usage.units[unit] > total) usage.units[unit] = total;
  }
  return usage;
}

bool overcommitted(const Machine& machine, uint32_t gpu, uint32_t unit) {
  uint64_t used = unit == 0 ? standing_use(machine, gpu) : 0;
  for_each_process(machine, gpu, [&](const ProcessEntry& entry) {
    if (unit == 0 || entry.unit == unit) used += entry.bytes;
  });
  return used > unit_total(machine, gpu, unit) - unit_reserved(machine, gpu, unit);
}

}  // namespace simulator
