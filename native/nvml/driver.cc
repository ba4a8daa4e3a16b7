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
// How long the driver may leave all calls unanswered, and how long those are given that nobody could ask before that.
constexpr int64_t kPatience = 800 * kMillisecond;
constexpr int64_t kSecondPatience = 400 * kMillisecond;
constexpr int64_t kInitPatience = 10'000 * kMillisecond;
// Where GPUs take longer each, they are asked side by side, by a thread for each: below that, threads cost more than they bring.
constexpr int64_t kAlone = 2 * kMillisecond;
// Before sleeping, each side looks for the other this long: looks in quick succession then cost no context switch.
constexpr int64_t kSpin = 50'000;
// Longer looks are waited for asleep, however well it is known how long they take.
constexpr int64_t kLongestExpectation = 10 * kMillisecond;

// What a thread that has other things to do waits for looks, and how long they may usually take for it to do so.
constexpr int64_t kQuickLimit = kMillisecond, kQuick = kMillisecond / 4;
constexpr int64_t kNever = INT64_MAX;
// A look that was begun longer ago is done anew.
constexpr int64_t kFresh = 10 * kMillisecond;

constexpr uint32_t kMostGpus = 1024;
// Keeps what two threads write at the same time out of one line of their caches.
constexpr size_t kCacheLine = 64;

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

// The processor that this thread runs on; -1 where that isn't known.
int own_processor() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
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

// When to be awake for something that took `typical` last time: being woken takes longer than some looks do, and who has set an alarm
// wakes up to kSpin after it.
struct Expectation {
  int64_t from, until;
};

Expectation expect(int64_t start, int64_t typical) {
  if (typical <= kSpin || typical > kLongestExpectation) return {0, 0};
  const int64_t margin = typical / 16 + 2 * kSpin;
  return {start + typical - margin, start + typical + margin};
}

bool is_among(const std::vector<uint32_t>* only, uint32_t gpu) {
  return only == nullptr || std::find(only->begin(), only->end(), gpu) != only->end();
}

}  // namespace

// A list of GPUs to look at, by one thread or several. Shared by who asked and who works, freed by the last. Its members are in groups
// by who writes them, a line of a cache or more for each, and what doesn't change isn't written: lines that go to and fro
// between processors are most of what an undisturbed look costs.
struct Driver::Job {
  // For who works; written before they begin.
  Driver* driver;
  bool init = false;                    // instead of looking: nvmlInit
  bool side_by_side = false;            // from the start
  uint32_t total = 0;                   // steps: GPUs, or one for nvmlInit
  std::vector<uint32_t> gpus;
  // What they find: parallel to gpus. Steps are taken in their order, so which are is a number; which are done is noted of each.
  std::vector<Values> values;
  std::vector<Lists> lists;
  std::unique_ptr<std::atomic<bool>[]> done;
  std::unique_ptr<int64_t[]> took;      // ns; only where steps are done side by side
  Code init_code = SUCCESS, count_code = SUCCESS;
  uint32_t count = 0;
  std::string version;

  char separate[kCacheLine];
  // For who asked.
  uint32_t room = 0;                    // for steps
  bool helped = false;                  // by more threads than one
  bool withdrawn = false;
  uint32_t taken = 0;                   // steps, where the others were withdrawn
  int64_t started = 0;                  // ns
  int64_t typical = 0;                  // how long such a look took last time, ns; 0 = not known

  char separate_again[kCacheLine];
  std::atomic<uint32_t> next{0};        // the step to be taken next
  std::atomic<uint32_t> finished{0};    // steps done or withdrawn
  std::atomic<int> references{1};

  char and_again[kCacheLine];
  int64_t ended = 0;                    // ns; valid when it is over
  std::atomic<uint32_t> over{0};        // 1 when all steps are done or withdrawn
  std::atomic<bool> sleeping{false};    // the one who waits for that
  char at_last[kCacheLine];

  explicit Job(Driver* owner) : driver(owner) {}
  bool is_over() const { return over.load() != 0; }
  bool is_done(uint32_t position) const { return done[position].load(); }
  void begin() {
    const uint32_t steps = init ? 1 : static_cast<uint32_t>(gpus.size());
    if (steps != total) total = steps;
    if (steps > room) {
      room = steps;
      done.reset(new std::atomic<bool>[room]);
      took.reset(new int64_t[room]);
      values.resize(room);
      lists.resize(room);
    }
    for (uint32_t i = 0; i < steps; i++) done[i].store(false, std::memory_order_relaxed);
    // Whoever is told of the job sees this.
    next.store(0, std::memory_order_relaxed);
    finished.store(0, std::memory_order_relaxed);
    over.store(0, std::memory_order_relaxed);
    helped = withdrawn = false;
    taken = steps;
  }
  void retain() { references.fetch_add(1); }
  void release() {
    if (references.fetch_sub(1) == 1) delete this;
  }
  uint32_t waiting() const {
    const uint32_t reached = next.load();
    return reached < total ? total - reached : 0;
  }
  void count_finished(uint32_t steps) {
    if (finished.fetch_add(steps) + steps != total) return;
    ended = monotonic_nanoseconds();
    over.store(1);
    if (sleeping.load()) futex_wake(over);
  }
  // Steps that nobody has begun are not to be. Returns how many.
  uint32_t withdraw() {
    if (withdrawn) return 0;
    withdrawn = true;
    taken = std::min(next.exchange(total), total);
    if (taken < total) count_finished(total - taken);
    return total - taken;
  }
};

// Leaves the line of a cache alone where that is what it says already.
template <typename Value>
void change(std::atomic<Value>& known, Value value) {
  if (known.load(std::memory_order_relaxed) != value) known.store(value, std::memory_order_relaxed);
}

// The thread that does most looks. It is replaced when it is stuck.
struct Driver::Worker {
  // Written by who asks.
  std::atomic<uint32_t> posted{0};
  std::atomic<int> asker{-1};      // the processor of who asked last, or will soon
  std::atomic<Job*> job{nullptr};  // with a reference to it, for who takes it out
  std::atomic<bool> retired{false};
  std::atomic<int> references{2};  // its thread, and the driver
  char separate[kCacheLine];
  // Written by its thread.
  std::atomic<bool> sleeping{false};
  std::atomic<int> processor{-1};  // where it waits, or has begun to work

  int note_processor() {
    const int own = own_processor();
    change(processor, own);
    return own;
  }
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
    gpus_[job.gpus[position]]->look(library_, job.values[position], job.lists[position]);
  }
}

void Driver::work_once(void* pointer) {
  auto& job = *static_cast<Job*>(pointer);
  for (;;) {
    const uint32_t position = job.next.fetch_add(1);
    if (position >= job.total) break;
    const int64_t start = job.side_by_side ? monotonic_nanoseconds() : 0;
    job.driver->step(job, position);
    if (job.side_by_side) job.took[position] = monotonic_nanoseconds() - start;
    job.done[position].store(true, std::memory_order_release);
    job.count_finished(1);
  }
  job.release();
}

void Driver::work(void* pointer) {
  auto& worker = *static_cast<Worker*>(pointer);
  bool soon = false, announced = false;  // whether the next look is to be expected soon, and whether somebody has said so
  int64_t ended = 0;                     // the look before
  for (uint32_t served = 0;;) {
    const int processor = worker.note_processor();
    const int64_t idle = monotonic_nanoseconds();
    if (!announced) ended = idle;
    bool slept = false;
    while (worker.posted.load() == served) {
      // On one processor with who asks, spinning would only keep that one from going on.
      const bool apart = processor < 0 || processor != worker.asker.load(std::memory_order_relaxed);
      if (soon && apart && spin_while(worker.posted, served, idle + kSpin)) break;
      slept = true;
      worker.sleeping.store(true);
      futex_wait(worker.posted, served, 3'600'000 * kMillisecond);
      worker.sleeping.store(false);
    }
    served = worker.posted.load();
    if (slept) worker.note_processor();
    if (Job* job = worker.job.exchange(nullptr)) {
      // One that comes soon after another will be followed by a third; one that comes alone won't be.
      soon = (!slept && !announced) || monotonic_nanoseconds() - ended < kSpin;
      announced = false;
      work_once(job);
    } else {
      soon = announced = true;
    }
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
  change(worker_->asker, own_processor());
  // One that it hasn't got to was withdrawn before.
  if (Job* before = worker_->job.exchange(&job)) before->release();
  worker_->posted.fetch_add(1);
  if (worker_->sleeping.load()) futex_wake(worker_->posted);
  return true;
}

void Driver::stir() {
  if (worker_ == nullptr || !worker_->sleeping.load()) return;
  change(worker_->asker, own_processor());
  worker_->posted.fetch_add(1);
  futex_wake(worker_->posted);
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

// Has others help with a job: as many threads as there are steps that nobody has begun.
void Driver::add_hands(Job& job) {
  job.helped = true;
  for (uint32_t hands = job.waiting(); hands > 0; hands--) {
    job.retain();
    if (family_.run(work_once, &job)) continue;
    job.release();
    return;
  }
}

// How many of a job's calls the driver has answered so far.
uint64_t Driver::answers(const Job& job) const {
  uint64_t number = job.finished.load();
  for (const uint32_t gpu : job.gpus) number += gpus_[gpu]->answers();
  return number;
}

// Whether the worker is in this thread's way, or would be in its.
bool Driver::is_beside_worker() const {
  const int own = own_processor();
  return own >= 0 && worker_ != nullptr && worker_->processor.load(std::memory_order_relaxed) == own;
}

Driver::Wait Driver::wait_for(Job& job, bool on_main_thread, int64_t patience, int64_t limit) {
  const int64_t start = monotonic_nanoseconds();
  const int64_t end = limit == kNever ? kNever : start + limit;
  const Expectation expected = expect(job.started, job.typical);
  const bool sleep_first = start + kSpin < expected.from || is_beside_worker();
  if (sleep_first ? job.is_over() : spin_while(job.over, 0, start + kSpin)) return Wait::done;
  std::unique_ptr<process::Interrupt> interrupt;
  if (on_main_thread) interrupt = std::make_unique<process::Interrupt>();
  job.sleeping.store(true);
  uint64_t answered = answers(job);
  int64_t deadline = start + patience;
  Wait result = Wait::done;
  while (!job.is_over()) {
    const int64_t now = monotonic_nanoseconds();
    const uint64_t answered_now = answers(job);
    if (answered_now != answered) {
      answered = answered_now;
      deadline = now + patience;
    }
    if (now >= std::min(deadline, end)) {
      result = Wait::stalled;
      break;
    }
    if (interrupt && interrupt->signal() != 0) {
      result = Wait::interrupted;
      break;
    }
    // On one processor with the worker, being awake in time would keep that from being so.
    if (now >= expected.from && now < expected.until && !is_beside_worker()) {
      spin_while(job.over, 0, expected.until);
      continue;
    }
    int64_t sleep = std::min(std::min(deadline, end) - now, process::kLongestSleep);
    if (now < expected.from) sleep = std::min(sleep, expected.from - now);
    if (!job.helped && job.total > 1) {
      // Where nobody has begun yet, it isn't the driver that takes so long.
      const int64_t late = job.next.load() == 0 ? now + kAlone : start + kAlone * (job.finished.load() + 1);
      if (now >= late) add_hands(job);
      if (now < late) sleep = std::min(sleep, late - now);
    }
    futex_wait(job.over, 0, sleep);
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
  switch (wait_for(*init_, true, kInitPatience, kNever)) {
    case Wait::interrupted: return {Stage::interrupted, SUCCESS};  // a later call goes on waiting for the same job
    case Wait::stalled:
      if (init_->withdraw() != 0) {  // no thread was to be had: a later call begins anew
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
  stuck_.resize(count);
  descriptions_.resize(count);
  ready_ = true;
  return {Stage::ready, SUCCESS};
}

// Takes over what a job has found out. A GPU that it doesn't come back from is left alone until it does.
void Driver::collect(Job& job, std::vector<Sample>& samples) {
  const bool whole = !job.withdrawn && job.is_over();
  for (uint32_t i = 0; i < job.total; i++) {
    const uint32_t index = job.gpus[i];
    Sample& sample = samples[index];
    if (!whole && (i >= job.taken || !job.is_done(i))) {
      sample.fall_silent();
      if (i >= job.taken) continue;  // no thread was to be had: the next look asks anew
      stuck_[index] = {&job, i};
      job.retain();
      continue;
    }
    const bool listed = sample.listed || job.values[i].listed;
    static_cast<Values&>(sample) = job.values[i];
    if (listed) std::swap(static_cast<Lists&>(sample), job.lists[i]);
    Description& known = descriptions_[index];
    if (!known.uuid.empty() || gpus_[index]->uuid().empty()) continue;
    const Gpu& gpu = *gpus_[index];
    known = {gpu.uuid(), gpu.name(), gpu.pci_bus_id(), gpu.persistence()};
    described_++;
    per_gpu_ = 0;  // a GPU that has to be started first takes longer than it ever will again
  }
}

void Driver::measure(const Job& job) {
  if (!job.helped) {
    per_gpu_ = (job.ended - job.started) / job.total;
  } else if (job.side_by_side) {
    per_gpu_ = 0;
    for (uint32_t i = 0; i < job.total; i++) per_gpu_ += job.took[i] / job.total;
  } else {
    per_gpu_ = kAlone;  // at least
  }
}

// Waits for a job and takes over what it has found out; false when a signal or the limit came first, and the job goes on.
bool Driver::finish(Job& job, std::vector<Sample>& samples, bool on_main_thread, int64_t limit) {
  Wait outcome = wait_for(job, on_main_thread, kPatience, limit);
  if (outcome == Wait::stalled && limit != kNever) outcome = Wait::interrupted;
  if (outcome == Wait::stalled && job.waiting() > 0) {
    add_hands(job);
    outcome = wait_for(job, on_main_thread, kSecondPatience, kNever);
  }
  if (outcome == Wait::interrupted) return false;
  if (outcome == Wait::stalled) {
    job.withdraw();
    leave_worker();
  } else if (!job.withdrawn) {
    measure(job);
  }
  collect(job, samples);
  return true;
}

bool Driver::look(std::vector<Sample>& samples, const std::vector<uint32_t>* only, bool on_main_thread, bool begun) {
  return look_within(kNever, samples, only, on_main_thread, begun);
}

bool Driver::look_quickly(std::vector<Sample>& samples, const std::vector<uint32_t>* only, bool begun) {
  const size_t total = only != nullptr ? only->size() : gpus_.size();
  const bool quick = per_gpu_ > 0 && per_gpu_ * static_cast<int64_t>(total) <= kQuick;
  return quick && unfinished_ == nullptr && look_within(kQuickLimit, samples, only, false, begun);
}

void Driver::begin() {
  leave_begun();
  if (ready_ && unfinished_ == nullptr) begun_ = start(nullptr);
}

// A look that was begun and that nobody wants: what hasn't been done of it needn't be.
void Driver::leave_begun() {
  if (begun_ == nullptr) return;
  Job& job = *begun_;
  begun_ = nullptr;
  job.withdraw();
  if (job.is_over()) return;
  unfinished_ = &job;
  jobs_[turn_] = nullptr;
}

bool Driver::is_stuck(uint32_t gpu) {
  Stuck& stuck = stuck_[gpu];
  if (stuck.job == nullptr) return false;
  if (!stuck.job->is_done(stuck.position)) return true;
  stuck.job->release();
  stuck.job = nullptr;
  return false;
}

// Null where there is no GPU to look at.
Driver::Job* Driver::start(const std::vector<uint32_t>* only) {
  // Two jobs in turn: the worker lets go of one at the latest when it takes up the other.
  Job*& slot = jobs_[turn_ ^= 1];
  if (slot == nullptr || slot->references.load() != 1) {
    if (slot != nullptr) slot->release();
    slot = new Job(this);
  }
  Job& job = *slot;
  asked_.clear();
  for (uint32_t i = 0; i < gpus_.size(); i++) {
    if (is_among(only, i) && !is_stuck(i)) asked_.push_back(i);
  }
  if (asked_.empty()) return nullptr;
  if (job.gpus != asked_) job.gpus = asked_;
  const auto total = static_cast<int64_t>(asked_.size());
  const bool side_by_side = total > 1 && per_gpu_ >= kAlone;
  if (job.side_by_side != side_by_side) job.side_by_side = side_by_side;
  job.typical = side_by_side ? 0 : per_gpu_ * total;
  job.begin();
  job.started = monotonic_nanoseconds();
  const bool handed = hand_to_worker(job);
  if (handed && side_by_side) add_hands(job);
  if (!handed) job.withdraw();
  return &job;
}

bool Driver::look_within(int64_t limit, std::vector<Sample>& samples, const std::vector<uint32_t>* only,
                         bool on_main_thread, bool begun) {
  const size_t count = gpus_.size();
  samples.resize(count);
  Job* job = nullptr;
  if (begun && begun_ != nullptr && only == nullptr && monotonic_nanoseconds() - begun_->started < kFresh) {
    job = begun_;
    begun_ = nullptr;
  }
  leave_begun();
  if (unfinished_ != nullptr) {
    Job& before = *unfinished_;
    std::vector<Sample> ignored(count);
    if (!finish(before, ignored, on_main_thread, limit)) return false;
    unfinished_ = nullptr;
    before.release();
  }
  if (job == nullptr) job = start(only);
  if (job != nullptr && !finish(*job, samples, on_main_thread, limit)) {
    unfinished_ = job;
    jobs_[turn_] = nullptr;
    return false;
  }
  for (uint32_t i = 0; i < count; i++) {
    if (stuck_[i].job != nullptr && is_among(only, i)) samples[i].fall_silent();
  }
  return true;
}

}  // namespace gpu_owner::nvml
