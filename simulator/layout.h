// The layout of a simulated machine's `state` file, which processes share.
//
// Nothing in here is ever locked, so a process killed at any instruction leaves nothing wedged. Switches are atomics.
// A slot belongs to the process that holds the file lock on its byte of `slots`; what a dead owner left is ignored.
// The file is untrusted: counts and sizes are those of the machine's description, never what the file says.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "simulator/calls.h"

namespace simulator {

constexpr uint64_t kMagic = 0x4d49532d4f555047;  // "GPUO-SIM"
constexpr uint32_t kLayoutVersion = 5;
constexpr uint32_t kMaxGpus = 64;
constexpr uint32_t kSlots = 1024;
constexpr uint32_t kSlotWords = kSlots / 64;
// Memory and contexts are counted per unit: unit 0 is the whole GPU, 1 to 7 are its MIG instances.
constexpr uint32_t kUnits = 8;
constexpr uint32_t kCallSpace = 48;
constexpr uint64_t kMiB = 1024 * 1024;
constexpr uint64_t kContextBytes = 416 * kMiB;
constexpr uint64_t kSmallContextBytes = 40 * kMiB;
constexpr uint64_t kMpsServerBytes = 30 * kMiB;  // an MPS server's own, per GPU
constexpr uint32_t kMaxTeardownMs = 10 * 60 * 1000;
constexpr uint32_t kFollows = 0xffffffff;  // a reading that isn't set: it follows what runs on the GPU
constexpr uint32_t kXids = 8;

static_assert(kCalls <= kCallSpace, "room for every call");

// Ways in which a driver may differ from what programs rely on, by their names in the tool.
enum Quirk : uint32_t { kSerial = 1, kAllVisible = 2, kSmallContexts = 4 };
constexpr const char* kQuirkNames[] = {"serial", "all-visible", "small-contexts"};

// The repair of faulty memory: spare memory takes its place at the next reset, or there is none.
enum Repair : uint32_t { kNoRepair = 0, kRepairPending = 1, kRepairFailed = 2 };

enum Health : uint32_t { kLost = 1, kResetRequired = 2, kNoPermission = 4 };

// For the whole machine, or for one GPU.
struct Faults {
  std::atomic<uint64_t> hang;                    // a bit per call
  std::atomic<uint32_t> latency_us[kCallSpace];  // 0 = none
  std::atomic<uint32_t> error[kCallSpace];       // the code returned instead; 0 = none
};

// How often each call was made, by all processes together.
struct CallCounts {
  std::atomic<uint32_t> on;
  std::atomic<uint64_t> made[kCallSpace];
};

struct alignas(64) Header {
  uint64_t magic;
  uint32_t version;
  uint32_t gpu_count;
  uint64_t size;
  char machine[64];
  std::atomic<uint64_t> slots_inode;  // of the `slots` file that belongs to this state
  std::atomic<uint32_t> teardown_ms;
  std::atomic<uint32_t> pid_offset;  // added to the PIDs that NVML lists
  std::atomic<uint32_t> quirks;
  std::atomic<uint32_t> event_count;  // counts all GPUs; waiters for events sleep on it (a futex)
  Faults faults;
  alignas(64) CallCounts calls;
};

struct alignas(64) GpuState {
  std::atomic<uint32_t> health;
  std::atomic<uint32_t> compute_mode;
  std::atomic<uint32_t> mig;
  std::atomic<uint32_t> display;
  std::atomic<uint32_t> hidden_processes;
  std::atomic<uint32_t> ecc_errors;     // that could not be corrected
  std::atomic<uint32_t> memory_repair;  // Repair
  std::atomic<uint32_t> utilization;
  std::atomic<uint32_t> power_mw;
  std::atomic<uint32_t> temperature;
  std::atomic<uint64_t> hidden_memory;
  // Energy used until the power was last noted, when that was, and the power.
  std::atomic<uint64_t> energy_mj;
  std::atomic<uint64_t> energy_since_ms;
  std::atomic<uint32_t> energy_mw;
  // How many XID errors there have been; the last of them, the n-th at n % kXids.
  std::atomic<uint32_t> xid_count;
  std::atomic<uint32_t> xids[kXids];
  Faults faults;
  // MIG instances of the machine's description that don't exist at present: a bit each.
  std::atomic<uint32_t> absent_instances;
  // Which slots have a context here: an index only, so that a look at an idle GPU needs no system call.
  alignas(64) std::atomic<uint64_t> slots[kSlotWords];
};

struct Holding {
  std::atomic<uint32_t> contexts;
  uint32_t unused;
  std::atomic<uint64_t> bytes;
};

// kBoth is listed twice; kMpsServer as computing, and so are its clients: all that compute on a GPU where there is one.
enum ProcessType : uint32_t { kCompute = 0, kGraphics = 1, kBoth = 2, kMpsServer = 3 };

struct alignas(64) Slot {
  std::atomic<uint32_t> generation;
  std::atomic<uint32_t> pid;
  std::atomic<uint32_t> type;
  std::atomic<uint32_t> utilization;  // percent of each GPU that it has contexts on
  std::atomic<uint64_t> dead;         // generation (16 bits) and time in ms when the owner was first seen dead
  Holding* holdings() { return reinterpret_cast<Holding*>(this + 1); }  // [gpu_count * kUnits]
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free,
              "atomics in shared memory must be lock-free");

constexpr size_t slot_stride(uint32_t gpu_count) { return sizeof(Slot) + size_t{gpu_count} * kUnits * sizeof(Holding); }
constexpr size_t state_size(uint32_t gpu_count) {
  return sizeof(Header) + gpu_count * sizeof(GpuState) + kSlots * slot_stride(gpu_count);
}
static_assert(slot_stride(1) % 64 == 0, "slots stay aligned");

// Bytes of the `slots` file that are locked. Only its owner ever locks a slot's first byte.
constexpr int64_t liveness_byte(uint32_t slot) { return slot; }
constexpr int64_t allocation_byte(uint32_t slot) { return int64_t{kSlots} + slot; }
constexpr int64_t exclusive_byte(uint32_t gpu) { return int64_t{2} * kSlots + gpu; }

}  // namespace simulator
