#pragma once

#include <stdint.h>

#include "keeper/meter.h"

namespace keeper {

// Judges since when GPUs do nothing, by the energy that they used between two readings, and by their utilization at
// these. One reading at 0 % says nothing about the minute before; energy alone doesn't tell a light load from rest.
// docs/decisions/043-idle.md
class IdleJudge {
 public:
  // Utilization below this counts as none, in percent.
  explicit IdleJudge(int64_t min_utilization = 1) : min_utilization_(min_utilization) {}

  // The boot time since which all of the GPUs have done nothing; -1: one of them works, or can't be judged.
  int64_t judge(const Readings& readings);

 private:
  static constexpr int kWindow = 30;  // minutes after which a mean is forgotten
  struct GPU {
    int64_t energy = -1;  // at the reading before
    int64_t at = 0;       // when that was, in microseconds
    int64_t since = -1;
    int count = 0;         // how many means there were
    float watts[kWindow];  // means between the last readings
  };

  int64_t judge(GPU* gpu, const Reading& reading);

  const int64_t min_utilization_;
  int64_t at_ = -1;  // the reading before
  GPU gpus_[kMaxMetered];
};

}  // namespace keeper
