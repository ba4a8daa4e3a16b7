// Shared by the files of the simulated libnvidia-ml.so.1.
#pragma once
#include <optional>

#include "simulator/faults.h"
#include "simulator/nvml_abi.h"
#include "simulator/slots.h"

#define NVML_EXPORT extern "C" __attribute__((visibility("default"))) nvmlReturn_t

namespace simulator {

// A GPU (unit 0) or one of its MIG instances.
struct Device {
  uint32_t gpu;
  uint32_t unit;
};

// The machine while the library is initialised, else null.
const Machine* initialized_machine();

nvmlDevice_t handle_of(uint32_t gpu, uint32_t unit);

// The handle of a GPU, for a call that looks one up.
nvmlReturn_t give_handle(const Machine& machine, uint32_t gpu, nvmlDevice_t* out);

// Also false for an instance that doesn't exist (any more).
bool decode_handle(const Machine& machine, nvmlDevice_t handle, Device* out);

inline nvmlReturn_t health_error(const Machine& machine, uint32_t gpu) {
  const uint32_t health = health_of(machine, gpu);
  if (__builtin_expect(health == 0, 1)) return NVML_SUCCESS;
  if (health & kLost) return NVML_ERROR_GPU_IS_LOST;
  if (health & kResetRequired) return NVML_ERROR_RESET_REQUIRED;
  return health & kNoPermission ? NVML_ERROR_NO_PERMISSION : NVML_SUCCESS;
}

// The library hides newer functions on a machine with an older driver (nvml_symbols.cc). Where a program has them all
// the same, because it chose the machine later, they return FUNCTION_NOT_FOUND.
inline bool driver_has(const Machine& machine, Symbols at_least) { return machine.description.symbols >= at_least; }

// Everything that comes before the answer to a question about a GPU. On success `device` and `machine` are set.
struct Question {
  const Machine* machine = nullptr;
  Device device = {0, 0};
  const Gpu& gpu() const { return machine->description.gpus[device.gpu]; }
  const Model& model() const { return *gpu().model; }
  bool has_hbm() const { return model().memory_bus_bits >= 4096; }
  const GpuState& state() const { return machine->gpus[device.gpu]; }

  nvmlReturn_t ask(nvmlDevice_t handle, Call call, Symbols since = Symbols::oldest) {
    machine = initialized_machine();
    if (!machine) return NVML_ERROR_UNINITIALIZED;
    if (!driver_has(*machine, since)) return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (!decode_handle(*machine, handle, &device)) return NVML_ERROR_INVALID_ARGUMENT;
    stall(*machine, device.gpu, call);
    const nvmlReturn_t health = health_error(*machine, device.gpu);
    if (health != NVML_SUCCESS) return health;
    return static_cast<nvmlReturn_t>(injected_error(*machine, device.gpu, call));
  }

  // A question that a MIG instance doesn't answer. `out` is where the answer goes.
  nvmlReturn_t ask_gpu(nvmlDevice_t handle, Call call, const void* out, Symbols since = Symbols::oldest) {
    const nvmlReturn_t result = ask(handle, call, since);
    if (result != NVML_SUCCESS) return result;
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    return device.unit ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
  }
};

// A number that the card may lack.
using Known = std::optional<unsigned long long>;
inline Known unless_zero(uint32_t number) { return number ? Known(number) : std::nullopt; }

// Asks, and answers with what `know` says of the GPU; NOT_SUPPORTED where it knows nothing.
template <typename Number, typename Know>
nvmlReturn_t answer(nvmlDevice_t handle, Call call, Symbols since, Number* out, Know know) {
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, call, out, since);
  if (result != NVML_SUCCESS) return result;
  const Known number = know(question);
  if (!number) return NVML_ERROR_NOT_SUPPORTED;
  *out = static_cast<Number>(*number);
  return NVML_SUCCESS;
}

// A getter of one number: its expression sees the question as `q`.
#define NVML_GETTER(name, Number, call, since, expression)                                  \
  NVML_EXPORT name(nvmlDevice_t handle, Number* out) {                                      \
    return answer(handle, Call::call, Symbols::since, out, [](const Question& q) -> Known { \
      (void)q;                                                                              \
      return expression;                                                                    \
    });                                                                                     \
  }

// Copies text into a caller's buffer.
nvmlReturn_t give_text(const char* text, char* out, unsigned length);

// Copies a list into a caller's buffer: `count` is the room in it, and becomes the number of entries.
template <typename Entry>
nvmlReturn_t give_list(const Entry* entries, unsigned found, unsigned* count, Entry* out) {
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  const unsigned room = out ? *count : 0;
  *count = found;
  if (found > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < found; ++i) out[i] = entries[i];
  return NVML_SUCCESS;
}

}  // namespace simulator
