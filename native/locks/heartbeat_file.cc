#include "locks/heartbeat_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "locks/files.h"
#include "process/futex.h"

namespace gpu_owner::locks {
namespace {

int64_t milliseconds() { return process::monotonic_nanoseconds() / 1'000'000; }

}  // namespace

int write_heartbeat(int descriptor, int64_t offset, bool rests) {
  char text[kHeartbeatSize + 1];
  snprintf(text, sizeof text, "\n%-24" PRId64 " %5s\n", milliseconds(), rests ? "rests" : "");
  return -write_block(descriptor, text, kHeartbeatSize, offset);
}

bool is_alive(int descriptor, int64_t offset, int64_t lifeless) {
  char text[kHeartbeatSize + 1] = {};
  if (pread(descriptor, text, kHeartbeatSize, offset) != kHeartbeatSize) return false;
  const int64_t ago = milliseconds() - strtoll(text, nullptr, 10);
  return ago < lifeless && ago > -lifeless;
}

}  // namespace gpu_owner::locks
