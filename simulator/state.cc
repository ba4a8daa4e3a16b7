#include "simulator/state.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "process/unique_fd.h"
#include "simulator/machine_file.h"

namespace simulator {

using gpu_owner::process::UniqueFd;

namespace {

bool fill_state(int file, const void* argument, Error* error) {
  const auto& description = *static_cast<const MachineDescription*>(argument);
  const size_t size = state_size(description.gpu_count);
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
  header->gpu_count = description.gpu_count;
  header->size = size;
  memcpy(header->machine, description.name, sizeof header->machine);
  apply_defaults(description, header, reinterpret_cast<GpuState*>(header + 1));
  munmap(memory, size);
  return true;
}

bool fill_nothing(int, const void*, Error*) { return true; }

int open_or_make(int directory, const char* path, const char* name, bool (*fill)(int, const void*, Error*),
                 const void* argument, Error* error) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    const int fd = open_shared_file(directory, path, name, error);
    if (fd != -1) return fd;
    if (make_shared_file(directory, path, name, fill, argument, error) == Made::failed) return -2;
  }
  error->set("%s/%s comes and goes: is somebody removing it?", path, name);
  return -2;
}

bool map_state(int file, Machine* machine, Error* error) {
  const size_t size = state_size(machine->gpu_count);
  FileFacts facts;
  if (!facts_of(file, &facts)) return error->set("cannot examine %s/state: %s", machine->directory, strerror(errno));
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
  else if (header->gpu_count != machine->gpu_count || header->size != size || facts.size != size)
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
  machine->slots = reinterpret_cast<char*>(machine->gpus + machine->gpu_count);
  return true;
}

// Locks on another file than the one that everybody else looks at would mean nothing.
bool check_slots(Machine* machine, Error* error) {
  FileFacts facts;
  if (!facts_of(machine->slots_file, &facts))
    return error->set("cannot examine %s/slots: %s", machine->directory, strerror(errno));
  uint64_t known = 0;
  if (!machine->header->slots_inode.compare_exchange_strong(known, facts.inode) && known != facts.inode)
    return error->set("%s/slots was replaced: remove that directory when nothing uses it", machine->directory);
  machine->slots_inode = facts.inode;
  return true;
}

bool open_files(int directory, Machine* machine, Error* error) {
  const UniqueFd state(open_or_make(directory, machine->directory, "state", fill_state, &machine->description, error));
  if (!state || !map_state(state.get(), machine, error)) return false;
  machine->slots_file = open_or_make(directory, machine->directory, "slots", fill_nothing, nullptr, error);
  if (machine->slots_file >= 0 && check_slots(machine, error)) return true;
  detach(machine);
  return false;
}

}  // namespace

bool describe(MachineDescription* out, Error* error) {
  char names[512];
  const char* name = getenv("GPU_OWNER_SIMULATE");
  if (name && is_machine_file(name)) return describe_machine_file(name, out, error);
  if (name && *name && describe_machine(name, out)) return true;
  list_machine_names(names, sizeof names);
  if (!name || !*name)
    return error->set("GPU_OWNER_SIMULATE is not set: say how many GPUs to simulate (1 to %u), or a machine (%s)",
                      kMaxGpus, names);
  // The value ends up on a terminal.
  char shown[80];
  size_t length = 0;
  for (const char* c = name; *c && length < sizeof shown - 1; ++c) shown[length++] = *c >= ' ' && *c < 127 ? *c : '?';
  shown[length] = 0;
  return error->set(
      "there is no machine %s: use a number of GPUs (1 to %u), one of %s, or the path of a file that "
      "describes a machine",
      shown, kMaxGpus, names);
}

bool attach(Machine* machine, Error* error) {
  machine->header = nullptr;
  machine->slots_file = -1;
  if (!describe(&machine->description, error)) return false;
  machine->gpu_count = machine->description.gpu_count;
  char base[kPathSize];
  bool is_default;
  if (!base_directory(base, &is_default, error)) return false;
  if (!UniqueFd(open_shared_directory(base, !is_default, error))) return false;
  const int length = snprintf(machine->directory, sizeof machine->directory, "%s/%s", base, machine->description.name);
  if (length < 0 || static_cast<size_t>(length) >= sizeof machine->directory) return error->set("path too long");
  const UniqueFd directory(open_shared_directory(machine->directory, false, error));
  return directory && open_files(directory.get(), machine, error);
}

void detach(Machine* machine) {
  if (machine->header) munmap(machine->header, state_size(machine->gpu_count));
  if (machine->slots_file >= 0) close(machine->slots_file);
  machine->header = nullptr;
  machine->slots_file = -1;
}

int reopen_slots(const Machine& machine) {
  // By what is open already: the path may mean something else by now, or nothing.
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", machine.slots_file);
  UniqueFd file(open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!file) return -1;
  FileFacts facts;
  if (facts_of(file.get(), &facts) && facts.regular && facts.inode == machine.slots_inode) return file.release();
  errno = EBADF;
  return -1;
}

void apply_defaults(const MachineDescription& description, Header* header, GpuState* gpus) {
  const auto clear = [](Faults& faults) {
    faults.hang = 0;
    for (auto& latency : faults.latency_us) latency = 0;
    for (auto& error : faults.error) error = 0;
  };
  clear(header->faults);
  header->teardown_ms = 0;
  header->pid_offset = 0;
  header->quirks = 0;
  header->calls.on = 0;
  for (uint32_t i = 0; i < description.gpu_count; ++i) {
    const Gpu& gpu = description.gpus[i];
    GpuState& state = gpus[i];
    clear(state.faults);
    state.health = 0;
    state.compute_mode = gpu.compute_mode;
    state.mig = gpu.mig;
    state.absent_instances = 0;
    state.display = gpu.display;
    state.hidden_processes = 0;
    state.ecc_errors = 0;
    state.memory_repair = kNoRepair;
    state.hidden_memory = 0;
    state.utilization = state.power_mw = state.temperature = kFollows;
    constexpr uint32_t kNotSupported = 3;
    const auto unsupported = [&](Call call) { state.faults.error[static_cast<unsigned>(call)] = kNotSupported; };
    for (unsigned call = 0; call < kCalls; ++call)
      if (gpu.unsupported & call_bit(call)) state.faults.error[call] = kNotSupported;
    if (gpu.model->no_power_sensor) {
      unsupported(Call::power);
      unsupported(Call::energy);
    }
    if (description.integrated) {
      for (const Call call :
           {Call::memory, Call::processes, Call::graphics_processes, Call::mps_processes, Call::power_limit,
            Call::energy, Call::compute_mode, Call::display, Call::topology, Call::board, Call::clocks, Call::pcie,
            Call::nvlink, Call::fan, Call::ecc, Call::codec, Call::bar1, Call::events})
        unsupported(call);
    }
    if (description.wsl) {
      unsupported(Call::processes);
      unsupported(Call::graphics_processes);
      unsupported(Call::mps_processes);
      unsupported(Call::process_memory);
      unsupported(Call::utilization);
      unsupported(Call::topology);
    }
  }
}

}  // namespace simulator
