#include "simulator/machines.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace simulator {
namespace {

// Each line of a model is one of these:
//   name, brand
//   compute capability, multiprocessors, speed, PCI device id
//   memory (MiB), reserved (bytes), BAR1 (MiB), bits of the memory bus, ECC
//   power: idle, busy, limit, lowest and highest limit (mW), no sensor
//   temperature: idle, busy, slowdown, shutdown; fans, their speed when idle (%)
//   SM clock: idle, busy, highest; memory clock: idle, highest; highest video clock (MHz); performance state when idle
//   PCIe generation and width, NVLinks
//   MIG profiles of one, two and three slices
// The numbers are plausible, not measured.
// clang-format off
constexpr Model kSimulated = {
    "Simulated GPU", Brand::nvidia,
    90, 132, 500, 0x000010de,
    81920, 512 * kMiB, 131072, 5120, Ecc::on,
    60000, 560000, 700000, 200000, 700000, false,
    30, 66, 87, 92, 0, 0,
    345, 1755, 1980, 405, 2619, 1545, 8,
    5, 16, 0,
    {"1g.10gb", "2g.20gb", "3g.40gb"}};
constexpr Model kH200 = {
    "NVIDIA H200", Brand::nvidia,
    90, 132, 900, 0x233510de,
    143771, 614 * kMiB, 262144, 6144, Ecc::on,
    76000, 610000, 700000, 200000, 700000, false,
    29, 64, 87, 92, 0, 0,
    345, 1830, 1980, 3201, 3201, 1545, 0,
    5, 16, 18,
    {"1g.18gb", "2g.35gb", "3g.71gb"}};
constexpr Model kA100 = {
    "NVIDIA A100-SXM4-80GB", Brand::nvidia,
    80, 108, 600, 0x20b210de,
    81920, 631 * kMiB, 131072, 5120, Ecc::on,
    58000, 340000, 400000, 100000, 400000, false,
    31, 62, 89, 92, 0, 0,
    210, 1410, 1410, 1593, 1593, 1290, 0,
    4, 16, 12,
    {"1g.10gb", "2g.20gb", "3g.40gb"}};
constexpr Model kA100Pcie = {
    "NVIDIA A100 80GB PCIe", Brand::nvidia,
    80, 108, 600, 0x20b510de,
    81920, 631 * kMiB, 131072, 5120, Ecc::on,
    45000, 250000, 300000, 150000, 300000, false,
    34, 65, 90, 93, 0, 0,
    210, 1335, 1410, 1512, 1512, 1290, 0,
    4, 16, 0,
    {"1g.10gb", "2g.20gb", "3g.40gb"}};
constexpr Model bridged(Model model, uint32_t nvlinks) {
  model.nvlinks = nvlinks;
  return model;
}
constexpr Model kA100Bridged = bridged(kA100Pcie, 12);
constexpr Model kRtx4090 = {
    "NVIDIA GeForce RTX 4090", Brand::geforce,
    89, 128, 800, 0x268410de,
    24564, 366 * kMiB, 32768, 384, Ecc::none,
    21000, 380000, 450000, 150000, 600000, false,
    35, 67, 90, 100, 2, 0,
    210, 2730, 3105, 405, 10501, 2415, 8,
    4, 16, 0,
    {}};
constexpr Model kRtx4080 = {
    "NVIDIA GeForce RTX 4080", Brand::geforce,
    89, 76, 700, 0x270410de,
    16376, 302 * kMiB, 16384, 256, Ecc::none,
    14000, 260000, 320000, 150000, 400000, false,
    38, 63, 90, 100, 2, 0,
    210, 2775, 3105, 405, 11201, 2415, 8,
    4, 16, 0,
    {}};
constexpr Model kRtxA4000 = {
    "NVIDIA RTX A4000", Brand::nvidia_rtx,
    86, 48, 400, 0x24b010de,
    16376, 254 * kMiB, 256, 256, Ecc::off,
    15000, 132000, 140000, 100000, 140000, false,
    41, 78, 96, 101, 1, 41,
    210, 1710, 2100, 405, 7001, 1950, 8,
    4, 16, 0,
    {}};
constexpr Model kT400 = {
    "NVIDIA T400 4GB", Brand::nvidia,
    75, 6, 100, 0x1ff210de,
    4096, 150 * kMiB, 256, 64, Ecc::none,
    0, 0, 31000, 20000, 31000, true,
    45, 70, 93, 96, 1, 38,
    300, 1425, 2100, 405, 5001, 1950, 8,
    3, 16, 0,
    {}};
constexpr Model kOrin = {
    "Orin (nvgpu)", Brand::unknown,
    87, 16, 120, 0x000010de,
    30698, 0, 0, 0, Ecc::none,
    5000, 40000, 60000, 0, 0, true,
    45, 65, 0, 0, 0, 0,
    306, 1300, 1300, 0, 0, 0, 0,
    0, 0, 0,
    {}};
// Drivers before R510 counted no reserved memory.
constexpr Model kV100 = {
    "Tesla V100-SXM2-32GB", Brand::tesla,
    70, 80, 450, 0x1db510de,
    32510, 0, 32768, 4096, Ecc::on,
    41000, 260000, 300000, 150000, 300000, false,
    33, 63, 87, 90, 0, 0,
    135, 1530, 1530, 877, 877, 1372, 0,
    3, 16, 6,
    {}};
constexpr Model kK80 = {
    "Tesla K80", Brand::tesla,
    37, 13, 50, 0x102d10de,
    11441, 0, 16384, 384, Ecc::on,
    27000, 130000, 149000, 100000, 175000, false,
    36, 70, 88, 93, 0, 0,
    324, 875, 875, 324, 2505, 540, 8,
    3, 16, 0,
    {}};
// clang-format on

constexpr Architecture kArchitectures[] = {
    {37, 2, 192, 0, "80.21"},  // Kepler
    {70, 5, 64, 2, "88.00"},   // Volta
    {75, 6, 64, 0, "90.17"},   // Turing
    {80, 7, 64, 3, "92.00"},   // Ampere
    {86, 7, 128, 0, "94.04"},  // Ampere with a display
    {89, 8, 128, 0, "95.02"},  // Ada
    {90, 9, 128, 4, "96.00"},  // Hopper
};

constexpr uint8_t kServerBuses[] = {0x19, 0x3b, 0x4c, 0x5d, 0x9b, 0xbb, 0xcb, 0xdb};

uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

uint64_t hash_of(const char* text) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325;
  for (; *text; ++text) hash = (hash ^ static_cast<unsigned char>(*text)) * 0x100000001b3;
  return hash;
}

void make_uuid(char (&out)[48], const char* prefix, uint64_t seed) {
  const uint64_t a = mix(seed), b = mix(seed + 0x5851f42d4c957f2d);
  snprintf(out, sizeof out, "%s-%08x-%04x-4%03x-%04x-%012llx", prefix, static_cast<unsigned>(a >> 32),
           static_cast<unsigned>(a >> 16 & 0xffff), static_cast<unsigned>(a & 0xfff),
           static_cast<unsigned>(0x8000 | (b >> 48 & 0x3fff)), static_cast<unsigned long long>(b & 0xffffffffffff));
}

enum class Layout { mixed, sevenths };

// Instance ids as drivers give them out: by profile and placement, with gaps.
void add_instances(MachineDescription* machine, uint32_t index, Layout layout) {
  Gpu& gpu = machine->gpus[index];
  for (MigInstance& instance : gpu.instances) instance.present = false;
  if (!gpu.can_mig()) return;
  const auto add = [&](uint32_t at, uint32_t slices, uint32_t id) { add_instance(machine, index, at, slices, id); };
  if (layout == Layout::sevenths) {
    for (uint32_t i = 0; i < kUnits - 1; ++i) add(i, 1, 7 + i);
    return;
  }
  add(0, 3, 2);
  add(2, 2, 3);  // slot 1 is empty: callers have to go on after NOT_FOUND
  add(3, 1, 9);
  add(4, 1, 10);
}

void add_server(MachineDescription* machine, const Model& model, uint32_t count) {
  // Numbered in the order of the bus; of sixteen, two sit close together each time.
  const uint32_t together = (count + 7) / 8;
  for (uint32_t i = 0; i < count; ++i)
    add_gpu(machine, model, kServerBuses[i / together] + i % together * 2).numa_node = i < (count + 1) / 2 ? 0 : 1;
}

void add_desktop(Gpu& gpu, uint32_t xorg, uint32_t shell, const char* application, uint32_t memory_mib) {
  gpu.display = true;
  gpu.base_used = 12 * kMiB;
  gpu.graphics_count = 0;
  gpu.graphics[gpu.graphics_count++] = {"/usr/lib/xorg/Xorg", kFirstMadeUpPid, xorg};
  gpu.graphics[gpu.graphics_count++] = {"/usr/bin/gnome-shell", kFirstMadeUpPid + 1, shell};
  gpu.graphics[gpu.graphics_count++] = {application, kFirstMadeUpPid + 2, memory_mib};
}

void driver(MachineDescription* machine, const char* version, const char* nvml, int cuda, Symbols symbols) {
  machine->driver_version = version;
  machine->nvml_version = nvml;
  machine->cuda_version = cuda;
  machine->symbols = symbols;
}

bool describe_plain(const char* name, MachineDescription* machine) {
  const size_t length = strlen(name);
  if (length < 1 || length > 2 || name[0] < '1' || strspn(name, "0123456789") != length) return false;
  const uint32_t count = static_cast<uint32_t>(atoi(name));
  if (count > kMaxGpus) return false;
  for (uint32_t i = 0; i < count; ++i) {
    Gpu& gpu = add_gpu(machine, kSimulated, i + 1);
    gpu.base_used = 0;
    gpu.pcie_switch = 0;  // all alike
    snprintf(gpu.uuid, sizeof gpu.uuid, "GPU-00000000-0000-4000-8000-%012x", i);
  }
  return true;
}

bool describe_named(const char* name, MachineDescription* machine) {
  const auto is = [&](const char* other) { return strcmp(name, other) == 0; };
  if (is("h200x8")) {
    driver(machine, "570.124.06", "12.570.124.06", 12080, Symbols::current);
    add_server(machine, kH200, 8);
  } else if (is("h200x16")) {
    driver(machine, "570.124.06", "12.570.124.06", 12080, Symbols::current);
    add_server(machine, kH200, 16);
  } else if (is("a100x4-mig")) {
    add_server(machine, kA100, 4);
    machine->gpus[0].mig = machine->gpus[1].mig = true;
    add_instances(machine, 1, Layout::sevenths);
  } else if (is("a100x4-bridges")) {
    for (uint32_t i = 0; i < 4; ++i) add_gpu(machine, kA100Bridged, kServerBuses[i]);
    for (uint32_t i = 0; i < 2; ++i)
      machine->bridges[machine->bridge_count++] = {i, i + 2, kA100Bridged.nvlinks, false};
  } else if (is("rtx4090x2-display")) {
    add_desktop(add_gpu(machine, kRtx4090, 0x01), 182, 64, "/usr/lib/firefox/firefox", 211);
    Gpu& second = add_gpu(machine, kRtx4090, 0x41);
    second.graphics[0].memory_mib = 4;
    second.graphics_always = true;
    machine->persistence = false;
  } else if (is("workstation")) {
    add_desktop(add_gpu(machine, kRtxA4000, 0x65), 354, 118, "/opt/google/chrome/chrome", 240);
    machine->persistence = false;
  } else if (is("old-driver")) {
    driver(machine, "470.256.02", "11.470.256.02", 11040, Symbols::old);
    add_server(machine, kV100, 4);
  } else if (is("oldest-driver")) {
    driver(machine, "440.118.02", "10.440.118.02", 10020, Symbols::oldest);
    add_server(machine, kK80, 2);
  } else if (is("early-r535")) {
    driver(machine, "535.54.03", "12.535.54.03", 12020, Symbols::early_r535);
    add_server(machine, kA100, 4);
  } else if (is("mixed")) {
    add_gpu(machine, kT400, 0x17);
    add_gpu(machine, kRtx4090, 0x65);
    add_gpu(machine, kA100Pcie, 0xb3).numa_node = 1;
  } else if (is("wsl")) {
    driver(machine, "576.02", "12.576.02", 12090, Symbols::current);
    machine->wsl = true;
    machine->persistence = false;
    Gpu& gpu = add_gpu(machine, kRtx4080, 0x01);
    gpu.base_used = 1126 * kMiB;  // Windows' desktop and a browser, which nobody in here sees
    gpu.display = true;
    gpu.graphics_count = 0;
  } else if (is("jetson")) {
    driver(machine, "540.4.0", "12.540.4.0", 12060, Symbols::current);
    machine->integrated = true;
    add_gpu(machine, kOrin, 0x00).graphics_count = 0;
  } else {
    return false;
  }
  return true;
}

}  // namespace

MigInstance& add_instance(MachineDescription* machine, uint32_t index, uint32_t place, uint32_t slices, uint32_t id) {
  const Gpu& gpu = machine->gpus[index];
  MigInstance& instance = machine->gpus[index].instances[place];
  instance.present = true;
  instance.slices = slices;
  instance.profile = slices <= 3 ? gpu.model->mig_profiles[slices - 1] : "";
  instance.gpu_instance_id = id;
  instance.compute_instance_id = 0;
  instance.memory = gpu.total() / 8 * (slices == 3 || slices == 7 ? slices + 1 : slices);
  make_uuid(instance.uuid, "MIG", mix(hash_of(machine->name) + index) + place);
  return instance;
}

Gpu& add_gpu(MachineDescription* machine, const Model& model, uint32_t bus) {
  const uint32_t index = machine->gpu_count++;
  Gpu& gpu = machine->gpus[index];
  gpu.model = &model;
  gpu.bus = bus;
  gpu.pcie_switch = index / 2;
  gpu.base_used = 4 * kMiB;
  make_uuid(gpu.uuid, "GPU", hash_of(machine->name) + index);
  // Jetsons have UUIDs without a prefix. Their driver is nvgpu, which the GPU's name tells.
  if (strstr(model.name, "(nvgpu)") != nullptr) {
    memmove(gpu.uuid, gpu.uuid + strlen("GPU-"), strlen(gpu.uuid + strlen("GPU-")) + 1);
  }
  add_instances(machine, index, Layout::mixed);
  gpu.graphics[gpu.graphics_count++] = {"/usr/lib/xorg/Xorg", kFirstMadeUpPid, 110};
  return gpu;
}

const NamedMachine kNamedMachines[] = {
    {"h200x8", "eight H200, two NUMA nodes"},
    {"h200x16", "sixteen H200, two NUMA nodes"},
    {"a100x4-mig", "four A100; 0 and 1 with MIG on (four and seven instances), 2 and 3 whole"},
    {"a100x4-bridges", "four A100; NVLink bridges join 0 with 2, and 1 with 3"},
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

const Architecture& architecture_of(const Model& model) {
  const Architecture* found = kArchitectures;
  for (const Architecture& each : kArchitectures)
    if (each.compute_capability <= model.compute_capability) found = &each;
  return *found;
}

NvLink nvlink_of(const MachineDescription& machine, uint32_t gpu, uint32_t link) {
  const uint32_t gpus = machine.gpu_count;
  if (machine.bridge_count == 0) {
    if (gpus >= 8) return {true, true, 0};
    return {true, false, (gpu + 1 + link % (gpus > 1 ? gpus - 1 : 1)) % gpus};
  }
  for (uint32_t i = 0; i < machine.bridge_count; ++i) {
    const Bridge& bridge = machine.bridges[i];
    if (bridge.first != gpu && bridge.second != gpu) continue;
    if (link < bridge.links) return {!bridge.is_down, false, bridge.first == gpu ? bridge.second : bridge.first};
    link -= bridge.links;
  }
  return {false, false, gpu};
}

const Model* find_model(const char* name) {
  for (const Model* model :
       {&kSimulated, &kH200, &kA100, &kA100Pcie, &kRtx4090, &kRtx4080, &kRtxA4000, &kT400, &kOrin, &kV100, &kK80})
    if (strcmp(model->name, name) == 0) return model;
  return nullptr;
}

void begin_machine(const char* name, MachineDescription* out) {
  memset(static_cast<void*>(out), 0, sizeof *out);
  snprintf(out->name, sizeof out->name, "%s", name);
  driver(out, "580.65.06", "13.580.65.06", 13000, Symbols::current);
  out->persistence = true;
}

bool describe_machine(const char* name, MachineDescription* out) {
  begin_machine(name, out);
  return describe_plain(name, out) || describe_named(name, out);
}

void list_machine_names(char* out, size_t size) {
  size_t at = 0;
  out[0] = 0;
  for (size_t i = 0; i < kNamedMachineCount && at < size; ++i)
    at += static_cast<size_t>(snprintf(out + at, size - at, "%s%s", i ? ", " : "", kNamedMachines[i].name));
}

const char* graphics_process_name(const MachineDescription& machine, uint32_t pid) {
  for (uint32_t g = 0; g < machine.gpu_count; ++g)
    for (uint32_t i = 0; i < machine.gpus[g].graphics_count; ++i)
      if (machine.gpus[g].graphics[i].pid == pid) return machine.gpus[g].graphics[i].name;
  return nullptr;
}

}  // namespace simulator
