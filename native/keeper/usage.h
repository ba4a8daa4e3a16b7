#pragma once

#include <stdint.h>

#include "keeper/meter.h"

namespace keeper {

struct Options;
struct JobState;

// The end of this lease's line in its user's ledger of usage (`--usage`; lib/usage/line.ts made the line). The end is
// overwritten in place once a minute, so that a crash loses the last minute only, and a full disk nothing.
class UsageLine {
 public:
  explicit UsageLine(const Options& options);

  int64_t next_note() const { return note_at_; }  // on the clock of now_ms()
  // To be called whenever something has happened.
  void react();
  // The GPUs were read; `idle`: they all did nothing since the reading before.
  void add(const Readings& readings, bool idle);
  // The lease ends now.
  void end(int exit_code, bool preempted);

 private:
  void write(bool ended, int exit_code, bool preempted) const;

  const Options& options_;
  int64_t note_at_;
  int64_t first_energy_[kMaxMetered];
  int64_t energy_ = -1;                   // mJ, of all GPUs between the first and the last reading; -1: unknown
  int64_t first_at_ = -1, last_at_ = -1;  // boot time
  int64_t idle_ = 0;                      // ms
  int64_t memory_sum_ = 0, peak_memory_ = 0, memory_count_ = 0;  // bytes
};

}  // namespace keeper
