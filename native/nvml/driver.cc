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

// A list of GPUs to look at, by one thread or several. Shared by who asked and who works, freed by the last.
struct Driver::Job {
  enum State : uint32_t { kWaiting, kTaken, kDone, kWithdrawn };
  struct Step {
    std::atomic<uint32_t> state{kWaiting};
    int64_t took = 0;                   // ns; only where steps are done side by side
  };

  Driver* driver;
  bool init = false;                    // instead of looking: nvmlInit
  bool side_by_side = false;            // from the start; written before anybody works
  bool helped = false;                  // by more threads than one; only for who asked
  int64_t started = 0;                  // ns; 0 = not known any longer
  int asker = -1;                       // the processor of who asked
  bool apart = true;                    // who asked and who works first are on different processors
  std::vector<uint32_t> gpus;
  std::vector<Sample> samples;          // parallel to gpus
  std::unique_ptr<Step[]> steps;        // parallel to gpus; one for nvmlInit
  uint32_t total = 0, room = 0;         // steps
  Code init_code = SUCCESS, count_code = SUCCESS;
  uint32_t count = 0;
  std::string version;
  int64_t typical = 0;                  // how long such a look took last time, ns; 0 = not known
  std::atomic<int> references{1};

  char separate[kCacheLine];
  std::atomic<uint32_t> next{0};        // the step to be taken next
  std::atomic<uint32_t> finished{0};    // steps done or withdrawn
  char separate_again[kCacheLine];
  std::atomic<uint32_t> over{0};        // 1 when all are
  std::atomic<bool> sleeping{false};    // the one who waits for that

  explicit Job(Driver* owner) : driver(owner) {}
  bool done() const { return over.load() != 0; }
  State state(uint32_t position) const { return static_cast<State>(steps[position].state.load()); }
  void begin() {
    total = init ? 1 : static_cast<uint32_t>(gpus.size());
    if (total > room) steps.reset(new Step[room = total]);
    for (uint32_t i = 0; i < total; i++) steps[i].state.store(kWaiting, std::memory_order_relaxed);
    next.store(0);
    finished.store(0);
    over.store(0);
    helped = false;
    samples.resize(gpus.size());
  }
  void retain() { references.fetch_add(1); }
  void release() {
    if (references.fetch_sub(1) == 1) delete this;
  }
  uint32_t waiting() const {
    uint32_t number = 0;
    for (uint32_t i = 0; i < total; i++) number += state(i) == kWaiting ? 1 : 0;
    return number;
  }
  bool change(uint32_t position, State from, State to) {
    uint32_t expected = from;
    return steps[position].state.compare_exchange_strong(expected, to);
  }
  void count_finished() {
    if (finished.fetch_add(1) + 1 != total) return;
    over.store(1);
    if (sleeping.load()) futex_wake(over);
  }
  // Steps that nobody has begun are not to be.
  void withdraw() {
    for (uint32_t i = 0; i < total; i++) {
      if (change(i, kWaiting, kWithdrawn)) count_finished();
    }
  }
};

// The thread that does most looks. It is replaced when it is stuck.
struct Driver::Worker {
  std::atomic<uint32_t> posted{0};
  std::atomic<bool> sleeping{false};
  std::atomic<Job*> job{nullptr};  // with a reference to it, for who takes it out
  std::atomic<int> processor{-1};  // where it waits
  std::atomic<int> asker{-1};      // the processor of who asked last, or will soon
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
  for (;;) {
    const uint32_t position = job.next.fetch_add(1);
    if (position >= job.total) break;
    if (!job.change(position, Job::kWaiting, Job::kTaken)) continue;  // withdrawn
    const int64_t start = job.side_by_side ? monotonic_nanoseconds() : 0;
    job.driver->step(job, position);
    if (job.side_by_side) job.steps[position].took = monotonic_nanoseconds() - start;
    job.steps[position].state.store(Job::kDone);
    job.count_finished();
  }
  job.release();
}

void Driver::work(void* pointer) {
  auto& worker = *static_cast<Worker*>(pointer);
  for (uint32_t served = 0;;) {
    const int processor = own_processor();
    worker.processor.store(processor, std::memory_order_relaxed);
    while (worker.posted.load() == served) {
      // On one processor with who asks, spinning would only keep that one from going on.
      const bool apart = processor < 0 || processor != worker.asker.load(std::memory_order_relaxed);
      if (apart && spin_while(worker.posted, served, monotonic_nanoseconds() + kSpin)) break;
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
  // A worker that waits on this processor can't begin before this thread is out of its way.
  job.apart = job.asker < 0 || worker_->processor.load(std::memory_order_relaxed) != job.asker;
  worker_->asker.store(job.asker, std::memory_order_relaxed);
  worker_->job.store(&job);
  worker_->posted.fetch_add(1);
  if (worker_->sleeping.load()) futex_wake(worker_->posted);
  return true;
}

void Driver::stir() {
  if (worker_ == nullptr || !worker_->sleeping.load()) return;
  worker_->asker.store(own_processor(), std::memory_order_relaxed);
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

Driver::Wait Driver::wait_for(Job& job, bool on_main_thread, int64_t patience, int64_t limit) {
  const int64_t start = monotonic_nanoseconds();
  const int64_t end = limit == kNever ? kNever : start + limit;
  if (job.apart ? spin_while(job.over, 0, start + kSpin) : job.done()) return Wait::done;
  // On one processor with the worker, being awake in time would keep that from being so.
  const Expectation expected = expect(start, job.apart ? job.typical : 0);
  std::unique_ptr<process::Interrupt> interrupt;
  if (on_main_thread) interrupt = std::make_unique<process::Interrupt>();
  job.sleeping.store(true);
  uint64_t answered = answers(job);
  int64_t deadline = start + patience;
  Wait result = Wait::done;
  while (!job.done()) {
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
    if (now >= expected.from && now < expected.until) {
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
      if (init_->change(0, Job::kWaiting, Job::kWithdrawn)) {  // no thread was to be had: a later call begins anew
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
  for (uint32_t i = 0; i < job.total; i++) {
    const uint32_t index = job.gpus[i];
    switch (job.state(i)) {
      case Job::kDone: break;
      case Job::kTaken:
        samples[index].fall_silent();
        stuck_[index] = {&job, i};
        job.retain();
        continue;
      default:  // no thread was to be had: the next look asks anew
        samples[index].fall_silent();
        continue;
    }
    std::swap(samples[index], job.samples[i]);
    Description& known = descriptions_[index];
    if (!known.uuid.empty() || gpus_[index]->uuid().empty()) continue;
    const Gpu& gpu = *gpus_[index];
    known = {gpu.uuid(), gpu.name(), gpu.pci_bus_id(), gpu.persistence()};
    per_gpu_ = 0;  // a GPU that has to be started first takes longer than it ever will again
  }
}

void Driver::measure(const Job& job) {
  const int64_t elapsed = monotonic_nanoseconds() - job.started;
  if (!job.helped) {
    per_gpu_ = elapsed / job.total;
  } else if (job.side_by_side) {
    per_gpu_ = 0;
    for (uint32_t i = 0; i < job.total; i++) per_gpu_ += job.steps[i].took / job.total;
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
  if (outcome == Wait::interrupted) {
    job.started = 0;
    return false;
  }
  if (outcome == Wait::stalled) {
    job.withdraw();
    leave_worker();
  } else if (job.started != 0) {
    measure(job);
  }
  collect(job, samples);
  return true;
}

bool Driver::look(std::vector<Sample>& samples, const std::vector<uint32_t>* only, bool on_main_thread) {
  return look_within(kNever, samples, only, on_main_thread);
}

bool Driver::look_quickly(std::vector<Sample>& samples, const std::vector<uint32_t>* only) {
  const size_t total = only != nullptr ? only->size() : gpus_.size();
  const bool quick = per_gpu_ > 0 && per_gpu_ * static_cast<int64_t>(total) <= kQuick;
  return quick && unfinished_ == nullptr && look_within(kQuickLimit, samples, only, false);
}

bool Driver::look_within(int64_t limit, std::vector<Sample>& samples, const std::vector<uint32_t>* only,
                         bool on_main_thread) {
  const auto count = static_cast<uint32_t>(gpus_.size());
  samples.resize(count);
  if (unfinished_ != nullptr) {
    Job& job = *unfinished_;
    std::vector<Sample> ignored(count);
    if (!finish(job, ignored, on_main_thread, limit)) return false;
    unfinished_ = nullptr;
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
    Stuck& stuck = stuck_[i];
    if (stuck.job != nullptr) {
      if (stuck.job->state(stuck.position) != Job::kDone) {
        samples[i].fall_silent();
        continue;
      }
      stuck.job->release();
      stuck.job = nullptr;
    }
    job.gpus.push_back(i);
  }
  if (job.gpus.empty()) return true;
  const auto total = static_cast<int64_t>(job.gpus.size());
  job.asker = own_processor();
  job.side_by_side = total > 1 && per_gpu_ >= kAlone;
  job.typical = job.side_by_side ? 0 : per_gpu_ * total;
  job.begin();
  job.started = monotonic_nanoseconds();
  const bool handed = hand_to_worker(job);
  if (handed && job.side_by_side) add_hands(job);
  if (!handed) job.withdraw();
  if (!finish(job, samples, on_main_thread, limit)) {
    unfinished_ = slot;
    slot = nullptr;
    return false;
  }
  return true;
}

}  // namespace gpu_owner::nvml
