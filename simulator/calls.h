// The kinds of driver calls that faults and latencies are switched by, and their names in the tool.
#pragma once
#include <cstdint>

namespace simulator {

#define SIMULATOR_CALLS(X)                    \
  X(init, "init")                             \
  X(count, "count")                           \
  X(handle, "handle")                         \
  X(attach, "attach")                         \
  X(index, "index")                           \
  X(name, "name")                             \
  X(uuid, "uuid")                             \
  X(pci, "pci")                               \
  X(minor, "minor")                           \
  X(memory, "memory")                         \
  X(power, "power")                           \
  X(power_limit, "power-limit")               \
  X(energy, "energy")                         \
  X(utilization, "utilization")               \
  X(temperature, "temperature")               \
  X(compute_mode, "compute-mode")             \
  X(display, "display")                       \
  X(persistence, "persistence")               \
  X(mig, "mig")                               \
  X(processes, "processes")                   \
  X(graphics_processes, "graphics-processes") \
  X(mps_processes, "mps-processes")           \
  X(process_memory, "process-memory")         \
  X(fields, "fields")                         \
  X(topology, "topology")                     \
  X(attributes, "attributes")                 \
  X(board, "board")                           \
  X(clocks, "clocks")                         \
  X(pcie, "pcie")                             \
  X(nvlink, "nvlink")                         \
  X(fan, "fan")                               \
  X(ecc, "ecc")                               \
  X(codec, "codec")                           \
  X(bar1, "bar1")                             \
  X(events, "events")                         \
  X(cuda_init, "cuda-init")                   \
  X(cuda_context, "cuda-context")             \
  X(cuda_alloc, "cuda-alloc")                 \
  X(cuda_free, "cuda-free")

enum class Call : unsigned {
#define X(id, name) id,
  SIMULATOR_CALLS(X)
#undef X
};

constexpr const char* kCallNames[] = {
#define X(id, name) name,
    SIMULATOR_CALLS(X)
#undef X
};

constexpr unsigned kCalls = sizeof(kCallNames) / sizeof(kCallNames[0]);
constexpr uint64_t call_bit(unsigned call) { return uint64_t{1} << call; }

}  // namespace simulator
