// MIG instances: what is asked of which handle, and what is left of it where drivers don't answer.
#include <cmath>

#include "support/processes.h"
#include "support/snapshots.h"
#include "support/stub.h"
#include "test.h"

using namespace gpu_owner::nvml;
using tests::Samples;
using tests::snapshot;
using tests::StubbedNvml;

namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

// "1000 1002" of a list, "?" where it isn't known.
std::string pids(const MigInstance& instance) {
  if (!instance.processes_known) return "?";
  std::string text;
  for (const Process& process : instance.compute) text += (text.empty() ? "" : " ") + std::to_string(process.pid);
  return text;
}

std::string slots(const Sample& sample) {
  std::string text;
  for (const MigInstance& instance : sample.instances)
    text += (text.empty() ? "" : " ") + std::to_string(instance.slot);
  return text;
}

Sample look_at(Gpu& gpu, const StubbedNvml& nvml) {
  Sample sample;
  gpu.read(nvml.library, sample);
  return sample;
}

}  // namespace

TEST("each instance with its number, name, memory and compute mode") {
  const tests::SimulatedMachine machine("a100x4-mig");
  tests::opened_driver();
  const Samples samples = snapshot();
  CHECK_EQUAL(samples[0].mig_mode, 1);
  CHECK_EQUAL(slots(samples[0]), "0 2 3 4");  // there is an empty slot
  CHECK_EQUAL(slots(samples[1]), "0 1 2 3 4 5 6");
  CHECK_EQUAL(samples[2].mig_mode, 0);
  CHECK(samples[2].instances.empty());
  CHECK(std::isnan(samples[0].utilization_percent));
  for (const MigInstance& instance : samples[1].instances) {
    CHECK_EQUAL(instance.uuid.compare(0, 4, "MIG-"), 0);
    CHECK_EQUAL(instance.name, "NVIDIA A100-SXM4-80GB MIG 1g.10gb");
    CHECK_EQUAL(instance.memory.total, 10 * kGiB);
    CHECK_EQUAL(instance.memory.used, 0);
    CHECK_EQUAL(instance.compute_mode, 0);
    CHECK_EQUAL(instance.gpu_instance, 7 + instance.slot);
    CHECK_EQUAL(instance.compute_instance, 0u);
    CHECK(instance.processes_known);
  }
}

TEST("instances come and go, also with the whole of MIG, and are as unwell as their GPU") {
  const tests::SimulatedMachine machine("a100x4-mig");
  tests::opened_driver();
  Samples samples = snapshot();
  machine.set("gpu=0 instances=0,4");
  snapshot(samples);
  CHECK_EQUAL(slots(samples[0]), "0 4");
  machine.set("gpu=0 instances=default lost=on");
  snapshot(samples);
  CHECK_EQUAL(samples[0].health, ERROR_GPU_IS_LOST);
  CHECK_EQUAL(slots(samples[0]), "0 4");  // as last seen
  CHECK(std::isnan(samples[0].instances[0].memory.total));
  CHECK(!samples[0].instances[0].processes_known);
  machine.set("gpu=0 lost=off");
  snapshot(samples);
  CHECK_EQUAL(slots(samples[0]), "0 2 3 4");
  CHECK(!std::isnan(samples[0].instances[0].memory.total));
  machine.set("gpu=0 mig=off");
  snapshot(samples);
  CHECK_EQUAL(slots(samples[0]), "");
  machine.set("gpu=0 lost=on");
  snapshot(samples);
  CHECK_EQUAL(slots(samples[0]), "");  // gone, so not remembered
}

TEST("a GPU that hangs keeps its instances, without values") {
  const tests::SimulatedMachine machine("a100x4-mig");
  tests::opened_driver();
  Samples samples = snapshot();
  machine.set("gpu=1 hang=memory");
  for (int i = 0; i < 2; i++) {
    snapshot(samples);
    CHECK_EQUAL(samples[1].health, kNotResponding);
    CHECK_EQUAL(slots(samples[1]), "0 1 2 3 4 5 6");
    CHECK(std::isnan(samples[1].instances[0].memory.total));
    CHECK_EQUAL(samples[0].health, SUCCESS);
  }
  machine.set("gpu=1 hang=off");
  CHECK(tests::eventually([&] {
    snapshot(samples);
    return samples[1].health == SUCCESS && !std::isnan(samples[1].instances[6].memory.total);
  }));
}

TEST("an instance's own handle tells its processes") {
  StubbedNvml nvml("nvml-mig");
  nvml.stub.slots = 0b101;
  Gpu gpu(0);
  const Sample sample = look_at(gpu, nvml);
  REQUIRE_EQUAL(slots(sample), "0 2");
  CHECK_EQUAL(pids(sample.instances[0]), "1000");
  CHECK_EQUAL(pids(sample.instances[1]), "1002");
}

TEST("where a list has its neighbours' processes, too, they are told apart by their ids") {
  StubbedNvml nvml("nvml-mig");
  nvml.stub.slots = 0b111;
  nvml.stub.lists_neighbours = true;
  Gpu gpu(0);
  CHECK_EQUAL(pids(look_at(gpu, nvml).instances[1]), "1001");
  // In doubt, a process is there.
  nvml.stub.without_ids = true;
  CHECK_EQUAL(pids(look_at(gpu, nvml).instances[1]), "1000 1001 1002");
}

TEST("where instances give no list, the GPU's has to do, if it says who runs where") {
  StubbedNvml nvml("nvml-mig");
  nvml.stub.slots = 0b11;
  nvml.stub.code.instance_processes = ERROR_NOT_SUPPORTED;
  Gpu gpu(0);
  CHECK_EQUAL(pids(look_at(gpu, nvml).instances[1]), "1001");
  nvml.stub.without_ids = true;
  CHECK_EQUAL(pids(look_at(gpu, nvml).instances[1]), "?");
  nvml.stub.without_ids = false;
  nvml.stub.code.instance_processes = ERROR_NO_PERMISSION;
  CHECK_EQUAL(pids(look_at(gpu, nvml).instances[1]), "?");
}

TEST("an instance whose ids aren't told") {
  StubbedNvml nvml("nvml-mig");
  nvml.stub.slots = 1;
  nvml.stub.code.instance_id = ERROR_NOT_SUPPORTED;
  Gpu gpu(0);
  CHECK_EQUAL(pids(look_at(gpu, nvml).instances[0]), "1000");
  nvml.stub.code.instance_processes = ERROR_NOT_SUPPORTED;
  CHECK_EQUAL(pids(look_at(gpu, nvml).instances[0]), "?");
}

TEST("memory that isn't told is unknown") {
  StubbedNvml nvml("nvml-mig");
  nvml.stub.slots = 1;
  nvml.stub.code.instance_memory = ERROR_NO_PERMISSION;
  Gpu gpu(0);
  CHECK(std::isnan(look_at(gpu, nvml).instances[0].memory.used));
}

TEST("what never changes is asked once, until another instance is there") {
  StubbedNvml nvml("nvml-mig");
  nvml.stub.slots = 0b11;
  Gpu gpu(0);
  for (int i = 0; i < 3; i++) CHECK_EQUAL(look_at(gpu, nvml).instances[1].gpu_instance, 8u);
  CHECK_EQUAL(nvml.stub.instance_id_calls, 2);
  nvml.stub.generation = '1';
  CHECK_EQUAL(look_at(gpu, nvml).instances[1].uuid.substr(0, 6), "MIG-11");
  CHECK_EQUAL(nvml.stub.instance_id_calls, 4);
  nvml.stub.slots = 0;
  CHECK(look_at(gpu, nvml).instances.empty());
}

TEST("a driver without the functions for MIG has no instances") {
  StubbedNvml nvml("nvml-unsuffixed");
  Gpu gpu(0);
  const Sample sample = look_at(gpu, nvml);
  CHECK_EQUAL(sample.health, SUCCESS);
  CHECK(sample.instances.empty());
}

TEST(
    "instances that the driver refuses to show aren't taken for none; an instance that has failed isn't for a good "
    "one") {
  StubbedNvml nvml("nvml-mig");
  nvml.stub.slots = 0b11;
  for (const Code code : {ERROR_NO_PERMISSION, ERROR_UNKNOWN, ERROR_INVALID_ARGUMENT}) {
    Gpu gpu(0);
    nvml.stub.code = {};
    nvml.stub.code.mig_handle = code;
    CHECK_EQUAL(look_at(gpu, nvml).health, code);
    nvml.stub.code.mig_handle = SUCCESS;
    nvml.stub.code.instance_memory = code;
    Sample sample = look_at(gpu, nvml);
    CHECK_EQUAL(sample.health, SUCCESS);
    REQUIRE_EQUAL(sample.instances.size(), 2u);
    CHECK_EQUAL(sample.instances[1].health, code);
    nvml.stub.code = {};
    CHECK_EQUAL(look_at(gpu, nvml).instances[1].health, SUCCESS);
  }
  Gpu gpu(0);
  nvml.stub.code = {};
  nvml.stub.slots = 0;
  CHECK_EQUAL(look_at(gpu, nvml).health, SUCCESS);
  // The driver keeps the memory of the whole GPU from users without privileges.
  nvml.stub.code.memory_v2 = ERROR_NO_PERMISSION;
  CHECK_EQUAL(look_at(gpu, nvml).health, SUCCESS);
}
