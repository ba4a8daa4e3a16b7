#include "support/simulator.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <vector>

#include "support/directory.h"
#include "support/processes.h"

namespace tests {
namespace {

const char* const kTool = BUILD_DIRECTORY "/gpu-owner-simulator";

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find(' ', at) == std::string::npos ? text.size() : text.find(' ', at);
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

// The tool, with `output` as its standard output if that isn't -1.
pid_t start_tool(const std::string& command, int output) {
  const std::vector<std::string> words = words_of(command);
  return start([&] {
    std::vector<char*> pointers = {const_cast<char*>(kTool)};
    for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
    pointers.push_back(nullptr);
    if (output >= 0) dup2(output, STDOUT_FILENO);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // it doesn't tidy up before it ends
    execv(kTool, pointers.data());
    return 126;
  });
}

}  // namespace

std::string simulated_nvml() { return BUILD_DIRECTORY "/simulator/libnvidia-ml.so.1"; }
std::string simulated_cuda() { return BUILD_DIRECTORY "/simulator/libcuda.so.1"; }

SimulatedMachine::SimulatedMachine(const char* name) {
  setenv("GPU_OWNER_SIMULATE", name, 1);
  setenv("GPU_OWNER_SIMULATE_DIR", path_of("simulated").c_str(), 1);
}

void SimulatedMachine::set(const std::string& words) const { REQUIRE_EQUAL(end_of(start_tool("set " + words, -1)), 0); }

pid_t SimulatedMachine::occupy(int gpu, const std::string& memory) const {
  // The program ends when its standard input does, which for a test is /dev/null.
  Channel input, output;
  const int before = dup(STDIN_FILENO);
  dup2(input.hearing(), STDIN_FILENO);
  const pid_t process = start_tool("occupy " + std::to_string(gpu) + " --memory " + memory, output.saying());
  dup2(before, STDIN_FILENO);
  close(before);
  output.close_for_saying();
  input.close_for_hearing();
  REQUIRE_EQUAL(output.hear(), 'r');  // ready
  return process;
}

std::string SimulatedMachine::uuid(int gpu) {
  char text[64];
  snprintf(text, sizeof text, "GPU-00000000-0000-4000-8000-%012x", static_cast<unsigned>(gpu));
  return text;
}

}  // namespace tests
