// A month of notebooks: their GPUs are simulated by power and utilization, and read once a minute.
#include "keeper/idle.h"

#include <math.h>

#include "test.h"

namespace {

using keeper::IdleJudge;
using keeper::Reading;
using keeper::Readings;

constexpr int64_t kMinute = 60'000;
constexpr int kMonth = 30 * 24 * 60;  // minutes
constexpr int kLimit = 60;            // minutes after which a job is ended
constexpr int kSlack = 2;             // minutes by which that may be late

// As an H200 has been measured: 125 W with a context at rest, some tenths of a watt more or less from minute to
// minute, and some watts more in the afternoon.
constexpr double kRestWatts = 125;
constexpr double kNoiseWatts = 0.3;
constexpr double kDayWatts = 2;
// A cell that computes for two seconds.
constexpr double kCellJoules = 2 * 250;
// The driver remembers utilization for so long.
constexpr double kRememberedSeconds = 14;

// The same numbers each time.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 1) {}
  double next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<double>(state_ >> 11) / static_cast<double>(1ULL << 53);
  }

 private:
  uint64_t state_;
};

// How a notebook's user works: trains for hours with pauses, runs a cell now and then, or serves a few requests.
enum class Kind { trains, runs_cells, serves };

class Notebook {
 public:
  explicit Notebook(uint64_t seed) : dice_(seed), kind_(static_cast<Kind>(seed % 3)) { plan(); }

  // The next minute, in which it works as its user does, or not at all. Since when the judge calls it idle; -1: not.
  int64_t minute(bool works) {
    double joules = (kRestWatts + kNoiseWatts * (dice_.next() - 0.5) * 2 + kDayWatts * day_) * 60;
    int64_t utilization = 0;
    if (works) {
      if (--left_ < 0) {
        active_ = !active_;
        plan();
      }
      if (kind_ == Kind::trains && active_) {
        joules += 60 * 300;
        utilization = 80;
      } else if (kind_ == Kind::runs_cells && active_) {
        joules += kCellJoules;
        utilization = dice_.next() < kRememberedSeconds / 60 ? 60 : 0;
      } else if (kind_ == Kind::serves) {
        joules += 60 * 5 * dice_.next();
        utilization = dice_.next() < 0.3 ? 4 : 0;
      }
    }
    if (now_ % (20 * kMinute) == 0) day_ = sin(static_cast<double>(now_) / kMinute / (24 * 60) * 2 * M_PI);
    now_ += kMinute;
    energy_ += joules * 1000;
    Readings readings;
    readings.at = now_;
    readings.count = 1;
    readings.gpus[0] = {now_ * 1000, static_cast<int64_t>(energy_), utilization, 1 << 30};
    return judge_.judge(readings);
  }

  int64_t now() const { return now_; }
  // Minutes that the user may still think, at the most.
  static constexpr int kLongestPause = kLimit - 5;

 private:
  void plan() {
    const double share = dice_.next();
    const int most = kind_ == Kind::trains ? (active_ ? 300 : kLongestPause) : (active_ ? 1 : kLongestPause);
    left_ = static_cast<int>(share * most);
  }

  Dice dice_;
  const Kind kind_;
  bool active_ = true;
  int left_ = 0;
  int64_t now_ = 1000 * kMinute;
  double energy_ = 1e9;
  double day_ = 0;
  IdleJudge judge_;
};

Readings reading(int64_t minute, int64_t joules, int64_t utilization) {
  Readings readings;
  readings.at = minute * kMinute;
  readings.count = 1;
  readings.gpus[0] = {minute * kMinute * 1000, joules < 0 ? -1 : joules * 1000, utilization, 0};
  return readings;
}

}  // namespace

TEST("a month of notebooks: no user who works is ended, and all who don't are in time") {
  const int notebooks = 300 / (tests::slowness() > 1 ? 30 : 1);
  int ended = 0, late = 0, early = 0;
  for (int i = 0; i < notebooks; ++i) {
    Notebook notebook(static_cast<uint64_t>(i) + 1);
    bool is_ended = false;
    for (int minute = 0; minute < kMonth && !is_ended; ++minute) {
      const int64_t since = notebook.minute(true);
      is_ended = since >= 0 && notebook.now() - since >= kLimit * kMinute;
    }
    ended += is_ended;
    const int64_t left_at = notebook.now();
    int64_t end = 0;
    for (int minute = 0; minute < 3 * kLimit && end == 0; ++minute) {
      const int64_t since = notebook.minute(false);
      if (since >= 0 && notebook.now() - since >= kLimit * kMinute) end = notebook.now();
    }
    late += end == 0 || end > left_at + (kLimit + kSlack) * kMinute;
    early += end != 0 && end < left_at + (kLimit - Notebook::kLongestPause) * kMinute;
  }
  CHECK_EQUAL(ended, 0);
  CHECK_EQUAL(late, 0);
  CHECK_EQUAL(early, 0);
}

TEST("what can't be judged isn't idle: no energy counter, no utilization, or a driver that was restarted") {
  IdleJudge blind;
  for (int64_t minute = 1; minute < 10; ++minute) CHECK_EQUAL(blind.judge(reading(minute, -1, 0)), -1);
  IdleJudge mute;
  for (int64_t minute = 1; minute < 10; ++minute) CHECK_EQUAL(mute.judge(reading(minute, minute * 6000, -1)), -1);
  IdleJudge restarted;
  restarted.judge(reading(1, 100'000, 0));
  CHECK_EQUAL(restarted.judge(reading(2, 106'000, 0)), kMinute);
  CHECK_EQUAL(restarted.judge(reading(3, 100, 0)), -1);
  CHECK_EQUAL(restarted.judge(reading(4, 6'100, 0)), 3 * kMinute);
}

TEST("a job is idle since the last of its GPUs is, and not if one of them works") {
  IdleJudge judge;
  const auto both = [](int64_t minute, int64_t first, int64_t second, int64_t utilization) {
    Readings readings = reading(minute, first, 0);
    readings.count = 2;
    readings.gpus[1] = reading(minute, second, utilization).gpus[0];
    return readings;
  };
  judge.judge(both(1, 0, 0, 0));
  CHECK_EQUAL(judge.judge(both(2, 6000, 24'000, 90)), -1);
  CHECK_EQUAL(judge.judge(both(3, 12'000, 48'000, 90)), -1);
  CHECK_EQUAL(judge.judge(both(4, 18'000, 54'000, 0)), 3 * kMinute);
  CHECK_EQUAL(judge.judge(both(5, 24'000, 60'000, 0)), 3 * kMinute);
}

TEST("a cell that ran while readings failed for minutes is work, and rest is rest") {
  IdleJudge judge;
  for (int64_t minute = 1; minute <= 5; ++minute) judge.judge(reading(minute, minute * 7500, 0));
  CHECK_EQUAL(judge.judge(reading(15, 15 * 7500, 0)), kMinute);
  const int64_t cell = static_cast<int64_t>(kCellJoules);
  CHECK_EQUAL(judge.judge(reading(25, 25 * 7500 + cell, 0)), -1);
}

TEST("one mean that is far too low changes nothing") {
  for (const int64_t bad : {2, 3, 10, 20}) {
    IdleJudge judge;
    int64_t joules = 0, since = -1;
    for (int64_t minute = 1; minute <= 60; ++minute) {
      joules += minute == bad ? 2'000 : 7'500;
      since = judge.judge(reading(minute, joules, 0));
      if (minute > 4) CHECK_EQUAL(since, bad == 2 ? 3 * kMinute : kMinute);
    }
    // Work is seen as before.
    CHECK_EQUAL(judge.judge(reading(61, joules + 7'500 + static_cast<int64_t>(kCellJoules), 0)), -1);
  }
}

TEST("utilization below the least one that counts is none") {
  IdleJudge judge(10);
  judge.judge(reading(1, 0, 9));
  CHECK_EQUAL(judge.judge(reading(2, 6000, 9)), kMinute);
  CHECK_EQUAL(judge.judge(reading(3, 12'000, 10)), -1);
}
