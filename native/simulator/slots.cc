#include "simulator/slots.h"

#include <fcntl.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "simulator/activity.h"

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

namespace simulator {
namespace {

struct flock lockOf(short type, int64_t byte) {
  struct flock lock;
  memset(&lock, 0, sizeof lock);
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(byte);
  lock.l_len = 1;
  return lock;
}

bool tryLock(int file, int64_t byte) {
  struct flock lock = lockOf(F_WRLCK, byte);
  return fcntl(file, F_OFD_SETLK, &lock) == 0;
}

void unlock(int file, int64_t byte) {
  struct flock lock = lockOf(F_UNLCK, byte);
  fcntl(file, F_OFD_SETLK, &lock);
}

// In doubt yes: nobody's slot is taken away by mistake.
bool isLocked(int file, int64_t byte) {
  struct flock lock = lockOf(F_WRLCK, byte);
  return fcntl(file, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

uint64_t milliseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1000000 + 1;
}

Holding& holdingOf(const OwnSlot& own, uint32_t gpu, uint32_t unit) {
  return own.slot->holdings()[gpu * kUnits + unit];
}

// Under the slot's allocation lock, with the owner dead. The pid goes last: until then the slot counts as unclean.
void clear(const Machine& machine, uint32_t index) {
  Slot* slot = machine.slot(index);
  const uint64_t bit = uint64_t{1} << index % 64;
  for (uint32_t gpu = 0; gpu < machine.gpuCount; ++gpu)
    if (machine.gpus[gpu].slots[index / 64].fetch_and(~bit) & bit) notePower(machine, gpu);
  for (uint32_t i = 0; i < machine.gpuCount * kUnits; ++i) {
    slot->holdings()[i].contexts = 0;
    slot->holdings()[i].bytes = 0;
  }
  slot->dead = 0;
  slot->type = kCompute;
  slot->utilization = 0;
  slot->pid = 0;
}

bool tryTake(const Machine& machine, int file, uint32_t index, ProcessType type, uint32_t utilization) {
  Slot* slot = machine.slot(index);
  if (isLocked(file, livenessByte(index)) || !tryLock(file, allocationByte(index))) return false;
  bool taken = false;
  if (!isLocked(file, livenessByte(index)) && (slot->pid == 0 || !isLingering(machine, slot, slot->generation))) {
    // Emptied before the lock is taken: who sees the lock sees nothing of the last owner. Always: whatever the pid
    // says, a file that others can write to may hold anything.
    clear(machine, index);
    if (tryLock(file, livenessByte(index))) {
      slot->generation.fetch_add(1);
      slot->type = type;
      slot->utilization = utilization;
      slot->pid = static_cast<uint32_t>(getpid());
      taken = true;
    }
  }
  unlock(file, allocationByte(index));
  return taken;
}

}  // namespace

bool takeSlot(const Machine& machine, ProcessType type, uint32_t utilization, OwnSlot* own, Error* error) {
  const int file = reopenSlots(machine);
  if (file < 0)
    return error->set("cannot open %s/slots again: %s; does this program close descriptors that aren't its own?",
                      machine.directory, strerror(errno));
  // From somewhere else each: many processes that start together don't meet at the same slot.
  const uint32_t first = static_cast<uint32_t>(getpid()) % kSlots;
  for (uint32_t i = 0; i < kSlots; ++i) {
    const uint32_t index = (first + i) % kSlots;
    if (!tryTake(machine, file, index, type, utilization)) continue;
    own->file = file;
    own->index = index;
    own->slot = machine.slot(index);
    return true;
  }
  close(file);
  return error->set("%u processes already use this simulated machine, which is all it has room for", kSlots);
}

void addContext(const Machine& machine, const OwnSlot& own, uint32_t gpu, uint32_t unit) {
  holdingOf(own, gpu, unit).contexts.fetch_add(1, std::memory_order_release);
  machine.gpus[gpu].slots[own.index / 64].fetch_or(uint64_t{1} << own.index % 64, std::memory_order_release);
  notePower(machine, gpu);
}

void removeContext(const Machine& machine, const OwnSlot& own, uint32_t gpu, uint32_t unit) {
  holdingOf(own, gpu, unit).contexts.fetch_sub(1, std::memory_order_release);
  if (!hasContexts(machine, own, gpu))
    machine.gpus[gpu].slots[own.index / 64].fetch_and(~(uint64_t{1} << own.index % 64), std::memory_order_release);
  notePower(machine, gpu);
}

void addBytes(const Machine&, const OwnSlot& own, uint32_t gpu, uint32_t unit, uint64_t bytes) {
  holdingOf(own, gpu, unit).bytes.fetch_add(bytes);
}

void removeBytes(const Machine&, const OwnSlot& own, uint32_t gpu, uint32_t unit, uint64_t bytes) {
  holdingOf(own, gpu, unit).bytes.fetch_sub(bytes);
}

bool hasContexts(const Machine&, const OwnSlot& own, uint32_t gpu) {
  for (uint32_t unit = 0; unit < kUnits; ++unit)
    if (holdingOf(own, gpu, unit).contexts) return true;
  return false;
}

bool lockExclusive(const OwnSlot& own, uint32_t gpu) { return tryLock(own.file, exclusiveByte(gpu)); }
void unlockExclusive(const OwnSlot& own, uint32_t gpu) { unlock(own.file, exclusiveByte(gpu)); }

bool isLive(const Machine& machine, uint32_t slot) { return isLocked(machine.slotsFile, livenessByte(slot)); }

bool isLingering(const Machine& machine, Slot* slot, uint32_t generation) {
  uint32_t teardown = machine.header->teardownMs.load(std::memory_order_relaxed);
  if (teardown == 0) return false;
  if (teardown > kMaxTeardownMs) teardown = kMaxTeardownMs;
  constexpr uint64_t kTime = (uint64_t{1} << 48) - 1;
  const uint64_t now = milliseconds() & kTime;
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
  const int file = reopenSlots(machine);
  if (file < 0) return;
  Slot* slot = machine.slot(index);
  if (tryLock(file, allocationByte(index)) && !isLocked(file, livenessByte(index)) &&
      !isLingering(machine, slot, slot->generation))
    clear(machine, index);
  close(file);
}

namespace {

// Calls `visit` with the index of each slot on this GPU until it returns true.
template <typename Visit>
bool anySlot(const Machine& machine, uint32_t gpu, Visit visit) {
  for (uint32_t word = 0; word < kSlotWords; ++word)
    for (uint64_t bits = machine.gpus[gpu].slots[word].load(std::memory_order_acquire); bits; bits &= bits - 1)
      if (visit(word * 64 + static_cast<uint32_t>(__builtin_ctzll(bits)))) return true;
  return false;
}

}  // namespace

bool hasLiveContext(const Machine& machine, uint32_t gpu) {
  return anySlot(machine, gpu, [&](uint32_t index) { return isLive(machine, index); });
}

uint32_t computedShare(const Machine& machine, uint32_t gpu) {
  const Gpu& description = machine.description.gpus[gpu];
  uint32_t percent = 0;
  anySlot(machine, gpu, [&](uint32_t index) {
    Slot* slot = machine.slot(index);
    const uint32_t utilization = slot->utilization.load(std::memory_order_relaxed);
    // Only then is a system call needed.
    if (utilization == 0 || !isLive(machine, index)) return false;
    for (uint32_t unit = 0; unit < kUnits; ++unit)
      if (slot->holdings()[gpu * kUnits + unit].contexts.load(std::memory_order_acquire))
        percent += (utilization < 100 ? utilization : 100) * (unit ? description.instances[unit - 1].slices : 7) / 7;
    return percent >= 100;
  });
  return percent < 100 ? percent : 100;
}

uint64_t unitTotal(const Machine& machine, uint32_t gpu, uint32_t unit) {
  const Gpu& description = machine.description.gpus[gpu];
  return unit == 0 ? description.total() : description.instances[unit - 1].memory;
}

uint64_t unitReserved(const Machine& machine, uint32_t gpu, uint32_t unit) {
  return unit == 0 ? machine.description.gpus[gpu].reserved() : 0;
}

bool showsGraphics(const Machine& machine, uint32_t gpu) {
  return machine.gpus[gpu].display.load(std::memory_order_relaxed) || machine.description.gpus[gpu].graphicsAlways;
}

namespace {

// Anything but a process of a slot.
uint64_t standingUse(const Machine& machine, uint32_t gpu) {
  const Gpu& description = machine.description.gpus[gpu];
  const uint64_t room = description.total() - description.reserved();
  uint64_t used = description.baseUsed;
  if (showsGraphics(machine, gpu))
    for (uint32_t i = 0; i < description.graphicsCount; ++i) used += description.graphics[i].memoryMiB * kMiB;
  const uint64_t hidden = machine.gpus[gpu].hiddenMemory.load(std::memory_order_relaxed);
  return used + (hidden < room ? hidden : room);
}

}  // namespace

bool hasMpsServer(const Machine& machine, uint32_t gpu) {
  bool found = false;
  forEachProcess(machine, gpu, [&](const ProcessEntry& entry) { found |= entry.alive && entry.type == kMpsServer; });
  return found;
}

Usage usageOf(const Machine& machine, uint32_t gpu) {
  Usage usage = {};
  usage.gpu = standingUse(machine, gpu);
  forEachProcess(machine, gpu, [&](const ProcessEntry& entry) {
    usage.units[entry.unit] += entry.bytes;
    usage.gpu += entry.bytes;
  });
  const uint64_t room = unitTotal(machine, gpu, 0) - unitReserved(machine, gpu, 0);
  if (usage.gpu > room) usage.gpu = room;
  for (uint32_t unit = 1; unit < kUnits; ++unit) {
    const uint64_t total = unitTotal(machine, gpu, unit);
    if (usage.units[unit] > total) usage.units[unit] = total;
  }
  return usage;
}

bool overcommitted(const Machine& machine, uint32_t gpu, uint32_t unit) {
  uint64_t used = unit == 0 ? standingUse(machine, gpu) : 0;
  forEachProcess(machine, gpu, [&](const ProcessEntry& entry) {
    if (unit == 0 || entry.unit == unit) used += entry.bytes;
  });
  return used > unitTotal(machine, gpu, unit) - unitReserved(machine, gpu, unit);
}

}  // namespace simulator
