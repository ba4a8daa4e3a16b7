// Signs of life that waiters write into the wait queue's file.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpu_owner::locks {

// A slot has a block of the file for its request, shared by slots at a fixed distance; a heartbeat ends it. As in
// lib/claims/queue/queue-file.ts.
constexpr int64_t kBlocks = 4096;
constexpr int64_t kBlockSize = 4096;
// A heartbeat is text of this size in a file: when it was written, in milliseconds on CLOCK_MONOTONIC, and for how long
// it counts, where that isn't the usual time. After these, "rests" says that its waiter must start a program before it
// can take anything, and "wakes" that it does so now.
constexpr int64_t kHeartbeatSize = 32;
// How old the heartbeat of a living waiter is at most: as HEARTBEAT_TIMEOUT_MS in lib/claims/queue/queue-file.ts.
constexpr int64_t kHeartbeatTimeoutMs = 2'500;
// Behind all blocks and the stamp of the order: when a booking was last made or cancelled, written as a heartbeat.
constexpr int64_t kBookingsOffset = kBlocks * kBlockSize + 32;

constexpr int64_t block_offset(int64_t slot) { return slot % kBlocks * kBlockSize; }
constexpr int64_t heartbeat_offset(int64_t slot) { return block_offset(slot) + kBlockSize - kHeartbeatSize; }

// A slot's block begins with its request's tag, of which these characters are the order: as lib/claims/rules/order.ts
// has it.
struct OrderKey {
  static constexpr int64_t kSize = sizeof "1 0123456789012345" - 1;
  static constexpr char kPreemptible = '2';

  bool exists = false;  // releases without tags write none
  char text[kSize] = {};

  bool operator==(const OrderKey& other) const;
  bool operator<(const OrderKey& other) const;
  // The class comes first.
  bool is_preemptible() const { return text[0] == kPreemptible; }
};

// The key in a block, or in its beginning.
OrderKey order_key_in(const char* block, size_t size);
// Reads the key of the slot with this heartbeat.
OrderKey read_order_key(int descriptor, int64_t heartbeat_offset);
// Adds the whole tag to a hash of tags: a change says that the order is another one, or the request.
uint64_t add_order(uint64_t hash, int descriptor, int64_t heartbeat_offset);

enum class Pulse { runs, rests, wakes };

// Writes one now, which counts for `counts` ms; 0: the usual time. 0 or an errno value.
int write_heartbeat(int descriptor, int64_t offset, Pulse pulse = Pulse::runs, int64_t counts = 0);
// Whether the heartbeat there still counts. `timeout` is the usual time in ms.
bool is_alive(int descriptor, int64_t offset, int64_t timeout);
// Whether it says that its waiter wakes, and still counts.
bool is_waking(int descriptor, int64_t offset);

// When bookings last changed, if that was after the time given, else 0. CLOCK_MONOTONIC, ms.
int64_t bookings_changed(int descriptor, int64_t since);

}  // namespace gpu_owner::locks
