#include "nvml/driver.h"

#include <algorithm>
#include <atomic>

#include "process/futex.h"
#include "process/interrupt.h"
#include "process/spin.h"
#include "process/thread.h"

namespace gpu_owner::nvml {

using process::futex_wait;
using process::futex_wake;
using process::monotonic_nanoseconds;
using process::spin_while;

namespace {

constexpr int64_t kMillisecond = 1'000'000;
// How long the driver may leave all calls unanswered, and how long those are given that nobody could ask before that.
constexpr int64_t kPatience = 800 * kMillisecond;
constexpr int64_t kSecondPatience = 400 * kMillisecond;
constexpr int64_t kInitPatience = 10'000 * kMillisecond;
// Where GPUs take longer each, they are asked side by side, by a thread for each: below that, threads cost more than they bring.
constexpr int64_t kAlone = 2 * kMillisecond;
// What a thread that has other things to do waits for looks, and how long they may usually take for it to do so.
constexpr int64_t kQuickLimit = kMillisecond, kQuick = kMillisecond / 4;
constexpr int64_t kNever = INT64_MAX;

constexpr uint32_t kMostGpus = 1024;
// There may be a thread per GPU, so not the 8 MiB that is usual.
constexpr size_t kStack = 1024 * 1024;
// Keeps what two threads write at the same time out of one line of their caches.
constexpr size_t kCacheLine = 64;

bool is_among(const std::vector<uint32_t>* only, uint32_t gpu) {
  return only == nullptr || std::find(only->begin(), only->end(), gpu) != only->end();
}

}  // namespace

// A list of GPUs to look at, by one thread or several. Shared by who asked and who works, freed by the last.
struct Driver::Job {
  // Written before work begins.
  Driver* driver;
  bool init = false;                    // instead of looking: nvmlInit
  uint32_t total = 0;                   // steps: GPUs, or one for nvmlInit
  std::vector<uint32_t> gpus;
  // What is found: parallel to gpus. Steps are taken in their order, so which are taken is a number; which are done is noted of each.
  std::vector<Values> values;
  std::vector<Lists> lists;
  std::vector<int64_t> took;            // ns
  std::unique_ptr<std::atomic<bool>[]> done;
  Code init_code = SUCCESS, count_code = SUCCESS;
  uint32_t count = 0;
  std::string version;
  // Of who asked.
  bool helped = false;                  // by more threads than one
  bool withdrawn = false;
  uint32_t taken = 0;                   // steps, where the others were withdrawn

  char separate[kCacheLine];
  std::atomic<uint32_t> next{0};        // the step to be taken next
  std::atomic<uint32_t> finished{0};    // steps done or withdrawn
  std::atomic<int> references{1};

  char separate_again[kCacheLine];
  std::atomic<uint32_t> over{0};        // 1 when all steps are done or withdrawn
  std::atomic<bool> sleeping{false};    // the one who waits for that
  char at_last[kCacheLine];

  explicit Job(Driver* owner) : driver(owner) {}
  bool is_over() const { return over.load() != 0; }
  bool is_done(uint32_t position) const { return done[position].load(); }
  void begin() {
    const uint32_t steps = init ? 1 : static_cast<uint32_t>(gpus.size());
    if (steps > values.size()) {
      done.reset(new std::atomic<bool>[steps]);
      values.resize(steps);
      lists.resize(steps);
      took.resize(steps);
    }
    for (uint32_t i = 0; i < steps; i++) done[i].store(false, std::memory_order_relaxed);
    // Whoever is told of the job sees this.
    next.store(0, std::memory_order_relaxed);
    finished.store(0, std::memory_order_relaxed);
    over.store(0, std::memory_order_relaxed);
    helped = withdrawn = false;
    total = taken = steps;
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

// The thread that does most looks. It is replaced when it is stuck.
struct Driver::Worker {
  std::atomic<uint32_t> posted{0};
  std::atomic<Job*> job{nullptr};  // with a reference to it, for who takes it out
  std::atomic<bool> retired{false};
  std::atomic<bool> sleeping{false};
  std::atomic<int> references{2};  // its thread, and the driver

  void post() {
    posted.fetch_add(1);
    if (sleeping.load()) futex_wake(posted);
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

void* Driver::work_once(void* pointer) {
  auto& job = *static_cast<Job*>(pointer);
  for (;;) {
    const uint32_t position = job.next.fetch_add(1);
    if (position >= job.total) break;
    const int64_t start = monotonic_nanoseconds();
    job.driver->step(job, position);
    job.took[position] = monotonic_nanoseconds() - start;
    job.done[position].store(true, std::memory_order_release);
    job.count_finished(1);
  }
  job.release();
  return nullptr;
}

void* Driver::work(void* pointer) {
  auto& worker = *static_cast<Worker*>(pointer);
  for (uint32_t served = 0; !worker.retired.load();) {
    if (!spin_while(worker.posted, served)) {
      worker.sleeping.store(true);
      while (worker.posted.load() == served) futex_wait(worker.posted, served, 3'600'000 * kMillisecond);
      worker.sleeping.store(false);
    }
    served = worker.posted.load();
    if (Job* job = worker.job.exchange(nullptr)) work_once(job);
  }
  worker.release();
  return nullptr;
}

bool Driver::hand_to_worker(Job& job) {
  job.retain();
  if (worker_ == nullptr) {
    worker_ = new Worker;
    if (process::start_detached(kStack, work, worker_) != 0) {
      delete worker_;
      worker_ = nullptr;
      job.release();
      return false;
    }
  }
  // One that it hasn't got to was withdrawn before.
  if (Job* before = worker_->job.exchange(&job)) before->release();
  worker_->post();
  return true;
}

// Tells a worker that is stuck to end once it gets there.
void Driver::leave_worker() {
  if (worker_ == nullptr) return;
  if (Job* job = worker_->job.exchange(nullptr)) job->release();  // it has not even got there
  worker_->retired.store(true);
  worker_->post();
  worker_->release();
  worker_ = nullptr;
}

// Has others help with a job: as many threads as there are steps that nobody has begun.
void Driver::add_helpers(Job& job) {
  job.helped = true;
  for (uint32_t helpers = job.waiting(); helpers > 0; helpers--) {
    job.retain();
    if (process::start_detached(kStack, work_once, &job) == 0) continue;
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
  if (spin_while(job.over, 0)) return Wait::done;
  const int64_t end = limit == kNever ? kNever : start + limit;
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
    int64_t sleep = std::min(std::min(deadline, end) - now, process::kLongestSleep);
    if (!job.helped && job.total > 1) {
      // Where nobody has begun yet, it isn't the driver that takes so long.
      const int64_t late = job.next.load() == 0 ? now + kAlone : start + kAlone * (job.finished.load() + 1);
      if (now >= late) add_helpers(job);
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

// Waits for a job and takes over what it has found out; false when a signal or the limit came first, and the job goes on.
bool Driver::finish(Job& job, std::vector<Sample>& samples, bool on_main_thread, int64_t limit) {
  Wait outcome = wait_for(job, on_main_thread, kPatience, limit);
  if (outcome == Wait::stalled && limit != kNever) outcome = Wait::interrupted;
  if (outcome == Wait::stalled && job.waiting() > 0) {
    add_helpers(job);
    outcome = wait_for(job, on_main_thread, kSecondPatience, kNever);
  }
  if (outcome == Wait::interrupted) return false;
  if (outcome == Wait::stalled) {
    job.withdraw();
    leave_worker();
  } else if (!job.withdrawn) {
    per_gpu_ = 0;
    for (uint32_t i = 0; i < job.total; i++) per_gpu_ += job.took[i] / job.total;
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

bool Driver::has_call_out() {
  for (uint32_t i = 0; i < stuck_.size(); i++) {
    if (is_stuck(i)) return true;
  }
  return (unfinished_ != nullptr && !unfinished_->is_over()) || (init_ != nullptr && !init_->is_over());
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
  job.gpus.clear();
  for (uint32_t i = 0; i < gpus_.size(); i++) {
    if (is_among(only, i) && !is_stuck(i)) job.gpus.push_back(i);
  }
  if (job.gpus.empty()) return nullptr;
  job.begin();
  if (!hand_to_worker(job)) {
    job.withdraw();
  } else if (job.total > 1 && per_gpu_ >= kAlone) {
    add_helpers(job);
  }
  return &job;
}

bool Driver::look_within(int64_t limit, std::vector<Sample>& samples, const std::vector<uint32_t>* only, bool on_main_thread) {
  const size_t count = gpus_.size();
  samples.resize(count);
  if (unfinished_ != nullptr) {
    Job& before = *unfinished_;
    std::vector<Sample> ignored(count);
    if (!finish(before, ignored, on_main_thread, limit)) return false;
    unfinished_ = nullptr;
    before.release();
  }
  Job* job = start(only);
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
