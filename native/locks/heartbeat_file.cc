#include "locks/heartbeat_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "locks/files.h"
#include "process/futex.h"

namespace gpu_owner::locks {
namespace {

constexpr char kTagPrefix[] = "{\"order\":\"";
constexpr int64_t kPrefixSize = sizeof kTagPrefix - 1;
constexpr int64_t kTagSize = 63;  // as TAG_LENGTH in lib/claims/rules/order.ts

// Anybody may have written it: a heartbeat counts for no longer than this.
constexpr int64_t kMaxCounts = 60'000;
constexpr char kWakes[] = "wakes";

struct HeartbeatText {
  char text[kHeartbeatSize + 1] = {};
  int64_t written = 0;
  int64_t counts = 0;  // 0: the usual time

  bool read(int descriptor, int64_t offset) {
    if (pread(descriptor, text, kHeartbeatSize, offset) != kHeartbeatSize) return false;
    char* end = nullptr;
    written = strtoll(text, &end, 10);
    counts = strtoll(end, nullptr, 10);
    if (counts < 0 || counts > kMaxCounts) counts = kMaxCounts;
    return true;
  }
  bool is_alive(int64_t timeout) const {
    const int64_t ago = process::monotonic_milliseconds() - written;
    return ago < (counts == 0 ? timeout : counts) && ago > -timeout;
  }
};

}  // namespace

bool OrderKey::operator==(const OrderKey& other) const {
  return exists == other.exists && memcmp(text, other.text, kSize) == 0;
}

bool OrderKey::operator<(const OrderKey& other) const { return memcmp(text, other.text, kSize) < 0; }

OrderKey order_key_in(const char* block, size_t size) {
  OrderKey key;
  if (size < static_cast<size_t>(kPrefixSize + OrderKey::kSize) || memcmp(block, kTagPrefix, kPrefixSize) != 0)
    return key;
  key.exists = true;
  memcpy(key.text, block + kPrefixSize, OrderKey::kSize);
  return key;
}

OrderKey read_order_key(int descriptor, int64_t heartbeat_offset) {
  char block[kPrefixSize + OrderKey::kSize];
  const ssize_t size = pread(descriptor, block, sizeof block, heartbeat_offset + kHeartbeatSize - kBlockSize);
  return order_key_in(block, size < 0 ? 0 : static_cast<size_t>(size));
}

uint64_t add_order(uint64_t hash, int descriptor, int64_t heartbeat_offset) {
  char tag[kPrefixSize + kTagSize] = {};
  if (pread(descriptor, tag, sizeof tag, heartbeat_offset + kHeartbeatSize - kBlockSize) != sizeof tag ||
      memcmp(tag, kTagPrefix, kPrefixSize) != 0)
    memset(tag, 0, sizeof tag);
  for (const char c : tag) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;  // FNV-1a
  return hash;
}

int write_heartbeat(int descriptor, int64_t offset, Pulse pulse, int64_t counts) {
  const char* word = pulse == Pulse::runs ? "" : pulse == Pulse::rests ? "rests" : kWakes;
  char number[24] = "", text[kHeartbeatSize + 1];
  if (counts > 0) snprintf(number, sizeof number, "%" PRId64, counts);
  snprintf(text, sizeof text, "\n%-16" PRId64 " %7s %5s\n", process::monotonic_milliseconds(), number, word);
  return -write_block(descriptor, text, kHeartbeatSize, offset);
}

bool is_alive(int descriptor, int64_t offset, int64_t timeout) {
  HeartbeatText heartbeat;
  return heartbeat.read(descriptor, offset) && heartbeat.is_alive(timeout);
}

bool is_waking(int descriptor, int64_t offset) {
  HeartbeatText heartbeat;
  return heartbeat.read(descriptor, offset) && heartbeat.is_alive(kHeartbeatTimeoutMs) &&
         strstr(heartbeat.text, kWakes) != nullptr;
}

int64_t bookings_changed(int descriptor, int64_t since) {
  HeartbeatText stamp;
  // Anybody may have written it: a time to come would be news for ever.
  const bool is_known = stamp.read(descriptor, kBookingsOffset) && stamp.written <= process::monotonic_milliseconds();
  return is_known && stamp.written > since ? stamp.written : 0;
}

}  // namespace gpu_owner::locks
