#include "simulator/machines.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace simulator {
namespace {

//                              name                          MiB     rsvd  cc  SMs  limit   idle   C   speed device
constexpr Model kSimulated = {
    "Simulated GPU", 81920, 512, 90, 132, 700000, 60000, 30, 500, 0x000010de, {"1g.10gb", "2g.20gb", "3g.40gb"}, false};
constexpr Model kH200 = {
    "NVIDIA H200", 143771, 614, 90, 132, 700000, 76000, 29, 900, 0x233510de, {"1g.18gb", "2g.35gb", "3g.71gb"}, false};
constexpr Model kA100 = {"NVIDIA A100-SXM4-80GB",           81920, 631, 80, 108, 400000, 58000, 31, 600, 0x20b210de,
                         {"1g.10gb", "2g.20gb", "3g.40gb"}, false};
constexpr Model kA100Pcie = {"NVIDIA A100 80GB PCIe",           81920, 631, 80, 108, 300000, 45000, 34, 600, 0x20b510de,
                             {"1g.10gb", "2g.20gb", "3g.40gb"}, false};
constexpr Model kRtx4090 = {"NVIDIA GeForce RTX 4090",   24564, 366, 89, 128, 450000, 21000, 35, 800, 0x268410de,
                            {nullptr, nullptr, nullptr}, false};
constexpr Model kRtx4080 = {"NVIDIA GeForce RTX 4080",   16376, 302, 89, 76, 320000, 14000, 38, 700, 0x270410de,
                            {nullptr, nullptr, nullptr}, false};
constexpr Model kRtxA4000 = {"NVIDIA RTX A4000",          16376, 254, 86, 48, 140000, 15000, 41, 400, 0x24b010de,
                             {nullptr, nullptr, nullptr}, false};
constexpr Model kT400 = {"NVIDIA T400 4GB",           4096, 150, 75, 6, 31000, 0, 45, 100, 0x1ff210de,
                         {nullptr, nullptr, nullptr}, true};
constexpr Model kOrin = {
    "Orin (nvgpu)", 30698, 0, 87, 16, 60000, 5000, 45, 120, 0x000010de, {nullptr, nullptr, nullptr}, true};
// Drivers before R510 counted no reserved memory.
constexpr Model kV100 = {"Tesla V100-SXM2-32GB",      32510, 0, 70, 80, 300000, 41000, 33, 450, 0x1db510de,
                         {nullptr, nullptr, nullptr}, false};
constexpr Model kK80 = {"Tesla K80", 11441, 0, 37, 13, 149000, 27000, 36, 50, 0x102d10de, {nullptr, nullptr, nullptr},
                        false};

constexpr uint8_t kServerBuses[] = {0x19, 0x3b, 0x4c, 0x5d, 0x9b, 0xbb, 0xcb, 0xdb};

// Beyond any kernel's largest pid, so that it is never a real process of the machine this runs on.
constexpr uint32_t kFirstMadeUpPid = 4194400;

uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

uint64_t hashOf(const char* text) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325;
  for (; *text; ++text) hash = (hash ^ static_cast<unsigned char>(*text)) * 0x100000001b3;
  return hash;
}

void makeUuid(char (&out)[48], const char* prefix, uint64_t seed) {
  const uint64_t a = mix(seed), b = mix(seed + 0x5851f42d4c957f2d);
  snprintf(out, sizeof out, "%s-%08x-%04x-4%03x-%04x-%012llx", prefix, static_cast<unsigned>(a >> 32),
           static_cast<unsigned>(a >> 16 & 0xffff), static_cast<unsigned>(a & 0xfff),
           static_cast<unsigned>(0x8000 | (b >> 48 & 0x3fff)), static_cast<unsigned long long>(b & 0xffffffffffff));
}

enum class Layout { Mixed, Sevenths };

// Instance ids as drivers give them out: by profile and placement, with gaps.
void addInstances(MachineDescription* machine, uint32_t index, Layout layout) {
  Gpu& gpu = machine->gpus[index];
  for (MigInstance& instance : gpu.instances) instance.present = false;
  if (!gpu.canMig()) return;
  const auto add = [&](uint32_t at, uint32_t slices, uint32_t gpuInstanceId) {
    MigInstance& instance = gpu.instances[at];
    instance.present = true;
    instance.slices = slices;
    instance.profile = gpu.model->migProfiles[slices - 1];
    instance.gpuInstanceId = gpuInstanceId;
    instance.computeInstanceId = 0;
    instance.memory = gpu.total() / 8 * (slices == 3 ? 4 : slices);
    makeUuid(instance.uuid, "MIG", mix(hashOf(machine->name) + index) + at);
  };
  if (layout == Layout::Sevenths) {
    for (uint32_t i = 0; i < kUnits - 1; ++i) add(i, 1, 7 + i);
    return;
  }
  add(0, 3, 2);
  add(2, 2, 3);  // slot 1 is empty: callers have to go on after NOT_FOUND
  add(3, 1, 9);
  add(4, 1, 10);
}

Gpu& addGpu(MachineDescription* machine, const Model& model, uint32_t bus) {
  const uint32_t index = machine->gpuCount++;
  Gpu& gpu = machine->gpus[index];
  gpu.model = &model;
  gpu.bus = bus;
  gpu.baseUsed = 4 * kMiB;
  makeUuid(gpu.uuid, "GPU", hashOf(machine->name) + index);
  addInstances(machine, index, Layout::Mixed);
  gpu.graphics[gpu.graphicsCount++] = {"/usr/lib/xorg/Xorg", kFirstMadeUpPid, 110};
  return gpu;
}

void addServer(MachineDescription* machine, const Model& model, uint32_t count) {
  // Numbered in the order of the bus; of sixteen, two sit close together each time.
  const uint32_t together = (count + 7) / 8;
  for (uint32_t i = 0; i < count; ++i)
    addGpu(machine, model, kServerBuses[i / together] + i % together * 2).numaNode = i < (count + 1) / 2 ? 0 : 1;
}

void addDesktop(Gpu& gpu, uint32_t xorg, uint32_t shell, const char* application, uint32_t memoryMiB) {
  gpu.display = true;
  gpu.baseUsed = 12 * kMiB;
  gpu.graphicsCount = 0;
  gpu.graphics[gpu.graphicsCount++] = {"/usr/lib/xorg/Xorg", kFirstMadeUpPid, xorg};
  gpu.graphics[gpu.graphicsCount++] = {"/usr/bin/gnome-shell", kFirstMadeUpPid + 1, shell};
  gpu.graphics[gpu.graphicsCount++] = {application, kFirstMadeUpPid + 2, memoryMiB};
}

void driver(MachineDescription* machine, const char* version, const char* nvml, int cuda, Symbols symbols) {
  machine->driverVersion = version;
  machine->nvmlVersion = nvml;
  machine->cudaVersion = cuda;
  machine->symbols = symbols;
}

bool describePlain(const char* name, MachineDescription* machine) {
  const size_t length = strlen(name);
  if (length < 1 || length > 2 || name[0] < '1' || strspn(name, "0123456789") != length) return false;
  const uint32_t count = static_cast<uint32_t>(atoi(name));
  if (count > kMaxGpus) return false;
  for (uint32_t i = 0; i < count; ++i) {
    Gpu& gpu = addGpu(machine, kSimulated, i + 1);
    gpu.baseUsed = 0;
    gpu.numaNode = i < (count + 1) / 2 ? 0 : 1;
    snprintf(gpu.uuid, sizeof gpu.uuid, "GPU-00000000-0000-4000-8000-%012x", i);
  }
  return true;
}

bool describeNamed(const char* name, MachineDescription* machine) {
  const auto is = [&](const char* other) { return strcmp(name, other) == 0; };
  if (is("h200x8")) {
    driver(machine, "570.124.06", "12.570.124.06", 12080, Symbols::Current);
    addServer(machine, kH200, 8);
  } else if (is("h200x16")) {
    driver(machine, "570.124.06", "12.570.124.06", 12080, Symbols::Current);
    addServer(machine, kH200, 16);
  } else if (is("a100x4-mig")) {
    addServer(machine, kA100, 4);
    machine->gpus[0].mig = machine->gpus[1].mig = true;
    addInstances(machine, 1, Layout::Sevenths);
  } else if (is("rtx4090x2-display")) {
    addDesktop(addGpu(machine, kRtx4090, 0x01), 182, 64, "/usr/lib/firefox/firefox", 211);
    Gpu& second = addGpu(machine, kRtx4090, 0x41);
    second.graphics[0].memoryMiB = 4;
    second.graphicsAlways = true;
    machine->persistence = false;
  } else if (is("workstation")) {
    addDesktop(addGpu(machine, kRtxA4000, 0x65), 354, 118, "/opt/google/chrome/chrome", 240);
    machine->persistence = false;
  } else if (is("old-driver")) {
    driver(machine, "470.256.02", "11.470.256.02", 11040, Symbols::Old);
    addServer(machine, kV100, 4);
  } else if (is("oldest-driver")) {
    driver(machine, "440.118.02", "10.440.118.02", 10020, Symbols::Oldest);
    addServer(machine, kK80, 2);
  } else if (is("early-r535")) {
    driver(machine, "535.54.03", "12.535.54.03", 12020, Symbols::EarlyR535);
    addServer(machine, kA100, 4);
  } else if (is("mixed")) {
    addGpu(machine, kT400, 0x17);
    addGpu(machine, kRtx4090, 0x65);
    addGpu(machine, kA100Pcie, 0xb3).numaNode = 1;
  } else if (is("wsl")) {
    driver(machine, "576.02", "12.576.02", 12090, Symbols::Current);
    machine->wsl = true;
    machine->persistence = false;
    Gpu& gpu = addGpu(machine, kRtx4080, 0x01);
    gpu.baseUsed = 1126 * kMiB;  // Windows' desktop and a browser, which nobody in here sees
    gpu.display = true;
    gpu.graphicsCount = 0;
  } else if (is("jetson")) {
    driver(machine, "540.4.0", "12.540.4.0", 12060, Symbols::Current);
    machine->integrated = true;
    addGpu(machine, kOrin, 0x00).graphicsCount = 0;
  } else {
    return false;
  }
  return true;
}

}  // namespace

const NamedMachine kNamedMachines[] = {
    {"h200x8", "eight H200, two NUMA nodes"},
    {"h200x16", "sixteen H200, two NUMA nodes"},
    {"a100x4-mig", "four A100; 0 and 1 with MIG on (four and seven instances), 2 and 3 whole"},
    {"rtx4090x2-display", "two RTX 4090; 0 drives the desktop, Xorg has opened both"},
    {"workstation", "one RTX A4000 that drives the desktop"},
    {"mixed", "a T400, an RTX 4090 and an A100: CUDA's order (fastest first) is not PCI's"},
    {"old-driver", "four V100 under driver 470: _v2 process lists, no reserved memory"},
    {"oldest-driver", "two K80 under driver 440: functions without suffix only"},
    {"early-r535", "four A100 under driver 535.54, whose process lists have 32-byte entries"},
    {"wsl", "one RTX 4080 under WSL 2, Windows' desktop on it: no processes, no utilization"},
    {"jetson", "a Jetson Orin: neither memory nor processes nor power, utilization is always 0"},
};
const size_t kNamedMachineCount = sizeof(kNamedMachines) / sizeof(kNamedMachines[0]);

bool describeMachine(const char* name, MachineDescription* out) {
  memset(static_cast<void*>(out), 0, sizeof *out);
  if (strlen(name) >= sizeof out->name) return false;
  strcpy(out->name, name);
  driver(out, "580.65.06", "13.580.65.06", 13000, Symbols::Current);
  out->persistence = true;
  return describePlain(name, out) || describeNamed(name, out);
}

void listMachineNames(char* out, size_t size) {
  size_t at = 0;
  out[0] = 0;
  for (size_t i = 0; i < kNamedMachineCount && at < size; ++i)
    at += static_cast<size_t>(snprintf(out + at, size - at, "%s%s", i ? ", " : "", kNamedMachines[i].name));
}

const char* graphicsProcessName(const MachineDescription& machine, uint32_t pid) {
  for (uint32_t g = 0; g < machine.gpuCount; ++g)
    for (uint32_t i = 0; i < machine.gpus[g].graphicsCount; ++i)
      if (machine.gpus[g].graphics[i].pid == pid) return machine.gpus[g].graphics[i].name;
  return nullptr;
}

}  // namespace simulator
