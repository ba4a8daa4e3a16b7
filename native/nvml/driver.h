// The driver of this process: NVML opened once, handles kept, and looks at all GPUs that give up on one that hangs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nvml/device.h"
#include "process/turns.h"

namespace gpu_owner::nvml {

class Driver {
 public:
  // There is one driver per process. It is never destroyed: a thread may be stuck in it when the process ends.
  static Driver& instance();

  enum class Stage { ready, load, symbol, init, count, not_responding, interrupted };
  struct Opened {
    Stage stage;
    int code;  // of NVML, for init and count
  };
  // Loads and initialises NVML; `path` empty = the usual places. Fails again and again until it succeeds once; later calls
  // do nothing. Blocks for as long as nvmlInit does, at most 10 s.
  Opened open(const std::string& path);

  const Library& library() const { return library_; }
  const std::string& version() const { return version_; }

  // Looks at every GPU, or at those with the given indices; the samples of the others are left alone. A GPU for which the driver
  // doesn't answer within the patience is reported as not responding and left alone until its call returns. False when a handled
  // signal ended the wait (main thread only).
  bool look(std::vector<Sample>& samples, const std::vector<uint32_t>* only, bool on_main_thread);

  // As look, for a thread that has other things to do: only where looks usually take no more than a fraction of a millisecond, and
  // for a millisecond at the longest. False: nothing was found out, and it takes look.
  bool look_quickly(std::vector<Sample>& samples, const std::vector<uint32_t>* only);

  // Whether a call hasn't returned that nobody waits for any longer. If it is stuck in the kernel, this process can neither
  // end nor become another program, and what it has open stays open.
  bool has_call_out();

  struct Description {
    std::string uuid, name, pci_bus_id;
    int persistence = -1;  // as in Gpu
  };
  // What was learnt of each GPU when it was attached; empty before.
  const std::vector<Description>& descriptions() const { return descriptions_; }
  // Changes with them.
  uint32_t described() const { return described_; }

  // One look at a time, and nobody else's twice before one's own.
  process::Turns& turns() { return turns_; }

 private:
  struct Job;
  struct Worker;

  // A GPU that a job doesn't come back from.
  struct Stuck {
    Job* job = nullptr;
    uint32_t position = 0;
  };

  static void* work(void* worker);
  static void* work_once(void* job);
  enum class Wait { done, stalled, interrupted };
  Wait wait_for(Job& job, bool on_main_thread, int64_t patience, int64_t limit);
  bool hand_to_worker(Job& job);
  void leave_worker();
  void add_helpers(Job& job);
  uint64_t answers(const Job& job) const;
  bool finish(Job& job, std::vector<Sample>& samples, bool on_main_thread, int64_t limit);
  bool look_within(int64_t limit, std::vector<Sample>& samples, const std::vector<uint32_t>* only, bool on_main_thread);
  Job* start(const std::vector<uint32_t>* only);
  bool is_stuck(uint32_t gpu);
  void collect(Job& job, std::vector<Sample>& samples);
  void step(Job& job, uint32_t position);

  process::Turns turns_;
  Library library_;
  std::string version_;
  bool ready_ = false;
  Worker* worker_ = nullptr;
  std::vector<std::unique_ptr<Gpu>> gpus_;
  std::vector<Stuck> stuck_;      // per GPU
  std::vector<Description> descriptions_;
  uint32_t described_ = 0;
  Job* jobs_[2] = {};             // reused from look to look
  int turn_ = 0;
  int64_t per_gpu_ = 0;           // how long each took at the last look, ns; 0: not known
  Job* init_ = nullptr;           // nvmlInit under way
  Job* unfinished_ = nullptr;     // left behind by a wait that ended early
};

}  // namespace gpu_owner::nvml
