// How the GPUs of a machine are connected, and which processors and memory are near them. None of it changes while the
// driver runs.
#pragma once

#include <cstdint>
#include <vector>

#include "nvml/library.h"

namespace gpu_owner::nvml {

constexpr int32_t kUnknownLink = -1;

// Between two GPUs.
struct Connection {
  int32_t level = kUnknownLink;  // nvmlGpuTopologyLevel_t: 0 one board, 10 one PCIe switch, … 50 across processors
  int32_t nvlinks = kUnknownLink;
  bool by_switch = false;  // the NVLinks lead to NVSwitches
};

struct Topology {
  struct Place {
    std::vector<uint32_t> cpus, nodes;  // near the GPU, ascending; empty where the driver doesn't tell
    int32_t active_links = kUnknownLink;
    int32_t inactive_links = kUnknownLink;
  };
  std::vector<Place> places;            // per GPU
  std::vector<Connection> connections;  // [first * number of GPUs + second], the same in both directions

  Connection& between(size_t first, size_t second) { return connections[first * places.size() + second]; }
};

// Blocks for as long as the driver pleases. A null handle stands for a GPU that isn't asked about.
Topology read_topology(const Library& library, const std::vector<Device>& devices);

}  // namespace gpu_owner::nvml
