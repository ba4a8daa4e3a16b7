// Questions of the self-test to the driver: how it serves several threads, and another user of NVML in the same
// process.
#pragma once

#include <string>
#include <vector>

#include "nvml/library.h"

namespace gpu_owner::nvml {

// How long one snapshot of a GPU (its memory and its processes) takes, in microseconds; lower quartiles.
struct SnapshotTimes {
  Code code = SUCCESS;
  std::vector<double> alone;  // for each GPU, while no other is read
  double together = 0;        // for all GPUs, while threads read them at once
};
SnapshotTimes measure_snapshots(const Library& library, const std::vector<std::string>& uuids, int milliseconds);

// Opens NVML once more, as another part of this process would, and takes a snapshot of a GPU, again and again: opened,
// read, closed. Meanwhile `library` is used from another thread, which is to notice nothing of it.
struct SecondUserResult {
  Code other = SUCCESS;  // the first code that isn't success, of the user that comes and goes
  Code ours = SUCCESS;
  bool same_memory = true;  // whether both read the same total, if any
};
SecondUserResult use_beside(const Library& library, const std::string& path, const std::string& uuid, int rounds);

}  // namespace gpu_owner::nvml
