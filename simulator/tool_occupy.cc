// occupy: a foreign process on a GPU, through the simulated CUDA driver like any other program.
#include <dlfcn.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

#include "simulator/cuda_abi.h"
#include "simulator/tool.h"

namespace simulator {
namespace {

// So that process listings show the name, and not this program's. There is as much room as the arguments take.
void rename(char* begin, char* end, const char* name) {
  prctl(PR_SET_NAME, name);
  const size_t room = static_cast<size_t>(end - begin);
  const size_t length = strlen(name) < room ? strlen(name) : room;
  memcpy(begin, name, length);
  memset(begin + length, 0, room - length);
  // As after setproctitle: where the last byte ends no text, the kernel shows one text, not empty arguments.
  if (length < room) *end = 1;
}

struct Cuda {
  CUresult (*init)(unsigned);
  CUresult (*retain)(CUcontext*, CUdevice);
  CUresult (*push)(CUcontext);
  CUresult (*allocate)(CUdeviceptr*, size_t);
  CUresult (*release)(CUdeviceptr);
  CUresult (*error_string)(CUresult, const char**);
};

bool load(Cuda* cuda) {
  const std::string libraries = libraries_directory();
  if (libraries.empty()) return false;
  void* library = dlopen((libraries + "/libcuda.so.1").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "gpu-owner simulate: %s\n", dlerror());
    return false;
  }
  const auto find = [&](const char* name, auto* out) {
    *out = reinterpret_cast<std::remove_reference_t<decltype(*out)>>(dlsym(library, name));
    return *out != nullptr;
  };
  return find("cuInit", &cuda->init) && find("cuDevicePrimaryCtxRetain", &cuda->retain) &&
         find("cuCtxPushCurrent_v2", &cuda->push) && find("cuMemAlloc_v2", &cuda->allocate) &&
         find("cuMemFree_v2", &cuda->release) && find("cuGetErrorString", &cuda->error_string);
}

int failed(const Cuda& cuda, const char* what, CUresult code) {
  const char* text = nullptr;
  cuda.error_string(code, &text);
  fprintf(stderr, "gpu-owner simulate: %s failed: %s (%d)\n", what, text ? text : "unknown error", code);
  return 1;
}

class Memory {
 public:
  explicit Memory(const Cuda& cuda) : cuda_(cuda) {}

  CUresult resize(uint64_t wanted) {
    for (; total_ > wanted; blocks_.pop_back()) {
      if (const CUresult result = cuda_.release(blocks_.back().address)) return result;
      total_ -= blocks_.back().size;
    }
    if (total_ == wanted) return CUDA_SUCCESS;
    Block block = {0, wanted - total_};
    if (const CUresult result = cuda_.allocate(&block.address, block.size)) return result;
    blocks_.push_back(block);
    total_ = wanted;
    return CUDA_SUCCESS;
  }

 private:
  struct Block {
    CUdeviceptr address;
    uint64_t size;
  };
  const Cuda& cuda_;
  std::vector<Block> blocks_;
  uint64_t total_ = 0;
};

// Changes its memory as a line says: "memory 40GiB". Returns the exit code if it ends by that.
int obey(const std::string& line, const Cuda& cuda, Memory* memory) {
  uint64_t bytes;
  if (line.rfind("memory ", 0) != 0 || !parse_size(line.substr(7), &bytes)) {
    fprintf(stderr, "gpu-owner simulate: %.80s: expected `memory SIZE`, as in memory 40GiB\n", line.c_str());
    return 0;
  }
  if (const CUresult result = memory->resize(bytes)) return failed(cuda, "allocating memory", result);
  printf("memory %llu\n", static_cast<unsigned long long>(bytes));
  fflush(stdout);
  return 0;
}

// Until standard input ends. Where there is none (a job in the background), only a signal ends this.
int obey_input(const Cuda& cuda, Memory* memory) {
  char target[64];
  const ssize_t length = readlink("/proc/thread-self/fd/0", target, sizeof target - 1);
  const bool none = length < 0 || (length == 9 && memcmp(target, "/dev/null", 9) == 0);
  std::string line;
  char buffer[4096];
  while (!none) {
    const ssize_t got = read(STDIN_FILENO, buffer, sizeof buffer);
    if (got == 0) return 0;
    if (got < 0 && errno != EINTR && errno != EAGAIN) break;
    if (got < 0) poll(nullptr, 0, 50);
    for (ssize_t i = 0; i < got; ++i) {
      if (buffer[i] != '\n') {
        if (line.size() < sizeof buffer) line += buffer[i];
        continue;
      }
      if (const int code = obey(line, cuda, memory)) return code;
      line.clear();
    }
  }
  for (;;) pause();
}

}  // namespace

int command_occupy(const Machine& machine, const Arguments& arguments, char* program_name, char* program_end) {
  std::string device, name;
  uint64_t memory = 0;
  uint32_t utilization = 0;
  std::string type = "compute";
  for (int i = 0; i < arguments.count; ++i) {
    std::string option = arguments.values[i], value;
    const size_t equals = option.find('=');
    const bool takes_value = option.compare(0, equals, "--memory") == 0 || option.compare(0, equals, "--name") == 0 ||
                             option.compare(0, equals, "--type") == 0 ||
                             option.compare(0, equals, "--utilization") == 0;
    if (takes_value && equals != std::string::npos) {
      value = option.substr(equals + 1);
      option.erase(equals);
    } else if (takes_value) {
      if (++i == arguments.count) return usage_error("%s needs a value", option.c_str());
      value = arguments.values[i];
    }
    if (option == "--memory") {
      if (!parse_size(value, &memory)) return usage_error("--memory %s: expected a size, as in 2GiB", value.c_str());
    } else if (option == "--utilization") {
      if (!parse_count(value, 100, &utilization))
        return usage_error("--utilization %s: expected percent", value.c_str());
    } else if (option == "--name") {
      if (value.empty()) return usage_error("--name needs a value");
      name = value;
    } else if (option == "--type") {
      if (value != "compute" && value != "graphics" && value != "compute+graphics" && value != "mps-server")
        return usage_error("--type %s: expected compute, graphics, compute+graphics or mps-server", value.c_str());
      type = value;
    } else if (option[0] == '-' || !device.empty()) {
      return usage_error("unexpected argument %s", option.c_str());
    } else {
      device = option;
    }
  }
  if (device.empty()) return usage_error("which GPU? An index from 0 to %u, or a UUID", machine.gpu_count - 1);
  uint32_t gpu;
  if (const size_t colon = device.find(':'); colon != std::string::npos) {
    uint32_t number;
    if (!find_gpu(machine, device.substr(0, colon), &gpu) ||
        !parse_count(device.substr(colon + 1), kUnits - 2, &number) || !instance_exists(machine, gpu, number + 1))
      return usage_error("no MIG instance %s", device.c_str());
    device = machine.description.gpus[gpu].instances[number].uuid;
  } else if (device.compare(0, 4, "MIG-") != 0) {
    if (!find_gpu(machine, device, &gpu))
      return usage_error("no GPU %s: expected an index from 0 to %u, or a UUID", device.c_str(), machine.gpu_count - 1);
    device = machine.description.gpus[gpu].uuid;
    if (device.compare(0, 4, "GPU-") != 0) device = std::to_string(gpu);  // CUDA reads no UUID of a Jetson
  }
  setenv("CUDA_VISIBLE_DEVICES", device.c_str(), 1);
  setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
  setenv("GPU_OWNER_SIMULATE_PROCESS_TYPE", type.c_str(), 1);
  setenv("GPU_OWNER_SIMULATE_UTILIZATION", std::to_string(utilization).c_str(), 1);
  // Only its name tells an MPS server from other programs.
  if (type == "mps-server" && name.empty()) name = "nvidia-cuda-mps-server";

  Cuda cuda;
  if (!load(&cuda)) return 1;
  CUresult result = cuda.init(0);
  if (result != CUDA_SUCCESS) return failed(cuda, "cuInit", result);
  CUcontext context;
  result = cuda.retain(&context, 0);
  if (result == CUDA_SUCCESS) result = cuda.push(context);
  if (result != CUDA_SUCCESS) return failed(cuda, "making a context", result);
  Memory own(cuda);
  result = own.resize(memory);
  if (result != CUDA_SUCCESS) return failed(cuda, "allocating memory", result);
  if (!name.empty()) rename(program_name, program_end, name.c_str());
  printf("ready %d\n", static_cast<int>(getpid()));
  fflush(stdout);
  return obey_input(cuda, &own);
}

}  // namespace simulator
