// Text that people write to the simulator: names of machines, CUDA_VISIBLE_DEVICES, and arguments of `simulate set`.
// Input: which of them and of which machine, then the words, with a NUL behind each.
#include <sys/stat.h>

#include <cstdarg>

#include "fuzz.h"
#include "simulator/tool.h"
#include "simulator/visible_devices.h"

namespace simulator {

int usage_error(const char* format, ...) {
  char text[4096];
  va_list arguments;
  va_start(arguments, format);
  EXPECT(vsnprintf(text, sizeof text, format, arguments) > 0);
  va_end(arguments);
  return kExitUsage;
}

}  // namespace simulator

namespace {

using namespace simulator;

const char* const kMachines[] = {"8", "64", "a100x4-mig", "mixed"};
Machine machines[4];

void begin() {
  for (size_t i = 0; i < 4; i++) {
    setenv("GPU_OWNER_SIMULATE", kMachines[i], 1);
    Error error;
    EXPECT(attach(&machines[i], &error));
  }
}

void check_visible(const Machine& machine, const char* list, const char* order) {
  VisibleDevice devices[kMaxGpus];
  const uint32_t count = visible_devices(machine, list, order, devices);
  EXPECT(count <= kMaxGpus);
  for (uint32_t i = 0; i < count; i++) {
    EXPECT(devices[i].gpu < machine.gpu_count && devices[i].unit < kUnits);
    for (uint32_t j = 0; j < i; j++) EXPECT(devices[i].gpu != devices[j].gpu || devices[i].unit != devices[j].unit);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (!machines[0].header) begin();
  fuzz::Input input(data, size);
  const uint8_t which = input.byte();
  const Machine& machine = machines[which & 3];
  std::vector<std::string> words = input.list(0);
  if (words.empty()) words.emplace_back();
  std::vector<char*> values;
  for (std::string& word : words) values.push_back(&word[0]);
  values.push_back(nullptr);
  switch (which >> 2 & 3) {
    case 0: {
      MachineDescription description;
      if (describe_machine(values[0], &description)) {
        EXPECT(description.gpu_count > 0 && description.gpu_count <= kMaxGpus &&
               words[0].c_str() == description.name + std::string());
      }
      uint64_t bytes = 0;
      if (parse_size(words[0], &bytes)) EXPECT(bytes <= 1'000'000'000'000'000);
      double number = 0;
      if (parse_number(words[0], &number)) EXPECT(number >= 0);
      uint32_t gpu = 0;
      if (find_gpu(machine, words[0], &gpu)) EXPECT(gpu < machine.gpu_count);
      break;
    }
    case 1:
      check_visible(machine, values[0], values[1]);
      check_visible(machine, nullptr, values[0]);
      break;
    default: {
      const int code = command_set(machine, {static_cast<int>(words.size()), values.data()});
      EXPECT(code == 0 || code == kExitUsage);
      check_visible(machine, nullptr, nullptr);
      if (which & 0x80) command_reset(machine, {0, values.data() + words.size()});
      for (uint32_t gpu = 0; gpu < machine.gpu_count; gpu++) usage_of(machine, gpu);
    }
  }
  return 0;
}
