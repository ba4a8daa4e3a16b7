#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "bindings/bindings.h"
#include "locks/held.h"
#include "nvml/driver.h"
#include "process/interrupt.h"
#include "process/thread.h"

namespace gpu_owner::bindings {
namespace {

using nvml::Driver;
using nvml::Sample;
using Numbers = std::vector<double>;

// A snapshot crosses to JavaScript as one array of numbers, decoded by lib/gpus/snapshot.ts, which knows the same
// layout:
//   version of the descriptions, number of GPUs, then per GPU
//   health, memory total/used/free/reserved, power, power limit (mW), utilization, temperature, energy (mJ), compute
//   mode, display active, MIG mode, uncorrectable memory errors, memory repair pending, memory repair failed, processes
//   known, number of processes, number of MIG instances,
//   per process: pid, type (0 compute, 1 graphics), used memory, share of the multiprocessors (percent)
//   per MIG instance: its number, GPU instance, compute instance, memory total/used/free/reserved, compute mode,
//   processes known, number of processes, and these as above
// NaN stands for what the driver can't give.

// The last snapshot of each GPU. Needs the driver's mutex.
std::vector<Sample>& samples() {
  static auto* samples = new std::vector<Sample>;
  return *samples;
}

struct Described {
  std::string uuid, name, pci_bus_id;
  std::vector<std::pair<std::string, std::string>> instances;  // UUID and name
  int persistence = -1;                                        // 0, 1; -1 where the driver doesn't tell
};

// The encoded snapshot, for readers on any thread. The mutex here is never held for long: a snapshot may take seconds
// under the driver's mutex. Fields are written under both, and read under either.
struct Published {
  std::mutex mutex;
  Numbers numbers;
  std::vector<Described> described;
  double version = 0;  // the number of the descriptions
  uint32_t seen = 0;   // the driver's number of that
};

Published& published() {
  static auto* published = new Published;
  return *published;
}

bool same_instances(const Described& described, const Sample& sample) {
  if (described.instances.size() != sample.instances.size()) return false;
  for (size_t i = 0; i < sample.instances.size(); i++) {
    if (described.instances[i].first != sample.instances[i].uuid) return false;
  }
  return true;
}

// Notices new GPUs and changed MIG instances; strings are made only then. Needs the driver's mutex.
void describe_anew(Published& out) {
  const Driver& driver = Driver::instance();
  const auto& gpus = driver.descriptions();
  bool same = out.seen == driver.described() && out.described.size() == gpus.size();
  for (size_t i = 0; same && i < gpus.size(); i++) same = same_instances(out.described[i], samples()[i]);
  if (same) return;
  const std::lock_guard<std::mutex> lock(out.mutex);
  out.seen = driver.described();
  out.version++;
  out.described.clear();
  for (size_t i = 0; i < gpus.size(); i++) {
    Described described = {gpus[i].uuid, gpus[i].name, gpus[i].pci_bus_id, {}, gpus[i].persistence};
    for (const auto& instance : samples()[i].instances) described.instances.emplace_back(instance.uuid, instance.name);
    out.described.push_back(std::move(described));
  }
}

// The share in the newest sample.
double use_of(const Sample& sample, uint32_t pid) {
  if (!sample.process_use_known) return NAN;
  uint64_t newest = 0;
  double use = 0;
  for (const nvml::ProcessUtilization& each : sample.process_use) {
    if (each.pid != pid || each.microseconds < newest) continue;
    newest = each.microseconds;
    use = each.sm;
  }
  return use;
}

void encode_processes(Numbers& out, const Sample* sample, const std::vector<nvml::Process>& list, double type) {
  for (const nvml::Process& process : list) {
    out.push_back(process.pid);
    out.push_back(type);
    out.push_back(process.used_memory == nvml::kUnknownMemory ? NAN : static_cast<double>(process.used_memory));
    out.push_back(sample == nullptr ? NAN : use_of(*sample, process.pid));
  }
}

void encode_memory(Numbers& out, const nvml::Memory& memory) {
  out.push_back(memory.total);
  out.push_back(memory.used);
  out.push_back(memory.free);
  out.push_back(memory.reserved);
}

void encode_instance(Numbers& out, const nvml::MigInstance& instance) {
  out.push_back(instance.slot);
  out.push_back(instance.gpu_instance);
  out.push_back(instance.compute_instance);
  out.push_back(instance.health);
  encode_memory(out, instance.memory);
  out.push_back(instance.compute_mode);
  out.push_back(instance.processes_known ? 1 : 0);
  out.push_back(static_cast<double>(instance.compute.size() + instance.graphics.size()));
  encode_processes(out, nullptr, instance.compute, 0);
  encode_processes(out, nullptr, instance.graphics, 1);
}

void encode_gpu(Numbers& out, const Sample& sample) {
  out.push_back(sample.health);
  encode_memory(out, sample.memory);
  out.push_back(sample.power_milliwatts);
  out.push_back(sample.power_limit_milliwatts);
  out.push_back(sample.utilization_percent);
  out.push_back(sample.temperature_celsius);
  out.push_back(sample.energy_millijoules);
  out.push_back(sample.compute_mode);
  out.push_back(sample.display_active);
  out.push_back(sample.mig_mode);
  out.push_back(sample.memory_health.uncorrectable_errors);
  out.push_back(sample.memory_health.repair_pending);
  out.push_back(sample.memory_health.repair_failed);
  out.push_back(sample.processes_known ? 1 : 0);
  out.push_back(static_cast<double>(sample.compute.size() + sample.graphics.size()));
  out.push_back(static_cast<double>(sample.instances.size()));
  encode_processes(out, &sample, sample.compute, 0);
  encode_processes(out, nullptr, sample.graphics, 1);
  for (const nvml::MigInstance& instance : sample.instances) encode_instance(out, instance);
}

void encode(Numbers& out) {
  out.push_back(published().version);
  out.push_back(static_cast<double>(samples().size()));
  for (const Sample& sample : samples()) encode_gpu(out, sample);
}

// Keeps a snapshot for those who will read it. Needs the driver's mutex.
void publish() {
  Published& target = published();
  describe_anew(target);
  const std::lock_guard<std::mutex> lock(target.mutex);
  target.numbers.clear();
  encode(target.numbers);
}

Napi::Value copy_published(Napi::Env env) {
  Published& source = published();
  const std::lock_guard<std::mutex> lock(source.mutex);
  const size_t size = source.numbers.size();
  void* data = nullptr;
  napi_value buffer = nullptr;
  napi_value numbers = nullptr;
  // A worker thread that is being ended makes no objects.
  if (napi_create_arraybuffer(env, size * sizeof(double), &data, &buffer) != napi_ok || data == nullptr ||
      napi_create_typedarray(env, napi_float64_array, size, buffer, 0, &numbers) != napi_ok) {
    return env.Undefined();
  }
  std::copy(source.numbers.begin(), source.numbers.end(), static_cast<double*>(data));
  return {env, numbers};
}

using DriverLock = std::unique_lock<std::timed_mutex>;

// After something was asked of the driver: has it not come back, this process's end may be late. Needs the driver's
// mutex.
void prepare_for_late_end() {
  if (Driver::instance().has_call_out()) locks::abandon_held_at_signals();
}

// Not locked when a handled signal came first.
DriverLock lock_on_main_thread(std::timed_mutex& mutex) {
  DriverLock lock(mutex, std::try_to_lock);
  if (lock.owns_lock()) return lock;
  const process::Interrupt interrupt;
  while (interrupt.signal() == 0 && !lock.try_lock_for(std::chrono::nanoseconds(process::kMaxSleep))) {
  }
  return lock;
}

// For a thread that takes a snapshot and publishes it.
constexpr size_t kSnapshotStack = 256 * 1024;

// GPUs to ask about: an array of indices, or all of them.
class Asked {
 public:
  explicit Asked(const Napi::Value& value) : some_(value.IsArray()) {
    if (!some_) return;
    for (const int index : integers(value)) indices_.push_back(static_cast<uint32_t>(index));
  }
  const std::vector<uint32_t>* only() const { return some_ ? &indices_ : nullptr; }

 private:
  const bool some_;
  std::vector<uint32_t> indices_;
};

// driverOpen(path) -> undefined, or why not: { stage, code, text, path, missing, attempts }
Napi::Value open(const Napi::CallbackInfo& info) {
  Driver& driver = Driver::instance();
  const DriverLock lock = lock_on_main_thread(driver.mutex());
  auto opened = Driver::Opened{Driver::Stage::interrupted, 0};
  if (lock.owns_lock()) {
    opened = driver.open(text(info[0]));
    prepare_for_late_end();
  }
  // Nothing to build: the environment may have been ended while this thread waited.
  if (opened.stage == Driver::Stage::ready) return info.Env().Undefined();
  const char* stages[] = {"ready", "load", "symbol", "init", "count", "not-responding", "no-thread", "interrupted"};
  auto result = Napi::Object::New(info.Env());
  result.Set("stage", stages[static_cast<int>(opened.stage)]);
  result.Set("code", opened.code);
  result.Set("text", nvml::code_text(opened.code));
  result.Set("path", driver.library().path());
  result.Set("missing", driver.library().missing());
  result.Set("attempts", attempts(info.Env(), driver.library().attempts()));
  return result;
}

// driverSnapshot(asked?) -> the numbers, or undefined when a signal ended the wait
Napi::Value snapshot(const Napi::CallbackInfo& info) {
  Driver& driver = Driver::instance();
  const Asked asked(info[0]);
  const DriverLock lock = lock_on_main_thread(driver.mutex());
  if (!lock.owns_lock() || !driver.take_snapshot(samples(), asked.only(), true)) return info.Env().Undefined();
  prepare_for_late_end();
  publish();
  return copy_published(info.Env());
}

// Snapshots on threads of their own that have been asked for and haven't ended.
std::atomic<int> snapshots_in_threads{0};

// driverHasCallOut() -> whether an abandoned call of the driver hasn't returned, or a snapshot is under way
Napi::Value driver_has_call_out(const Napi::CallbackInfo& info) {
  Driver& driver = Driver::instance();
  const DriverLock lock(driver.mutex(), std::try_to_lock);
  return Napi::Boolean::New(info.Env(), snapshots_in_threads.load() > 0 || !lock.owns_lock() || driver.has_call_out());
}

// A snapshot on a thread of its own. The environment that asked may be gone before the driver has answered, so two
// share it: the thread, and the environment until its callback has run or it ends.
struct Request {
  explicit Request(const Napi::Value& value) : asked(value) {}
  Napi::ThreadSafeFunction done;
  const Asked asked;
  std::mutex mutex;
  bool gone = false;  // the environment
  std::atomic<int> references{2};

  void release() {
    if (references.fetch_sub(1) == 1) delete this;
  }
};

void end_snapshot(void* pointer) {
  auto* request = static_cast<Request*>(pointer);
  {
    const std::lock_guard<std::mutex> lock(request->mutex);
    request->gone = true;
  }
  request->release();
}

void deliver_snapshot(Napi::Env env, Napi::Function done, Request* request) {
  // Waits until the thread has released the function: from here on nothing keeps the environment from ending, and it
  // frees the function whether or not it was released.
  {
    const std::lock_guard<std::mutex> lock(request->mutex);
  }
  napi_remove_env_cleanup_hook(env, end_snapshot, request);
  request->release();
  done.Call({copy_published(env)});
}

void* snapshot_in_thread(void* pointer) {
  auto* request = static_cast<Request*>(pointer);
  {
    Driver& driver = Driver::instance();
    const DriverLock lock(driver.mutex());
    driver.take_snapshot(samples(), request->asked.only(), false);
    prepare_for_late_end();
    publish();
  }
  snapshots_in_threads.fetch_sub(1);
  {
    const std::lock_guard<std::mutex> lock(request->mutex);
    if (!request->gone && request->done.NonBlockingCall(request, deliver_snapshot) == napi_ok) request->done.Release();
  }
  request->release();
  return nullptr;
}

// driverSnapshotAsync(done, asked?): asks without blocking this thread, then calls done(numbers)
void snapshot_async(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  auto* request = new Request(info[1]);
  request->done = Napi::ThreadSafeFunction::New(env, info[0].As<Napi::Function>(), "gpu-owner snapshot", 0, 1);
  // Added after the function's own hook, so it runs before that one.
  napi_add_env_cleanup_hook(env, end_snapshot, request);
  snapshots_in_threads.fetch_add(1);
  if (const int error = process::start_detached(kSnapshotStack, snapshot_in_thread, request); error != 0) {
    snapshots_in_threads.fetch_sub(1);
    napi_remove_env_cleanup_hook(env, end_snapshot, request);
    request->done.Abort();
    delete request;
    Napi::Error::New(env, strerror(error)).ThrowAsJavaScriptException();
  }
}

// driverLibrary() -> { path, version }: the file that was loaded as NVML, and the driver's version; '' where not known.
Napi::Value library(const Napi::CallbackInfo& info) {
  const Driver& driver = Driver::instance();
  auto result = Napi::Object::New(info.Env());
  result.Set("path", driver.library().file());
  result.Set("version", driver.version());
  return result;
}

// driverDescribe() -> [{ uuid, name, pciBusId, persistence, instances: [{ uuid, name }] }]
Napi::Value describe_driver(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  Published& source = published();
  const std::lock_guard<std::mutex> lock(source.mutex);
  auto array = Napi::Array::New(env, source.described.size());
  for (uint32_t i = 0; i < source.described.size(); i++) {
    const Described& described = source.described[i];
    auto gpu = Napi::Object::New(env);
    gpu.Set("uuid", described.uuid);
    gpu.Set("name", described.name);
    gpu.Set("pciBusId", described.pci_bus_id);
    gpu.Set("persistence",
            described.persistence < 0 ? env.Null() : Napi::Boolean::New(env, described.persistence == 1));
    auto instances = Napi::Array::New(env);
    for (const auto& [uuid, name] : described.instances) {
      auto instance = Napi::Object::New(env);
      instance.Set("uuid", uuid);
      instance.Set("name", name);
      instances.Set(instances.Length(), instance);
    }
    gpu.Set("instances", instances);
    array.Set(i, gpu);
  }
  return array;
}

Napi::Array ranges(Napi::Env env, const std::vector<uint32_t>& numbers) {
  auto array = Napi::Array::New(env);
  for (size_t i = 0; i < numbers.size(); i++) {
    if (i == 0 || numbers[i] != numbers[i - 1] + 1) array.Set(array.Length(), numbers[i]);
    if (i + 1 == numbers.size() || numbers[i + 1] != numbers[i] + 1) array.Set(array.Length(), numbers[i]);
  }
  return array;
}

// driverTopology() -> undefined where the driver doesn't answer, else { places: [{ cpus, nodes, active, inactive }],
// links: [level, NVLinks, 1 by a switch, for each pair (0, 1), (0, 2), …, (1, 2), …] }. Processors and nodes are
// ranges: first, last, first, last, … -1: unknown.
Napi::Value topology(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  Driver& driver = Driver::instance();
  const DriverLock lock = lock_on_main_thread(driver.mutex());
  nvml::Topology found;
  const bool answered = lock.owns_lock() && driver.read_topology(found, true);
  prepare_for_late_end();
  if (!answered) return env.Undefined();
  auto places = Napi::Array::New(env);
  auto links = Napi::Array::New(env);
  for (uint32_t i = 0; i < found.places.size(); i++) {
    const nvml::Topology::Place& place = found.places[i];
    auto object = Napi::Object::New(env);
    object.Set("cpus", ranges(env, place.cpus));
    object.Set("nodes", ranges(env, place.nodes));
    object.Set("active", place.active_links);
    object.Set("inactive", place.inactive_links);
    places.Set(i, object);
    for (size_t j = i + 1; j < found.places.size(); j++) {
      const nvml::Connection& connection = found.between(i, j);
      for (const int32_t number : {connection.level, connection.nvlinks, int32_t{connection.by_switch}}) {
        links.Set(links.Length(), number);
      }
    }
  }
  auto result = Napi::Object::New(env);
  result.Set("places", places);
  result.Set("links", links);
  return result;
}

// driverReadEnergy(ofAll): snapshots have the energy counters from now on, of all GPUs or of those that are asked for
// by index
void read_energy(const Napi::CallbackInfo& info) {
  nvml::read_energy(info[0].As<Napi::Boolean>().Value() ? nvml::EnergyOf::all : nvml::EnergyOf::chosen);
}

// driverReadProcessUse(on): whether they have each process's share of the multiprocessors from now on
void read_process_use(const Napi::CallbackInfo& info) { nvml::read_process_use(info[0].As<Napi::Boolean>().Value()); }

// driverEnergy(uuid) -> millijoules that the GPU has used since the driver was loaded, or NaN
Napi::Value energy(const Napi::CallbackInfo& info) {
  const nvml::Library& library = Driver::instance().library();
  nvml::Device device = nullptr;
  uint64_t value = 0;
  const bool known = library.device_handle(text(info[0]), device) == nvml::SUCCESS &&
                     library.energy_millijoules(device, value) == nvml::SUCCESS;
  return Napi::Number::New(info.Env(), known ? static_cast<double>(value) : NAN);
}

// driverCodeText(code) -> words for a return code of NVML
Napi::Value code_text(const Napi::CallbackInfo& info) {
  return Napi::String::New(info.Env(), nvml::code_text(integer(info[0])));
}

}  // namespace

void add_driver(Napi::Env env, Napi::Object exports) {
  exports.Set("driverOpen", Napi::Function::New<open>(env));
  exports.Set("driverSnapshot", Napi::Function::New<snapshot>(env));
  exports.Set("driverHasCallOut", Napi::Function::New<driver_has_call_out>(env));
  exports.Set("driverSnapshotAsync", Napi::Function::New<snapshot_async>(env));
  exports.Set("driverLibrary", Napi::Function::New<library>(env));
  exports.Set("driverDescribe", Napi::Function::New<describe_driver>(env));
  exports.Set("driverTopology", Napi::Function::New<topology>(env));
  exports.Set("driverReadEnergy", Napi::Function::New<read_energy>(env));
  exports.Set("driverReadProcessUse", Napi::Function::New<read_process_use>(env));
  exports.Set("driverEnergy", Napi::Function::New<energy>(env));
  exports.Set("driverCodeText", Napi::Function::New<code_text>(env));
}

}  // namespace gpu_owner::bindings
