#include "nvml/driver.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "process/futex.h"
#include "process/interrupt.h"
#include "process/thread.h"

namespace gpu_owner::nvml {

using process::futex_wait;
using process::futex_wake;
using process::monotonic_nanoseconds;

namespace {

constexpr int64_t kMillisecond = 1'000'000;
// How long the driver may leave all calls unanswered, and how long GPUs are given that couldn't be asked before that.
constexpr int64_t kTimeout = 800 * kMillisecond;
constexpr int64_t kSecondTimeout = 400 * kMillisecond;
// The caller may wait on: see open().
constexpr int64_t kInitTimeout = 3'000 * kMillisecond;
// Where GPUs take longer each, they are asked side by side, by a thread for each: below that, threads cost more than
// they bring.
constexpr int64_t kAlone = 2 * kMillisecond;

constexpr uint32_t kMaxGpus = 1024;
// There may be a thread per GPU, so not the 8 MiB that is usual.
constexpr size_t kCallStack = 1024 * 1024;

bool is_among(const std::vector<uint32_t>* only, uint32_t gpu) {
  return only == nullptr || std::find(only->begin(), only->end(), gpu) != only->end();
}

}  // namespace

// Calls to the driver, in steps that one thread or several take, each the next one. Shared by the thread that asked and
// those that work.
struct Driver::Job {
  explicit Job(uint32_t steps) : total(steps), done(new std::atomic<bool>[steps]()) {}
  virtual ~Job() = default;

  const uint32_t total;
  std::unique_ptr<std::atomic<bool>[]> done;
  std::atomic<uint32_t> next{0};      // the step to be taken next
  std::atomic<uint32_t> finished{0};  // steps done or withdrawn
  std::atomic<uint32_t> over{0};      // 1 when all are
  // For the thread that asked only.
  bool helped = false;  // by more threads than one
  bool withdrawn = false;
  uint32_t taken = total;  // steps, where the others were withdrawn

  virtual void take(uint32_t step) = 0;
  // How many calls the driver has answered so far.
  virtual uint64_t answers() const { return finished.load(); }

  bool is_over() const { return over.load() != 0; }
  uint32_t waiting() const { return total - std::min(next.load(), total); }

  void work() {
    for (uint32_t step; (step = next.fetch_add(1)) < total;) {
      take(step);
      done[step].store(true);
      count_finished(1);
    }
  }

  void count_finished(uint32_t steps) {
    if (finished.fetch_add(steps) + steps != total) return;
    over.store(1);
    futex_wake(over);
  }

  // Withdraws the steps that haven't begun. Returns how many.
  uint32_t withdraw() {
    if (withdrawn) return 0;
    withdrawn = true;
    taken = std::min(next.exchange(total), total);
    if (taken < total) count_finished(total - taken);
    return total - taken;
  }
};

// Starts NVML.
struct Driver::StartJob : Driver::Job {
  explicit StartJob(Library& library) : Job(1), library(library) {}

  Library& library;
  Code init_code = SUCCESS, count_code = SUCCESS;
  uint32_t count = 0;
  std::string version;

  void take(uint32_t) override {
    init_code = library.init();
    if (init_code != SUCCESS) return;
    count_code = library.device_count(count);
    library.driver_version(version);
  }
};

// Asks about a list of GPUs, a step each.
struct Driver::SnapshotJob : Driver::Job {
  SnapshotJob(const Library& library, std::vector<Gpu*> asked, bool are_chosen)
      : Job(static_cast<uint32_t>(asked.size())),
        library(library),
        gpus(std::move(asked)),
        are_chosen(are_chosen),
        samples(gpus.size()) {}

  const Library& library;
  const std::vector<Gpu*> gpus;
  const bool are_chosen;        // as in Gpu::read
  std::vector<Sample> samples;  // parallel to gpus

  void take(uint32_t step) override { gpus[step]->read(library, samples[step], are_chosen); }
  uint64_t answers() const override {
    uint64_t number = finished.load();
    for (const Gpu* gpu : gpus) number += gpu->answers();
    return number;
  }
};

// Asks how the GPUs are connected.
struct Driver::TopologyJob : Driver::Job {
  TopologyJob(const Library& library, std::vector<Device> devices)
      : Job(1), library(library), devices(std::move(devices)) {}

  const Library& library;
  const std::vector<Device> devices;
  Topology topology;

  void take(uint32_t) override { topology = nvml::read_topology(library, devices); }
};

// The thread that makes most calls. A stuck thread is replaced.
struct Driver::Worker {
  std::atomic<uint32_t> posted{0};  // changes when there is something new
  std::mutex mutex;                 // guards what follows
  std::shared_ptr<Job> job;
  bool retired = false;

  void post() {
    posted.fetch_add(1);
    futex_wake(posted);
  }
};

Driver& Driver::instance() {
  static auto* driver = new Driver;
  return *driver;
}

void* Driver::help(void* pointer) {
  const std::unique_ptr<std::shared_ptr<Job>> job(static_cast<std::shared_ptr<Job>*>(pointer));
  (*job)->work();
  return nullptr;
}

void* Driver::serve(void* pointer) {
  const std::unique_ptr<std::shared_ptr<Worker>> own(static_cast<std::shared_ptr<Worker>*>(pointer));
  Worker& worker = **own;
  for (uint32_t served = 0;;) {
    while (worker.posted.load() == served) futex_wait(worker.posted, served, 3'600'000 * kMillisecond);
    served = worker.posted.load();
    std::shared_ptr<Job> job;
    {
      const std::lock_guard<std::mutex> lock(worker.mutex);
      if (worker.retired) return nullptr;
      job.swap(worker.job);
    }
    if (job != nullptr) job->work();
  }
}

// 0 or an errno value.
template <typename Shared>
int Driver::start_thread_with(void* (*run)(void*), const std::shared_ptr<Shared>& shared) {
  auto* copy = new std::shared_ptr<Shared>(shared);
  const int error = process::start_detached(kCallStack, run, copy);
  if (error != 0) delete copy;
  return error;
}

// 0 or an errno value.
int Driver::hand_to_worker(const std::shared_ptr<Job>& job) {
  if (worker_ == nullptr) {
    auto worker = std::shared_ptr<Worker>(new Worker);
    const int error = start_thread_with(serve, worker);
    if (error != 0) return error;
    worker_ = std::move(worker);
  }
  {
    const std::lock_guard<std::mutex> lock(worker_->mutex);
    worker_->job = job;  // one that it hasn't got to was withdrawn before
  }
  worker_->post();
  return 0;
}

// Tells a worker that is stuck to end once it gets there.
void Driver::leave_worker() {
  if (worker_ == nullptr) return;
  {
    const std::lock_guard<std::mutex> lock(worker_->mutex);
    worker_->retired = true;
    worker_->job = nullptr;
  }
  worker_->post();
  worker_ = nullptr;
}

// Has others help with a job: as many threads as there are steps that haven't begun.
void Driver::add_helpers(const std::shared_ptr<Job>& job) {
  job->helped = true;
  for (uint32_t helpers = job->waiting(); helpers > 0; helpers--) {
    if (start_thread_with(help, job) != 0) return;
  }
}

Driver::Wait Driver::wait_for(const std::shared_ptr<Job>& shared, bool on_main_thread, int64_t timeout) {
  Job& job = *shared;
  const int64_t start = monotonic_nanoseconds();
  std::unique_ptr<process::Interrupt> interrupt;
  if (on_main_thread) interrupt = std::make_unique<process::Interrupt>();
  uint64_t answered = job.answers();
  int64_t deadline = start + timeout;
  while (!job.is_over()) {
    const int64_t now = monotonic_nanoseconds();
    const uint64_t answered_now = job.answers();
    if (answered_now != answered) {
      answered = answered_now;
      deadline = now + timeout;
    }
    if (now >= deadline) return Wait::stalled;
    if (interrupt && interrupt->signal() != 0) return Wait::interrupted;
    int64_t sleep = std::min(deadline - now, process::kMaxSleep);
    if (!job.helped && job.total > 1) {
      // If no step has begun yet, the driver isn't what is slow.
      const int64_t late = job.next.load() == 0 ? now + kAlone : start + kAlone * (job.finished.load() + 1);
      if (now >= late) add_helpers(shared);
      if (now < late) sleep = std::min(sleep, late - now);
    }
    futex_wait(job.over, 0, sleep);
  }
  return Wait::done;
}

Driver::Opened Driver::open(const std::string& path) {
  if (ready_) return {Stage::ready, SUCCESS};
  const process::Interrupt interrupt;  // loading takes its time, too
  const bool loaded = !library_.path().empty() && library_.missing().empty();
  if (!loaded && !library_.load(path)) return {library_.path().empty() ? Stage::load : Stage::symbol, SUCCESS};
  if (starting_ == nullptr) {
    auto start = std::shared_ptr<StartJob>(new StartJob(library_));
    const int error = hand_to_worker(start);
    if (error != 0) return {Stage::no_thread, error};
    starting_ = std::move(start);
  }
  switch (wait_for(starting_, true, kInitTimeout)) {
    case Wait::interrupted: return {Stage::interrupted, SUCCESS};  // a later call goes on waiting for the same job
    case Wait::stalled:
      if (starting_->withdraw() != 0) {  // no thread could start: a later call tries again
        leave_worker();
        starting_ = nullptr;
      }
      return {Stage::not_responding, SUCCESS};
    case Wait::done: break;
  }
  const std::shared_ptr<StartJob> started = std::move(starting_);
  version_ = started->version;
  if (started->init_code != SUCCESS) return {Stage::init, started->init_code};
  if (started->count_code != SUCCESS) return {Stage::count, started->count_code};
  const uint32_t count = std::min(started->count, kMaxGpus);
  for (uint32_t i = 0; i < count; i++) gpus_.push_back(std::make_unique<Gpu>(i));
  stuck_.resize(count);
  descriptions_.resize(count);
  ready_ = true;
  return {Stage::ready, SUCCESS};
}

// Takes over what a job has found out. A GPU that it doesn't come back from is left alone until it does.
void Driver::collect(const std::shared_ptr<SnapshotJob>& job, std::vector<Sample>& samples) {
  const bool whole = !job->withdrawn && job->is_over();
  for (uint32_t i = 0; i < job->total; i++) {
    const Gpu& gpu = *job->gpus[i];
    Sample& sample = samples[gpu.index()];
    if (!whole && (i >= job->taken || !job->done[i].load())) {
      sample.fall_silent();
      if (i < job->taken) stuck_[gpu.index()] = {job, i};  // else no thread could start: the next snapshot tries again
      continue;
    }
    sample = std::move(job->samples[i]);
    Description& known = descriptions_[gpu.index()];
    if (!known.uuid.empty() || gpu.uuid().empty()) continue;
    known = {gpu.uuid(), gpu.name(), gpu.pci_bus_id(), gpu.persistence()};
    described_++;
  }
}

// Waits for a job and takes over what it has found out; false when a signal came first, and the job goes on.
bool Driver::finish(const std::shared_ptr<SnapshotJob>& job, std::vector<Sample>& samples, bool on_main_thread) {
  Wait outcome = wait_for(job, on_main_thread, kTimeout);
  if (outcome == Wait::stalled && job->waiting() > 0) {
    add_helpers(job);
    outcome = wait_for(job, on_main_thread, kSecondTimeout);
  }
  if (outcome == Wait::interrupted) return false;
  if (outcome == Wait::stalled) {
    job->withdraw();
    leave_worker();
  }
  collect(job, samples);
  return true;
}

bool Driver::has_call_out() {
  for (uint32_t i = 0; i < stuck_.size(); i++) {
    if (is_stuck(i)) return true;
  }
  return (unfinished_ != nullptr && !unfinished_->is_over()) || (starting_ != nullptr && !starting_->is_over()) ||
         (asking_ != nullptr && !asking_->is_over());
}

bool Driver::read_topology(Topology& topology, bool on_main_thread) {
  if (asking_ != nullptr && !asking_->is_over()) return false;
  std::vector<Device> devices;
  for (uint32_t i = 0; i < gpus_.size(); i++) devices.push_back(is_stuck(i) ? nullptr : gpus_[i]->handle());
  asking_ = std::shared_ptr<TopologyJob>(new TopologyJob(library_, std::move(devices)));
  if (hand_to_worker(asking_) != 0) asking_->withdraw();
  const Wait outcome = wait_for(asking_, on_main_thread, kTimeout);
  if (outcome == Wait::stalled) {
    asking_->withdraw();
    leave_worker();
  }
  if (outcome != Wait::done || asking_->withdrawn) return false;
  topology = std::move(asking_->topology);
  asking_ = nullptr;
  return true;
}

bool Driver::is_stuck(uint32_t gpu) {
  Stuck& stuck = stuck_[gpu];
  if (stuck.job == nullptr) return false;
  if (!stuck.job->done[stuck.step].load()) return true;
  stuck.job = nullptr;
  return false;
}

bool Driver::take_snapshot(std::vector<Sample>& samples, const std::vector<uint32_t>* only, bool on_main_thread) {
  const size_t count = gpus_.size();
  samples.resize(count);
  if (unfinished_ != nullptr) {
    std::vector<Sample> ignored(count);
    if (!finish(unfinished_, ignored, on_main_thread)) return false;
    unfinished_ = nullptr;
  }
  std::vector<Gpu*> asked;
  for (uint32_t i = 0; i < count; i++) {
    if (is_among(only, i) && !is_stuck(i)) asked.push_back(gpus_[i].get());
  }
  if (!asked.empty()) {
    const auto job = std::shared_ptr<SnapshotJob>(new SnapshotJob(library_, std::move(asked), only != nullptr));
    if (hand_to_worker(job) != 0) job->withdraw();
    if (!finish(job, samples, on_main_thread)) {
      unfinished_ = job;
      return false;
    }
  }
  for (uint32_t i = 0; i < count; i++) {
    if (stuck_[i].job != nullptr && is_among(only, i)) samples[i].fall_silent();
  }
  return true;
}

}  // namespace gpu_owner::nvml
