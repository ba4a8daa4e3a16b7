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

void UsageLine::add(const Readings& readings, bool idle) {
  int64_t energy = 0, memory = 0;
  bool has_energy = true, has_memory = true;
  for (int i = 0; i < readings.count; ++i) {
    const Reading& gpu = readings.gpus[i];
    if (first_at_ < 0) first_energy_[i] = gpu.energy;
    // The counter restarts with the driver.
    has_energy = has_energy && first_energy_[i] >= 0 && gpu.energy >= first_energy_[i];
    energy += gpu.energy - first_energy_[i];
    has_memory = has_memory && gpu.memory >= 0;
    memory += gpu.memory;
  }
  if (idle && last_at_ >= 0) idle_ += readings.at - last_at_;
  if (first_at_ < 0) first_at_ = readings.at;
  last_at_ = readings.at;
  energy_ = has_energy ? energy : -1;
  if (!has_memory) return;
  memory_sum_ += memory;
  ++memory_count_;
  if (memory > peak_memory_) peak_memory_ = memory;
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
    text.add("null");
  } else {
    text.add("%d", exit_code);
  }
  const int64_t metered = last_at_ - first_at_;
  if (metered > 0) {
    text.add(",\"metered\":%" PRId64 ",\"idle\":%" PRId64, metered, idle_);
    if (energy_ >= 0) text.add(",\"energy\":%" PRId64, energy_);
    if (memory_count_ > 0)
      text.add(",\"memory\":%" PRId64 ",\"peakMemory\":%" PRId64, memory_sum_ / memory_count_, peak_memory_);
  }
  text.add("}");
  char end[kSize];
  memset(end, ' ', sizeof end);
  memcpy(end, text.c_str(), text.length());
  end[kSize - 1] = '\n';
  if (pwrite(options_.usage.fd, end, sizeof end, options_.usage.offset) < 0) return;
}

}  // namespace keeper
