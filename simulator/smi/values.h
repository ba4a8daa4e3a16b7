// Readings of a GPU as nvidia-smi writes them. The table, the log and the queries take them from here.
#pragma once
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "simulator/smi/driver.h"

namespace smi {

// A reading, or the reason why there is none: "N/A", "GPU is lost".
struct Value {
  std::string text = "N/A";
  bool is_known = false;
};

Value missing(nvmlReturn_t code);
inline Value known(std::string text) { return {std::move(text), true}; }

template <typename T>
Value number(const Answer<T>& answer) {
  return answer ? known(std::to_string(answer.value)) : missing(answer.code);
}
inline Value text(const Answer<std::string>& answer) { return answer ? known(answer.value) : missing(answer.code); }

template <typename... Arguments>
std::string format(const char* pattern, Arguments... arguments) {
  char out[192];
  snprintf(out, sizeof out, pattern, arguments...);
  return out;
}

// Functions of the form (device, unsigned*): a number, or one of two words.
Value number_of(const Gpu& gpu, const char* function);
Value text_of(const Gpu& gpu, const char* function);
Value enabled_of(const Gpu& gpu, const char* function);

Value product_brand(const Gpu& gpu);
Value architecture(const Gpu& gpu);
Value compute_capability(const Gpu& gpu);
Value mig_mode(const Gpu& gpu, bool pending);
Value ecc_mode(const Gpu& gpu, bool pending);
Value driver_model(const Gpu& gpu, bool pending);
Value gsp_mode(const Gpu& gpu, bool is_default);
Value inforom(const Gpu& gpu, unsigned object);  // 0: OEM, 1: ECC, 2: power
Value virtualization_mode(const Gpu& gpu);
Value multi_gpu_board(const Gpu& gpu);
Value board_id(const Gpu& gpu);
Value compute_mode_of(const Gpu& gpu);
Value performance_state(const Gpu& gpu);

// A part of the PCI address, in hexadecimal digits.
enum class PciPart { domain, bus, device, base_class, sub_class, device_id, sub_system_id };
Value pci(const Gpu& gpu, PciPart part, int digits);

Value pcie_throughput(const Gpu& gpu, bool received);      // KB/s
Value memory(const Gpu& gpu, uint64_t MemoryUse::* part);  // MiB
struct Bar1 {
  unsigned long long total, free, used;  // bytes
};
Value bar1(const Gpu& gpu, unsigned long long Bar1::* part);  // MiB

Value utilization(const Gpu& gpu, bool of_memory);               // percent
Value engine_utilization(const Gpu& gpu, const char* function);  // percent
struct SessionStats {
  Value sessions, frames_per_second, latency;
};
SessionStats encoder_stats(const Gpu& gpu);
SessionStats frame_buffer_capture_stats(const Gpu& gpu);

Value temperature(const Gpu& gpu);
Value memory_temperature(const Gpu& gpu);
Answer<int> temperature_margin(const Gpu& gpu);
// The distance of a limit from the highest operating temperature, a field of NVML.
Value temperature_limit(const Gpu& gpu, unsigned field);
Value temperature_threshold(const Gpu& gpu, unsigned which);

// Watts. Scopes of NVML's fields: 0 the GPU, 1 the module, 2 the memory.
Value power(const Gpu& gpu, const char* function);
Value power_field(const Gpu& gpu, unsigned field, unsigned scope);
Value power_limit(const Gpu& gpu, bool highest);

enum class Clock { graphics, sm, memory, video };
Value clock(const Gpu& gpu, const char* function, Clock type);  // MHz
Value customer_boost_clock(const Gpu& gpu);                     // MHz

// MHz, highest first
std::vector<unsigned> supported_memory_clocks(const Gpu& gpu);
std::vector<unsigned> supported_graphics_clocks(const Gpu& gpu, unsigned memory_clock);

// Why clocks are lower than they could be: a bit each.
struct ClockReason {
  const char* text;
  const char* name;
  unsigned long long bit;
  int depth;         // below the others in the log
  bool is_in_query;  // others are in the log only
};
extern const ClockReason kClockReasons[];
extern const size_t kClockReasonCount;
Answer<unsigned long long> clock_reasons(const Gpu& gpu);
Answer<unsigned long long> supported_clock_reasons(const Gpu& gpu);

// Errors that were corrected (type 0) or not (1), since the driver's start (counter 0) or ever (1).
Value ecc_errors(const Gpu& gpu, unsigned type, unsigned counter);
// The same at one place, as NVML numbers them: 0 L1, 1 L2, 2 device memory, 3 registers, 4 texture, 5 shared texture,
// 6 CBU, 7 SRAM.
Value ecc_errors_at(const Gpu& gpu, unsigned type, unsigned counter, unsigned place);

Value retired_pages(const Gpu& gpu, unsigned cause);
Value retirement_pending(const Gpu& gpu);

struct RemappedRows {
  Value corrected, uncorrected, pending, failed;  // pending and failed: 0 or 1
};
RemappedRows remapped_rows(const Gpu& gpu);

}  // namespace smi
