// The kinds of driver calls that faults and latencies are switched by, and their names in the tool.
#pragma once
#include <cstdint>

namespace simulator {

#define SIMULATOR_CALLS(X)                   \
  X(Init, "init")                            \
  X(Count, "count")                          \
  X(Handle, "handle")                        \
  X(Attach, "attach")                        \
  X(Index, "index")                          \
  X(Name, "name")                            \
  X(Uuid, "uuid")                            \
  X(Pci, "pci")                              \
  X(Minor, "minor")                          \
  X(Memory, "memory")                        \
  X(Power, "power")                          \
  X(PowerLimit, "power-limit")               \
  X(Energy, "energy")                        \
  X(Utilization, "utilization")              \
  X(Temperature, "temperature")              \
  X(ComputeMode, "compute-mode")             \
  X(Display, "display")                      \
  X(Persistence, "persistence")              \
  X(Mig, "mig")                              \
  X(Processes, "processes")                  \
  X(GraphicsProcesses, "graphics-processes") \
  X(MpsProcesses, "mps-processes")           \
  X(ProcessMemory, "process-memory")         \
  X(Fields, "fields")                        \
  X(Topology, "topology")                    \
  X(Attributes, "attributes")                \
  X(Board, "board")                          \
  X(Clocks, "clocks")                        \
  X(Pcie, "pcie")                            \
  X(Nvlink, "nvlink")                        \
  X(Fan, "fan")                              \
  X(Ecc, "ecc")                              \
  X(Codec, "codec")                          \
  X(Bar1, "bar1")                            \
  X(Events, "events")                        \
  X(CudaInit, "cuda-init")                   \
  X(CudaContext, "cuda-context")             \
  X(CudaAlloc, "cuda-alloc")                 \
  X(CudaFree, "cuda-free")

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
