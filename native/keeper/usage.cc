#include "keeper/usage.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "keeper/arguments.h"
#include "keeper/clock.h"
#include "keeper/text.h"

namespace keeper {

namespace {

// As lib/usage/line.ts reserves it.
constexpr size_t kSize = 224;

}  // namespace

UsageLine::UsageLine(const Options& options)
    : options_(options), note_at_(options.usage.fd < 0 ? INT64_MAX : now_ms() + options.usage.interval) {}

void UsageLine::react() {
  if (now_ms() < note_at_) return;
  note_at_ = now_ms() + options_.usage.interval;
  write(false, -1, false);
}

void UsageLine::end(int exit_code, bool preempted) {
  if (options_.usage.fd < 0) return;
  write(true, exit_code, preempted);
  note_at_ = INT64_MAX;
}

void UsageLine::write(bool ended, int exit_code, bool preempted) const {
  const int64_t held = boot_time_ms() - options_.usage.since;
  Buffer<kSize> text;
  text.add("\"held\":%" PRId64 ",\"ended\":%s,\"preempted\":%s,\"exit\":", held > 0 ? held : 0,
           ended ? "true" : "false", preempted ? "true" : "false");
  if (exit_code < 0) {
    text.add("null}");
  } else {
    text.add("%d}", exit_code);
  }
  char end[kSize];
  memset(end, ' ', sizeof end);
  memcpy(end, text.c_str(), text.length());
  end[kSize - 1] = '\n';
  if (pwrite(options_.usage.fd, end, sizeof end, options_.usage.offset) < 0) return;
}

}  // namespace keeper
