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

bool read_heartbeat(int descriptor, int64_t offset, int64_t& written) {
  char text[kHeartbeatSize + 1] = {};
  if (pread(descriptor, text, kHeartbeatSize, offset) != kHeartbeatSize) return false;
  written = strtoll(text, nullptr, 10);
  return true;
}

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

int write_heartbeat(int descriptor, int64_t offset, bool rests) {
  char text[kHeartbeatSize + 1];
  snprintf(text, sizeof text, "\n%-24" PRId64 " %5s\n", process::monotonic_milliseconds(), rests ? "rests" : "");
  return -write_block(descriptor, text, kHeartbeatSize, offset);
}

bool is_alive(int descriptor, int64_t offset, int64_t timeout) {
  int64_t written = 0;
  if (!read_heartbeat(descriptor, offset, written)) return false;
  const int64_t ago = process::monotonic_milliseconds() - written;
  return ago < timeout && ago > -timeout;
}

int64_t bookings_changed(int descriptor, int64_t since) {
  int64_t written = 0;
  // Anybody may have written it: a time to come would be news for ever.
  const bool is_known =
      read_heartbeat(descriptor, kBookingsOffset, written) && written <= process::monotonic_milliseconds();
  return is_known && written > since ? written : 0;
}

}  // namespace gpu_owner::locks
