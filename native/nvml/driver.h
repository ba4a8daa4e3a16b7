// The driver of this process: NVML is opened once, handles are kept, and a snapshot of all GPUs gives up on one that
// hangs.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "nvml/device.h"
#include "nvml/topology.h"

namespace gpu_owner::nvml {

class Driver {
 public:
  // There is one driver per process. The driver is never destroyed: a thread may be stuck in it when the process
  // ends.
  static Driver& instance();

  enum class Stage { ready, load, symbol, init, count, not_responding, no_thread, interrupted };
  struct Opened {
    Stage stage;
    int code;  // NVML's code, for init and count; errno for no_thread
  };
  // Loads and initialises NVML; `path` empty = the usual places. Fails again and again until it succeeds once; later
  // calls do nothing. Blocks for as long as nvmlInit does, at most 3 s: a later call goes on waiting for it.
  Opened open(const std::string& path);

  const Library& library() const { return library_; }
  const std::string& version() const { return version_; }

  // Asks about every GPU, or about those with the given indices, which are about to be claimed or are claimed; the
  // samples of the others stay. A GPU for which the driver doesn't answer within the timeout is reported as not
  // responding and left alone until its call returns. False when a handled signal ended the wait (main thread only).
  bool take_snapshot(std::vector<Sample>& samples, const std::vector<uint32_t>* only, bool on_main_thread);

  // How the GPUs are connected that a snapshot has seen. False: the driver doesn't answer, or a handled signal ended
  // the wait (main thread only).
  bool read_topology(Topology& topology, bool on_main_thread);

  // Whether an abandoned call hasn't returned. If it is stuck in the kernel, this process can neither end nor become
  // another program, and what it has open stays open.
  bool has_call_out();

  struct Description {
    std::string uuid, name, pci_bus_id;
    int persistence = -1;  // as in Gpu
  };
  // Per GPU, learnt when it was attached; empty before.
  const std::vector<Description>& descriptions() const { return descriptions_; }
  // Changes with them.
  uint32_t described() const { return described_; }

  // One snapshot at a time.
  std::timed_mutex& mutex() { return mutex_; }

 private:
  struct Job;
  struct StartJob;
  struct SnapshotJob;
  struct TopologyJob;
  struct Worker;
  enum class Wait { done, stalled, interrupted };

  // A GPU for which a call hasn't returned.
  struct Stuck {
    std::shared_ptr<SnapshotJob> job;
    uint32_t step = 0;
  };

  static void* serve(void* worker);
  static void* help(void* job);
  template <typename Shared>
  static int start_thread_with(void* (*run)(void*), const std::shared_ptr<Shared>& shared);
  static void add_helpers(const std::shared_ptr<Job>& job);
  static Wait wait_for(const std::shared_ptr<Job>& job, bool on_main_thread, int64_t timeout);
  int hand_to_worker(const std::shared_ptr<Job>& job);
  void leave_worker();
  bool finish(const std::shared_ptr<SnapshotJob>& job, std::vector<Sample>& samples, bool on_main_thread);
  void collect(const std::shared_ptr<SnapshotJob>& job, std::vector<Sample>& samples);
  bool is_stuck(uint32_t gpu);

  std::timed_mutex mutex_;
  Library library_;
  std::string version_;
  bool ready_ = false;
  std::shared_ptr<Worker> worker_;
  std::vector<std::unique_ptr<Gpu>> gpus_;
  std::vector<Stuck> stuck_;  // per GPU
  std::vector<Description> descriptions_;
  uint32_t described_ = 0;
  std::shared_ptr<StartJob> starting_;       // nvmlInit under way
  std::shared_ptr<SnapshotJob> unfinished_;  // from a wait that ended early
  std::shared_ptr<TopologyJob> asking_;      // the last question about connections, if it wasn't answered in time
};

}  // namespace gpu_owner::nvml
