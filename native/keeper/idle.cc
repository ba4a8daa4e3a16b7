#include "keeper/idle.h"

namespace keeper {

namespace {

// By how much a GPU's mean power differs at rest from minute to minute: 0.2 W of 125 W on an H200 with a context.
constexpr float kRelative = 0.02f;
constexpr float kWatts = 2;
// With this many means, the lowest alone doesn't decide: a late counter makes one mean far too low.
constexpr int kMinAgreeing = 3;
// In microseconds. The mean of a longer time, in which readings failed, may be higher by as much energy only: work of
// seconds hides in it.
constexpr float kSpan = 60'000'000;

}  // namespace

int64_t IdleJudge::judge(const Readings& readings) {
  int64_t since = readings.count > 0 ? 0 : -1;
  for (int i = 0; i < readings.count; ++i) {
    const int64_t own = judge(&gpus_[i], readings.gpus[i]);
    if (since >= 0) since = own < 0 ? -1 : own > since ? own : since;
  }
  at_ = readings.at;
  return since;
}

int64_t IdleJudge::judge(GPU* gpu, const Reading& reading) {
  const int64_t span = reading.at - gpu->at;
  gpu->at = reading.at;
  const int64_t used = reading.energy - gpu->energy;
  const bool is_known = reading.energy >= 0 && gpu->energy >= 0 && used >= 0 && span > 0;
  gpu->energy = reading.energy;
  if (!is_known || reading.utilization < 0) return gpu->since = -1;  // the counter restarts with the driver
  const float watts = static_cast<float>(used) * 1000 / static_cast<float>(span);
  gpu->watts[gpu->count++ % kWindow] = watts;
  const float part = static_cast<float>(span) > kSpan ? kSpan / static_cast<float>(span) : 1;
  // A mean below this one is too low for the last one to be rest.
  const float lowest = (watts - kWatts * part) / (1 + kRelative * part);
  const int means = gpu->count < kWindow ? gpu->count : kWindow;
  int below = 0;
  for (int i = 0; i < means; ++i) below += gpu->watts[i] < lowest;
  const bool rests = reading.utilization < min_utilization_ && below <= (means < kMinAgreeing ? 0 : 1);
  if (!rests) {
    gpu->since = -1;
  } else if (gpu->since < 0) {
    gpu->since = at_;
  }
  return gpu->since;
}

}  // namespace keeper
