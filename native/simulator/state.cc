#include "simulator/state.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "simulator/machine_file.h"

namespace simulator {
namespace {

bool fillState(int file, const void* argument, Error* error) {
  const auto& description = *static_cast<const MachineDescription*>(argument);
  const size_t size = stateSize(description.gpuCount);
  // Real blocks, so that a full disk is an error now and not a SIGBUS later.
  int result = posix_fallocate(file, 0, static_cast<off_t>(size));
  if (result == EOPNOTSUPP || result == EINVAL) result = ftruncate(file, static_cast<off_t>(size)) == 0 ? 0 : errno;
  if (result != 0)
    return error->set(
        "cannot write the state of the simulated machine: %s; make room, or choose another directory "
        "with GPU_OWNER_SIMULATE_DIR",
        strerror(result));
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return error->set("cannot map the state of the simulated machine: %s", strerror(errno));
  auto* header = static_cast<Header*>(memory);
  header->magic = kMagic;
  header->version = kLayoutVersion;
  header->gpuCount = description.gpuCount;
  header->size = size;
  memcpy(header->machine, description.name, sizeof header->machine);
  applyDefaults(description, header, reinterpret_cast<GpuState*>(header + 1));
  munmap(memory, size);
  return true;
}

bool fillNothing(int, const void*, Error*) { return true; }

int openOrMake(int directory, const char* path, const char* name, bool (*fill)(int, const void*, Error*),
               const void* argument, Error* error) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    const int fd = openSharedFile(directory, path, name, error);
    if (fd != -1) return fd;
    if (makeSharedFile(directory, path, name, fill, argument, error) == Made::Failed) return -2;
  }
  error->set("%s/%s comes and goes: is somebody removing it?", path, name);
  return -2;
}

bool mapState(int file, Machine* machine, Error* error) {
  const size_t size = stateSize(machine->gpuCount);
  FileFacts facts;
  if (!factsOf(file, &facts)) return error->set("cannot examine %s/state: %s", machine->directory, strerror(errno));
  constexpr const char* kRemedy = "remove that directory when nothing uses it";
  if (facts.size < sizeof(Header))
    return error->set("%s/state is damaged (%llu bytes): %s", machine->directory,
                      static_cast<unsigned long long>(facts.size), kRemedy);
  void* memory = mmap(nullptr, facts.size == size ? size : sizeof(Header), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return error->set("cannot map %s/state: %s", machine->directory, strerror(errno));
  auto* header = static_cast<Header*>(memory);
  bool good = false;
  if (header->magic != kMagic)
    error->set("%s/state is not the state of a simulated machine: %s", machine->directory, kRemedy);
  else if (header->version != kLayoutVersion)
    error->set("%s/state is of version %u, this is version %u: %s", machine->directory, header->version, kLayoutVersion,
               kRemedy);
  else if (strncmp(header->machine, machine->description.name, sizeof header->machine) != 0)
    error->set("%s/state is that of another machine: %s", machine->directory, kRemedy);
  else if (header->gpuCount != machine->gpuCount || header->size != size || facts.size != size)
    error->set("%s/state is damaged (%llu bytes instead of %zu): %s", machine->directory,
               static_cast<unsigned long long>(facts.size), size, kRemedy);
  else
    good = true;
  if (!good) {
    munmap(memory, facts.size == size ? size : sizeof(Header));
    return false;
  }
  machine->header = header;
  machine->gpus = reinterpret_cast<GpuState*>(header + 1);
  machine->slots = reinterpret_cast<char*>(machine->gpus + machine->gpuCount);
  return true;
}

// Locks on another file than the one that everybody else looks at would mean nothing.
bool checkSlots(Machine* machine, Error* error) {
  FileFacts facts;
  if (!factsOf(machine->slotsFile, &facts))
    return error->set("cannot examine %s/slots: %s", machine->directory, strerror(errno));
  uint64_t known = 0;
  if (!machine->header->slotsInode.compare_exchange_strong(known, facts.inode) && known != facts.inode)
    return error->set("%s/slots was replaced: remove that directory when nothing uses it", machine->directory);
  machine->slotsInode = facts.inode;
  return true;
}

bool openFiles(int directory, Machine* machine, Error* error) {
  const int state = openOrMake(directory, machine->directory, "state", fillState, &machine->description, error);
  if (state < 0) return false;
  const bool mapped = mapState(state, machine, error);
  close(state);
  if (!mapped) return false;
  machine->slotsFile = openOrMake(directory, machine->directory, "slots", fillNothing, nullptr, error);
  if (machine->slotsFile >= 0 && checkSlots(machine, error)) return true;
  detach(machine);
  return false;
}

}  // namespace

bool describe(MachineDescription* out, Error* error) {
  char names[512];
  const char* name = getenv("GPU_OWNER_SIMULATE");
  if (name && isMachineFile(name)) return describeMachineFile(name, out, error);
  if (name && *name && describeMachine(name, out)) return true;
  listMachineNames(names, sizeof names);
  if (!name || !*name)
    return error->set("GPU_OWNER_SIMULATE is not set: say how many GPUs to simulate (1 to %u), or a machine (%s)",
                      kMaxGpus, names);
  // The value ends up on a terminal.
  char shown[80];
  size_t length = 0;
  for (const char* c = name; *c && length < sizeof shown - 1; ++c) shown[length++] = *c >= ' ' && *c < 127 ? *c : '?';
  shown[length] = 0;
  return error->set(
      "GPU_OWNER_SIMULATE=%s is not a machine: use a number of GPUs (1 to %u), one of %s, or the path of a file that "
      "describes a machine",
      shown, kMaxGpus, names);
}

bool attach(Machine* machine, Error* error) {
  machine->header = nullptr;
  machine->slotsFile = -1;
  if (!describe(&machine->description, error)) return false;
  machine->gpuCount = machine->description.gpuCount;
  char base[kPathSize];
  bool isDefault;
  if (!baseDirectory(base, &isDefault, error)) return false;
  const int baseDescriptor = openSharedDirectory(base, !isDefault, error);
  if (baseDescriptor < 0) return false;
  close(baseDescriptor);
  const int length = snprintf(machine->directory, sizeof machine->directory, "%s/%s", base, machine->description.name);
  if (length < 0 || static_cast<size_t>(length) >= sizeof machine->directory) return error->set("path too long");
  const int directory = openSharedDirectory(machine->directory, false, error);
  if (directory < 0) return false;
  const bool opened = openFiles(directory, machine, error);
  close(directory);
  return opened;
}

void detach(Machine* machine) {
  if (machine->header) munmap(machine->header, stateSize(machine->gpuCount));
  if (machine->slotsFile >= 0) close(machine->slotsFile);
  machine->header = nullptr;
  machine->slotsFile = -1;
}

int reopenSlots(const Machine& machine) {
  // By what is open already: the path may mean something else by now, or nothing.
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", machine.slotsFile);
  const int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return -1;
  FileFacts facts;
  if (factsOf(fd, &facts) && facts.regular && facts.inode == machine.slotsInode) return fd;
  close(fd);
  errno = EBADF;
  return -1;
}

void applyDefaults(const MachineDescription& description, Header* header, GpuState* gpus) {
  const auto clear = [](Faults& faults) {
    faults.hang = 0;
    for (auto& latency : faults.latencyUs) latency = 0;
    for (auto& error : faults.error) error = 0;
  };
  clear(header->faults);
  header->teardownMs = 0;
  header->pidOffset = 0;
  header->quirks = 0;
  header->calls.on = 0;
  for (uint32_t i = 0; i < description.gpuCount; ++i) {
    const Gpu& gpu = description.gpus[i];
    GpuState& state = gpus[i];
    clear(state.faults);
    state.health = 0;
    state.computeMode = gpu.computeMode;
    state.mig = gpu.mig;
    state.absentInstances = 0;
    state.display = gpu.display;
    state.hiddenProcesses = 0;
    state.hiddenMemory = 0;
    state.utilization = state.powerMw = state.temperature = kFollows;
    constexpr uint32_t kNotSupported = 3;
    const auto unsupported = [&](Call call) { state.faults.error[static_cast<unsigned>(call)] = kNotSupported; };
    for (unsigned call = 0; call < kCalls; ++call)
      if (gpu.unsupported & callBit(call)) state.faults.error[call] = kNotSupported;
    if (gpu.model->noPowerSensor) {
      unsupported(Call::Power);
      unsupported(Call::Energy);
    }
    if (description.integrated) {
      for (const Call call :
           {Call::Memory, Call::Processes, Call::GraphicsProcesses, Call::MpsProcesses, Call::PowerLimit, Call::Energy,
            Call::ComputeMode, Call::Display, Call::Topology, Call::Board, Call::Clocks, Call::Pcie, Call::Nvlink,
            Call::Fan, Call::Ecc, Call::Codec, Call::Bar1, Call::Events})
        unsupported(call);
    }
    if (description.wsl) {
      unsupported(Call::Processes);
      unsupported(Call::GraphicsProcesses);
      unsupported(Call::MpsProcesses);
      unsupported(Call::ProcessMemory);
      unsupported(Call::Utilization);
      unsupported(Call::Topology);
    }
  }
}

}  // namespace simulator
