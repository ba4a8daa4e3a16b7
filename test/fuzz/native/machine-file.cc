// Files that describe machines. Input: the file.
#include "fuzz.h"
#include "simulator/machine_file.h"

namespace {

using namespace simulator;

MachineDescription machine;

bool ends(const char* text, size_t size) { return memchr(text, 0, size) != nullptr; }

void check_gpu(const Gpu& gpu) {
  EXPECT(gpu.total() > gpu.reserved() && gpu.reserved() + gpu.base_used <= gpu.total());
  EXPECT(gpu.total() >> 20 == gpu.model->memory_mib);
  EXPECT(*gpu.model->name && strlen(gpu.model->name) < 64 &&
         fuzz::is_printable(gpu.model->name, strlen(gpu.model->name)));
  // Those of a Jetson have no prefix.
  const bool has_prefix = strstr(gpu.model->name, "(nvgpu)") == nullptr;
  EXPECT(strlen(gpu.uuid) == (has_prefix ? 40 : 36) && gpu.bus < 256 && gpu.slot < 32 && gpu.compute_mode < 4);
  EXPECT(!gpu.mig || gpu.can_mig());
  EXPECT(gpu.graphics_count <= kMaxGraphics);
  for (uint32_t i = 0; i < gpu.graphics_count; i++) EXPECT(*gpu.graphics[i].name);
  for (const MigInstance& instance : gpu.instances) {
    if (!instance.present) continue;
    EXPECT(strlen(instance.uuid) == 40 && ends(instance.uuid, sizeof instance.uuid));
    EXPECT(instance.profile && strlen(instance.profile) < 16 && instance.slices >= 1 && instance.slices <= 7);
    EXPECT(instance.memory <= gpu.total());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Error error = {};
  const auto* text = reinterpret_cast<const char*>(data);
  const bool good = parse_machine_file("./a machine.conf", text, size, &machine, &error);
  EXPECT(ends(error.message, sizeof error.message));
  if (!good) {
    EXPECT(strncmp(error.message, "./a machine.conf:", 17) == 0);
    EXPECT(fuzz::is_printable(error.message, strlen(error.message)));
    return 0;
  }
  EXPECT(machine.gpu_count > 0 && machine.gpu_count <= kMaxGpus);
  EXPECT(strncmp(machine.name, "a-machine-", 10) == 0 && strlen(machine.name) == 18);
  EXPECT(*machine.driver_version && *machine.nvml_version && machine.cuda_version >= 1000);
  for (uint32_t i = 0; i < machine.gpu_count; i++) {
    check_gpu(machine.gpus[i]);
    for (uint32_t j = 0; j < i; j++)
      EXPECT(!machine.gpus[j].is_at(machine.gpus[i].domain, machine.gpus[i].bus, machine.gpus[i].slot));
  }
  return 0;
}
