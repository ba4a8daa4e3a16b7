// Parses the command line.
#include <cstdlib>
#include <cstring>

#include "simulator/tool.h"

namespace simulator {

bool parse_number(const std::string& text, double* out) {
  size_t digits = 0, points = 0;
  for (const char c : text) {
    if (c >= '0' && c <= '9')
      ++digits;
    else if (c == '.')
      ++points;
    else
      return false;
  }
  if (digits == 0 || points > 1) return false;
  *out = strtod(text.c_str(), nullptr);
  return true;
}

bool parse_count(const std::string& text, uint32_t most, uint32_t* out) {
  double value;
  if (text.find('.') != std::string::npos || !parse_number(text, &value) || value > most) return false;
  *out = static_cast<uint32_t>(value);
  return true;
}

bool parse_size(const std::string& text, uint64_t* out) {
  struct Unit {
    const char* name;
    double bytes;
  };
  constexpr Unit kUnitNames[] = {{"", 1},
                                 {"B", 1},
                                 {"kB", 1e3},
                                 {"KB", 1e3},
                                 {"MB", 1e6},
                                 {"GB", 1e9},
                                 {"TB", 1e12},
                                 {"KiB", 1024.0},
                                 {"K", 1024.0},
                                 {"MiB", 1048576.0},
                                 {"M", 1048576.0},
                                 {"GiB", 1073741824.0},
                                 {"G", 1073741824.0},
                                 {"TiB", 1099511627776.0}};
  const size_t end = text.find_first_not_of("0123456789.");
  double value;
  if (!parse_number(text.substr(0, end), &value)) return false;
  std::string unit = end == std::string::npos ? "" : text.substr(end);
  unit.erase(0, unit.find_first_not_of(' '));
  for (const Unit& known : kUnitNames)
    if (unit == known.name) {
      value *= known.bytes;
      // 20 was never meant as so many bytes.
      if (value > 1e15 || (unit.empty() && value > 0 && value < 1048576.0)) return false;
      *out = static_cast<uint64_t>(value);
      return true;
    }
  return false;
}

bool find_gpu(const Machine& machine, const std::string& text, uint32_t* out) {
  if (parse_count(text, machine.gpu_count - 1, out)) return true;
  if (text.size() <= strlen("GPU-")) return false;
  uint32_t matches = 0;
  for (uint32_t gpu = 0; gpu < machine.gpu_count; ++gpu)
    if (strncmp(machine.description.gpus[gpu].uuid, text.c_str(), text.size()) == 0) {
      *out = gpu;
      ++matches;
    }
  return matches == 1;
}

bool find_call(const std::string& name, unsigned* out) {
  for (unsigned call = 0; call < kCalls; ++call)
    if (name == kCallNames[call]) {
      *out = call;
      return true;
    }
  return false;
}

std::string call_names() {
  std::string names;
  for (const char* name : kCallNames) {
    if (!names.empty()) names += ", ";
    names += name;
  }
  return names;
}

}  // namespace simulator
