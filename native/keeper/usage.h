#pragma once

#include <stdint.h>

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
  // The lease ends now.
  void end(int exit_code, bool preempted);

 private:
  void write(bool ended, int exit_code, bool preempted) const;

  const Options& options_;
  int64_t note_at_;
};

}  // namespace keeper
