#include "nvml/driver.h"

#include <sched.h>

#include <algorithm>

#include "process/futex.h"
#include "process/interrupt.h"

namespace gpu_owner::nvml {

using process::futex_wait;
using process::futex_wake;
using process::monotonic_nanoseconds;

namespace {

constexpr int64_t kMillisecond = 1'000'000;
// How long one GPU may keep the others waiting, and how long those are given that are asked side by side afterwards.
constexpr int64_t kPatience = 800 * kMillisecond;
constexpr int64_t kSideBySidePatience = 400 * kMillisecond;
constexpr int64_t kInitPatience = 10'000 * kMillisecond;
// Before sleeping, each side looks for the other this long: looks in quick succession then cost no context switch.
constexpr int64_t kSpin = 50'000;
// Longer looks are waited for asleep, however well it is known how long they take.
constexpr int64_t kLongestExpectation = 10 * kMillisecond;

constexpr uint32_t kAbandoned = 1u << 31;
constexpr uint32_t kMostGpus = 1024;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Where only one processor can be had, spinning keeps the one who is waited for from running.
bool can_spin() {
  cpu_set_t processors;
  return sched_getaffinity(0, sizeof processors, &processors) == 0 && CPU_COUNT(&processors) > 1;
}

// Spins while `word` is `value`, until `end` at the longest; true when it changed.
bool spin_while(const std::atomic<uint32_t>& word, uint32_t value, int64_t end) {
  static const bool worthwhile = can_spin();
  if (!worthwhile) return word.load() != value;
  do {
    for (int i = 0; i < 32; i++) {
      if (word.load(std::memory_order_acquire) != value) return true;
      relax();
    }
  } while (monotonic_nanoseconds() < end);
  return false;
}

// When to be awake for something that took `typical` last time: being woken takes longer than some looks do.
struct Expectation {
  int64_t from, until;
};

Expectation expect(int64_t start, int64_t typical) {
  if (typical <= kSpin || typical > kLongestExpectation) return {0, 0};
  const int64_t margin = typical / 8 + kSpin;
  return {start + typical - margin, start + typical + margin};
}

}  // namespace

// A list of GPUs to look at. Shared by who asked and who works, freed by the last.
struct Driver::Job {
  Driver* driver;
  bool init = false;                    // instead of looking: nvmlInit
  std::vector<uint32_t> gpus;
  std::vector<Sample> samples;          // parallel to gpus
  Code init_code = SUCCESS, count_code = SUCCESS;
  uint32_t count = 0;
  std::string version;
  std::atomic<uint32_t> started{0};     // steps begun; kAbandoned is added when nobody waits any longer
  std::atomic<uint32_t> finished{0};    // steps done
  int64_t typical = 0;                  // how long such a look took last time, ns; 0 = not known
  uint32_t expected = 0;                // steps after which the job is done; only for who asked
  uint32_t stalled_at = 0;              // steps done when the patience with the next one ran out; only for who asked
  std::atomic<bool> sleeping{false};    // the one who waits
  std::atomic<int> references{1};

  explicit Job(Driver* owner) : driver(owner) {}
  bool done() const { return finished.load() == expected; }
  void begin() {
    started.store(0);
    finished.store(0);
    stalled_at = 0;
    expected = init ? 1 : static_cast<uint32_t>(gpus.size());
    samples.resize(gpus.size());
  }
  void retain() { references.fetch_add(1); }
  void release() {
    if (references.fetch_sub(1) == 1) delete this;
  }
  // Ends the job after the step that is under way; returns how many steps were begun.
  uint32_t abandon() { return expected = started.fetch_or(kAbandoned) & ~kAbandoned; }
};

// The thread that does most looks. It is replaced when it is stuck.
struct Driver::Worker {
  std::atomic<uint32_t> posted{0};
  std::atomic<bool> sleeping{false};
  std::atomic<Job*> job{nullptr};  // with a reference to it, for who takes it out
  std::atomic<bool> retired{false};
  std::atomic<int> references{2};  // its thread, and the driver

  void release() {
    if (references.fetch_sub(1) == 1) delete this;
  }
};

Driver& Driver::instance() {
  static auto* driver = new Driver;
  return *driver;
}

void Driver::step(Job& job, uint32_t position) {
  if (job.init) {
    job.init_code = library_.init();
    if (job.init_code != SUCCESS) return;
    job.count_code = library_.device_count(job.count);
    library_.driver_version(job.version);
  } else {
    gpus_[job.gpus[position]]->look(library_, job.samples[position]);
  }
}

void Driver::work_once(void* pointer) {
  auto& job = *static_cast<Job*>(pointer);
  const uint32_t total = job.init ? 1 : static_cast<uint32_t>(job.gpus.size());
  for (uint32_t position = 0; position < total; position++) {
    uint32_t expected = position;
    if (!job.started.compare_exchange_strong(expected, position + 1)) break;  // abandoned
    job.driver->step(job, position);
    job.finished.fetch_add(1);
  }
  if (job.sleeping.load()) futex_wake(job.finished);
  job.release();
}

void Driver::work(void* pointer) {
  auto& worker = *static_cast<Worker*>(pointer);
  for (uint32_t served = 0;;) {
    while (worker.posted.load() == served) {
      if (spin_while(worker.posted, served, monotonic_nanoseconds() + kSpin)) break;
      worker.sleeping.store(true);
      futex_wait(worker.posted, served, 3'600'000 * kMillisecond);
      worker.sleeping.store(false);
    }
    served = worker.posted.load();
    if (Job* job = worker.job.exchange(nullptr)) work_once(job);
    if (worker.retired.load()) break;  // replaced: nobody posts here any longer
  }
  worker.release();
}

bool Driver::hand_to_worker(Job& job) {
  job.retain();
  if (worker_ == nullptr) {
    worker_ = new Worker;
    if (!family_.run(work, worker_)) {
      delete worker_;
      worker_ = nullptr;
      job.release();
      return false;
    }
  }
  worker_->job.store(&job);
  worker_->posted.fetch_add(1);
  if (worker_->sleeping.load()) futex_wake(worker_->posted);
  return true;
}

// Tells a worker that is stuck to end once it gets there.
void Driver::leave_worker() {
  if (worker_ == nullptr) return;
  if (Job* job = worker_->job.exchange(nullptr)) job->release();  // it has not even got there
  worker_->retired.store(true);
  worker_->posted.fetch_add(1);
  futex_wake(worker_->posted);
  worker_->release();
  worker_ = nullptr;
}

Driver::Wait Driver::wait_for(Job& job, bool on_main_thread, int64_t patience) {
  const uint32_t total = job.expected;
  uint32_t finished = job.finished.load();
  const int64_t start = monotonic_nanoseconds();
  for (int64_t now = start; finished != total && spin_while(job.finished, finished, now + kSpin);) {
    finished = job.finished.load();
    now = monotonic_nanoseconds();
  }
  if (finished == total) return Wait::done;
  const Expectation expected = expect(start, job.typical);
  std::unique_ptr<process::Interrupt> interrupt;
  if (on_main_thread) interrupt = std::make_unique<process::Interrupt>();
  job.sleeping.store(true);
  int64_t deadline = monotonic_nanoseconds() + patience;
  Wait result = Wait::done;
  for (;;) {
    const uint32_t now_finished = job.finished.load();
    if (now_finished == total) break;
    const int64_t now = monotonic_nanoseconds();
    if (now_finished != finished) {
      finished = now_finished;
      deadline = now + patience;
    }
    if (now >= deadline) {
      job.stalled_at = finished;
      result = Wait::stalled;
      break;
    }
    if (interrupt && interrupt->signal() != 0) {
      result = Wait::interrupted;
      break;
    }
    if (now >= expected.from && now < expected.until) {
      spin_while(job.finished, finished, expected.until);
      continue;
    }
    int64_t sleep = std::min(deadline - now, process::kLongestSleep);
    if (now < expected.from) sleep = std::min(sleep, expected.from - now);
    futex_wait(job.finished, finished, sleep);
  }
  job.sleeping.store(false);
  return result;
}

Driver::Opened Driver::open(const std::string& path) {
  if (ready_) return {Stage::ready, SUCCESS};
  const process::Interrupt interrupt;  // loading takes its time, too
  const bool loaded = !library_.path().empty() && library_.missing().empty();
  if (!loaded && !library_.load(path)) return {library_.path().empty() ? Stage::load : Stage::symbol, SUCCESS};
  if (init_ == nullptr) {
    init_ = new Job(this);
    init_->init = true;
    init_->begin();
    if (!hand_to_worker(*init_)) {
      init_->release();
      init_ = nullptr;
      return {Stage::not_responding, SUCCESS};
    }
  }
  switch (wait_for(*init_, true, kInitPatience)) {
    case Wait::interrupted: return {Stage::interrupted, SUCCESS};  // a later call goes on waiting for the same job
    case Wait::stalled:
      if (init_->abandon() == 0) {  // no thread was to be had: a later call begins anew
        leave_worker();
        init_->release();
        init_ = nullptr;
      }
      return {Stage::not_responding, SUCCESS};
    case Wait::done: break;
  }
  const Code init_code = init_->init_code, count_code = init_->count_code;
  const uint32_t count = std::min(init_->count, kMostGpus);
  version_ = init_->version;
  init_->release();
  init_ = nullptr;
  if (init_code != SUCCESS) return {Stage::init, init_code};
  if (count_code != SUCCESS) return {Stage::count, count_code};
  for (uint32_t i = 0; i < count; i++) gpus_.push_back(std::make_unique<Gpu>(i));
  stuck_.assign(count, nullptr);
  descriptions_.resize(count);
  ready_ = true;
  return {Stage::ready, SUCCESS};
}

// Takes over what a job has found out.
void Driver::collect(Job& job, uint32_t finished, std::vector<Sample>& samples) {
  for (uint32_t i = 0; i < finished; i++) {
    const uint32_t index = job.gpus[i];
    std::swap(samples[index], job.samples[i]);
    if (descriptions_[index].uuid.empty() && !gpus_[index]->uuid().empty()) {
      descriptions_[index] = {gpus_[index]->uuid(), gpus_[index]->name(), gpus_[index]->pci_bus_id(),
                              gpus_[index]->persistence()};
    }
  }
}

bool Driver::look(std::vector<Sample>& samples, const std::vector<uint32_t>* only, bool on_main_thread) {
  const auto count = static_cast<uint32_t>(gpus_.size());
  samples.resize(count);
  if (unfinished_ != nullptr) {
    if (wait_for(*unfinished_, on_main_thread, kPatience) == Wait::interrupted) return false;
    Job& job = *unfinished_;
    unfinished_ = nullptr;
    if (!job.done()) {
      std::vector<Sample> ignored(count);
      if (!go_on_without(job, ignored, on_main_thread)) {
        job.release();
        return false;
      }
    }
    job.release();
  }
  // Two jobs in turn: the worker lets go of one at the latest when it takes up the other.
  Job*& slot = jobs_[turn_ ^= 1];
  if (slot == nullptr || slot->references.load() != 1) {
    if (slot != nullptr) slot->release();
    slot = new Job(this);
  }
  Job& job = *slot;
  job.gpus.clear();
  for (uint32_t i = 0; i < count; i++) {
    if (only != nullptr && std::find(only->begin(), only->end(), i) == only->end()) continue;
    if (stuck_[i] != nullptr) {
      if (!stuck_[i]->done()) {
        samples[i].fall_silent();
        continue;
      }
      stuck_[i]->release();
      stuck_[i] = nullptr;
    }
    job.gpus.push_back(i);
  }
  if (job.gpus.empty()) return true;
  job.begin();
  const auto total = static_cast<int64_t>(job.gpus.size());
  const int64_t start = monotonic_nanoseconds();
  job.typical = per_gpu_ * total;
  const bool handed = hand_to_worker(job);
  switch (handed ? wait_for(job, on_main_thread, kPatience) : Wait::stalled) {
    case Wait::done:
      collect(job, job.expected, samples);
      per_gpu_ = (monotonic_nanoseconds() - start) / total;
      return true;
    case Wait::interrupted:
      unfinished_ = slot;
      slot = nullptr;
      return false;
    case Wait::stalled:
      break;
  }
  return go_on_without(job, samples, on_main_thread);
}

// One GPU hangs: the others are asked side by side, since there may be more of its kind.
bool Driver::go_on_without(Job& job, std::vector<Sample>& samples, bool on_main_thread) {
  const uint32_t started = job.abandon();
  leave_worker();
  std::vector<Job*> singles;
  for (uint32_t i = started; i < job.gpus.size(); i++) {
    auto* single = new Job(this);
    single->gpus.push_back(job.gpus[i]);
    single->begin();
    single->retain();
    if (!family_.run(work_once, single)) single->release();
    singles.push_back(single);
  }
  const int64_t deadline = monotonic_nanoseconds() + kSideBySidePatience;
  bool interrupted = false;
  const auto give_time = [&](Job& one) {
    const int64_t left = std::max<int64_t>(deadline - monotonic_nanoseconds(), 0);
    if (!interrupted && wait_for(one, on_main_thread, left) == Wait::interrupted) interrupted = true;
  };
  const auto note_silent = [&](uint32_t index) { samples[index].fall_silent(); };
  const auto note_stuck = [&](uint32_t index, Job& one) {
    note_silent(index);
    stuck_[index] = &one;
    one.retain();
  };
  for (Job* single : singles) {
    give_time(*single);
    const uint32_t index = single->gpus[0];
    if (single->done()) {
      collect(*single, 1, samples);
    } else if (single->abandon() == 0) {
      note_silent(index);  // no thread was to be had: the next look asks anew
    } else {
      note_stuck(index, *single);
    }
    single->release();
  }
  // The call that was given up on may have returned just then, and another GPU's be under way.
  if (started > job.stalled_at + 1) give_time(job);
  const uint32_t finished = job.finished.load();
  collect(job, finished, samples);
  if (finished < started) note_stuck(job.gpus[started - 1], job);
  return !interrupted;
}

}  // namespace gpu_owner::nvml
