// A placeholder makes GPUs look taken to tools that ask the driver: all of them, or none.
#include "cuda/placeholder.h"

#include <unistd.h>

#include "nvml/library.h"
#include "support/processes.h"
#include "support/simulator.h"
#include "test.h"

using namespace gpu_owner;
using cuda::Placeholder;

namespace {

constexpr size_t kBytes = 1024 * 1024;

std::string uuid(int gpu) { return tests::SimulatedMachine::uuid(gpu); }

// The CUDA library of this process.
cuda::Library& library() {
  static auto* library = [] {
    auto* loaded = new cuda::Library;
    REQUIRE(loaded->load(tests::simulated_cuda()));
    return loaded;
  }();
  return *library;
}

// How often NVML lists this process on a GPU.
int listed(int gpu) {
  static auto* nvml = [] {
    auto* loaded = new nvml::Library;
    REQUIRE(loaded->load(tests::simulated_nvml()));
    REQUIRE_EQUAL(loaded->init(), nvml::SUCCESS);
    return loaded;
  }();
  nvml::Device device = nullptr;
  REQUIRE_EQUAL(nvml->device_handle(static_cast<uint32_t>(gpu), device), nvml::SUCCESS);
  std::vector<nvml::Process> list;
  REQUIRE_EQUAL(nvml->processes(device, nvml::Library::ProcessKind::compute, list), nvml::SUCCESS);
  int count = 0;
  for (const auto& process : list) count += process.pid == static_cast<uint32_t>(getpid());
  return count;
}

}  // namespace

TEST("it is seen on its GPUs and no others, until it is released") {
  const tests::SimulatedMachine machine("4");
  Placeholder placeholder;
  const auto failure = placeholder.take(library(), {uuid(3), uuid(1)}, kBytes);
  CHECK_EQUAL(failure.code, cuda::SUCCESS);
  CHECK_EQUAL(listed(0), 0);
  CHECK_EQUAL(listed(1), 1);
  CHECK_EQUAL(listed(2), 0);
  CHECK_EQUAL(listed(3), 1);
  placeholder.release(library());
  for (int gpu = 0; gpu < 4; gpu++) CHECK_EQUAL(listed(gpu), 0);
  placeholder.release(library());  // does nothing
}

TEST("it is found by UUID where CUDA numbers the GPUs differently") {
  const tests::SimulatedMachine machine("4");
  setenv("CUDA_VISIBLE_DEVICES", (uuid(2) + "," + uuid(0)).c_str(), 1);
  Placeholder placeholder;
  CHECK_EQUAL(placeholder.take(library(), {uuid(0)}, kBytes).code, cuda::SUCCESS);
  CHECK_EQUAL(listed(0), 1);
  CHECK_EQUAL(listed(2), 0);
}

TEST("no memory for a context on the second GPU: nothing is taken on the first either") {
  const tests::SimulatedMachine machine("2");
  machine.set("gpu=1 hidden-memory=79.8GiB");
  Placeholder placeholder;
  const auto failure = placeholder.take(library(), {uuid(0), uuid(1)}, kBytes);
  CHECK_EQUAL(failure.code, cuda::ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(std::string(failure.stage), "cuDevicePrimaryCtxRetain");
  CHECK_EQUAL(failure.uuid, uuid(1));
  CHECK_EQUAL(listed(0), 0);
  CHECK_EQUAL(listed(1), 0);
  CHECK_EQUAL(placeholder.take(library(), {uuid(0)}, kBytes).code, cuda::SUCCESS);  // the GPU can be taken again
  CHECK_EQUAL(listed(0), 1);
}

TEST("no memory for the allocation on the second GPU: its context goes as well") {
  const tests::SimulatedMachine machine("2");
  Placeholder placeholder;
  machine.set("gpu=1 error=cuda-alloc:2");
  const auto failure = placeholder.take(library(), {uuid(0), uuid(1)}, kBytes);
  CHECK_EQUAL(failure.code, cuda::ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(std::string(failure.stage), "cuMemAlloc");
  CHECK_EQUAL(failure.uuid, uuid(1));
  CHECK_EQUAL(listed(0), 0);
  CHECK_EQUAL(listed(1), 0);
}

TEST("a GPU that CUDA doesn't show is refused, and no other is taken") {
  const tests::SimulatedMachine machine("2");
  setenv("CUDA_VISIBLE_DEVICES", uuid(0).c_str(), 1);
  Placeholder placeholder;
  const auto failure = placeholder.take(library(), {uuid(0), uuid(1)}, kBytes);
  CHECK_EQUAL(failure.code, cuda::ERROR_INVALID_DEVICE);
  CHECK_EQUAL(std::string(failure.stage), "uuid");
  CHECK_EQUAL(failure.uuid, uuid(1));
  CHECK_EQUAL(listed(0), 0);
}

TEST("a GPU is refused if CUDA shows none") {
  const tests::SimulatedMachine machine("2");
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  Placeholder placeholder;
  const auto failure = placeholder.take(library(), {uuid(0)}, kBytes);
  CHECK_EQUAL(failure.code, cuda::ERROR_NO_DEVICE);
  CHECK_EQUAL(std::string(failure.stage), "cuInit");
}

TEST("in exclusive-process mode, a GPU that another process has is refused; in prohibited mode, any") {
  const tests::SimulatedMachine machine("3");
  machine.set("gpu=1 compute-mode=exclusive-process gpu=2 compute-mode=prohibited");
  machine.occupy(1, "1MiB");
  Placeholder placeholder;
  auto failure = placeholder.take(library(), {uuid(0), uuid(1)}, kBytes);
  CHECK_EQUAL(failure.code, cuda::ERROR_DEVICE_UNAVAILABLE);
  CHECK_EQUAL(failure.uuid, uuid(1));
  CHECK_EQUAL(listed(0), 0);
  failure = placeholder.take(library(), {uuid(0), uuid(2)}, kBytes);
  CHECK_EQUAL(failure.code, cuda::ERROR_UNKNOWN);
  CHECK_EQUAL(failure.uuid, uuid(2));
  CHECK_EQUAL(listed(0), 0);
}

TEST("exclusive-process mode and nobody else: taken, and then others are refused") {
  const tests::SimulatedMachine machine("1");
  machine.set("gpu=0 compute-mode=exclusive-process");
  tests::Channel taken, end;
  const pid_t holder = tests::start([&] {
    Placeholder placeholder;
    if (placeholder.take(library(), {uuid(0)}, kBytes).code != cuda::SUCCESS) return 1;
    taken.say();
    end.close_for_saying();
    end.hear();
    return 0;
  });
  REQUIRE(taken.hear() != 0);
  Placeholder placeholder;
  CHECK_EQUAL(placeholder.take(library(), {uuid(0)}, kBytes).code, cuda::ERROR_DEVICE_UNAVAILABLE);
  tests::kill_and_wait(holder);
  CHECK(tests::eventually([&] { return placeholder.take(library(), {uuid(0)}, kBytes).code == cuda::SUCCESS; }));
}

TEST("two on the same GPU share its context; it goes with the last") {
  const tests::SimulatedMachine machine("2");
  Placeholder first, second;
  CHECK_EQUAL(first.take(library(), {uuid(0), uuid(1)}, kBytes).code, cuda::SUCCESS);
  CHECK_EQUAL(second.take(library(), {uuid(0)}, kBytes).code, cuda::SUCCESS);
  first.release(library());
  CHECK_EQUAL(listed(0), 1);
  CHECK_EQUAL(listed(1), 0);
  second.release(library());
  CHECK_EQUAL(listed(0), 0);
}

TEST("an allocation on a lost GPU fails, and no other GPU is taken") {
  const tests::SimulatedMachine machine("2");
  machine.set("gpu=1 lost=on");
  Placeholder placeholder;
  const auto failure = placeholder.take(library(), {uuid(0), uuid(1)}, kBytes);
  CHECK(failure.code != cuda::SUCCESS);
  CHECK_EQUAL(listed(0), 0);
}

TEST("a MIG instance can be taken") {
  const tests::SimulatedMachine machine("a100x4-mig");
  nvml::Library nvml;
  REQUIRE(nvml.load(tests::simulated_nvml()));
  REQUIRE_EQUAL(nvml.init(), nvml::SUCCESS);
  nvml::Device gpu = nullptr, instance = nullptr;
  std::string name;
  REQUIRE_EQUAL(nvml.device_handle(0, gpu), nvml::SUCCESS);
  REQUIRE_EQUAL(nvml.mig_handle(gpu, 0, instance), nvml::SUCCESS);
  REQUIRE_EQUAL(nvml.uuid(instance, name), nvml::SUCCESS);
  setenv("CUDA_VISIBLE_DEVICES", name.c_str(), 1);
  Placeholder placeholder;
  const auto failure = placeholder.take(library(), {name}, kBytes);
  CHECK_EQUAL(failure.code, cuda::SUCCESS);
  if (failure.code != cuda::SUCCESS) tests::fail(__FILE__, __LINE__, std::string(failure.stage) + " " + name);
}

namespace {

// UUIDs of the instances of GPU 0; CUDA_VISIBLE_DEVICES shows them.
std::vector<std::string> show_instances() {
  nvml::Library nvml;
  REQUIRE(nvml.load(tests::simulated_nvml()));
  REQUIRE_EQUAL(nvml.init(), nvml::SUCCESS);
  nvml::Device gpu = nullptr, instance = nullptr;
  REQUIRE_EQUAL(nvml.device_handle(0, gpu), nvml::SUCCESS);
  std::vector<std::string> uuids;
  for (const uint32_t slot : {0, 2, 3}) {
    std::string uuid;
    REQUIRE_EQUAL(nvml.mig_handle(gpu, slot, instance), nvml::SUCCESS);
    REQUIRE_EQUAL(nvml.uuid(instance, uuid), nvml::SUCCESS);
    uuids.push_back(uuid);
  }
  setenv("CUDA_VISIBLE_DEVICES", (uuids[0] + "," + uuids[1] + "," + uuids[2]).c_str(), 1);
  return uuids;
}

}  // namespace

TEST("several MIG instances can be taken in one process") {
  const tests::SimulatedMachine machine("a100x4-mig");
  Placeholder placeholder;
  CHECK_EQUAL(placeholder.take(library(), show_instances(), kBytes).code, cuda::SUCCESS);
  CHECK_EQUAL(placeholder.hidden(), 0);
  CHECK_EQUAL(listed(0), 3);
}

TEST("several MIG instances where CUDA shows the first only: that one is taken, and the others counted") {
  const tests::SimulatedMachine machine("early-r535");
  machine.set("gpu=0 mig=on");
  Placeholder placeholder;
  CHECK_EQUAL(placeholder.take(library(), show_instances(), kBytes).code, cuda::SUCCESS);
  CHECK_EQUAL(placeholder.hidden(), 2);
  CHECK_EQUAL(listed(0), 1);
  placeholder.release(library());
  CHECK_EQUAL(placeholder.hidden(), 0);
}

TEST("a MIG instance by the name that drivers before R470 give it, and the UUID that their CUDA has for it") {
  cuda::Library older;
  REQUIRE(older.load(STUB_DIRECTORY "/libcuda-unsuffixed.so"));
  Placeholder placeholder;
  const auto failure = placeholder.take(older, {"MIG-GPU-00010203-0405-0607-0809-0a0b0c0d0eff/7/0"}, kBytes);
  CHECK_EQUAL(std::string(failure.stage), "");
}

TEST("a GPU of a Jetson, whose UUID has no prefix") {
  const tests::SimulatedMachine machine("jetson");
  Placeholder placeholder;
  nvml::Library nvml;
  REQUIRE(nvml.load(tests::simulated_nvml()));
  REQUIRE_EQUAL(nvml.init(), nvml::SUCCESS);
  nvml::Device device = nullptr;
  std::string own;
  REQUIRE_EQUAL(nvml.device_handle(0u, device), nvml::SUCCESS);
  REQUIRE_EQUAL(nvml.uuid(device, own), nvml::SUCCESS);
  CHECK_EQUAL(own.size(), 36u);
  CHECK_EQUAL(placeholder.take(library(), {own}, kBytes).code, cuda::SUCCESS);
}

TEST("a driver whose CUDA knows no UUIDs: the GPUs that it shows, if they are as many as wanted") {
  cuda::Library older;
  REQUIRE(older.load(STUB_DIRECTORY "/libcuda-without-uuid.so"));
  Placeholder placeholder;
  const std::string one = "GPU-11111111-2222-3333-4444-555555555555", two = "GPU-22222222-2222-3333-4444-555555555555";
  CHECK_EQUAL(placeholder.take(older, {one}, kBytes).code, cuda::SUCCESS);
  placeholder.release(older);
  CHECK_EQUAL(placeholder.take(older, {one, two}, kBytes).stage, std::string("cuDeviceGetUuid"));
}
