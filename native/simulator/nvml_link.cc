// Connections of a GPU: PCIe and NVLink.
#include <cstdio>
#include <cstring>

#include "simulator/activity.h"
#include "simulator/nvml.h"

using namespace simulator;

NVML_EXPORT nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t* out);

namespace {

// Cards that sleep slow down their link.
unsigned generationNow(const Question& q) {
  return q.model().idleState && !isAwake(*q.machine, q.device.gpu) ? 1 : q.model().pcieGeneration;
}

// Megatransfers a second of a lane.
unsigned speedOf(unsigned generation) { return generation < 3 ? generation * 2500 : 8000u << (generation - 3); }

}  // namespace

NVML_GETTER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, Pcie, Oldest, unlessZero(q.model().pcieGeneration))
NVML_GETTER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, Pcie, EarlyR535, unlessZero(q.model().pcieGeneration))
NVML_GETTER(nvmlDeviceGetPcieLinkMaxSpeed, unsigned, Pcie, EarlyR535, unlessZero(q.model().pcieGeneration))
NVML_GETTER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, Pcie, Oldest, unlessZero(generationNow(q)))
NVML_GETTER(nvmlDeviceGetPcieSpeed, unsigned, Pcie, EarlyR535, unlessZero(speedOf(generationNow(q))))
NVML_GETTER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, Pcie, Oldest, unlessZero(q.model().pcieWidth))
NVML_GETTER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, Pcie, Oldest, unlessZero(q.model().pcieWidth))
NVML_GETTER(nvmlDeviceGetPcieReplayCounter, unsigned, Pcie, Oldest, 0)

// In kB/s. A GPU that computes all the time receives a twentieth of what its link could carry, and sends half of that.
NVML_EXPORT nvmlDeviceGetPcieThroughput(nvmlDevice_t handle, unsigned counter, unsigned* out) {
  constexpr unsigned kSent = 0, kReceived = 1;
  if (counter > kReceived) return NVML_ERROR_INVALID_ARGUMENT;
  return answer(handle, Call::Pcie, Symbols::Oldest, out, [&](const Question& q) -> Known {
    if (q.model().pcieGeneration == 0) return std::nullopt;
    const uint64_t link = uint64_t{speedOf(q.model().pcieGeneration)} * 1000 / 8 * q.model().pcieWidth;
    return link * utilizationOf(*q.machine, q.device.gpu) / 100 / (counter == kSent ? 40 : 20);
  });
}

namespace {

constexpr unsigned kGpu = 0, kSwitch = 2;  // what is at the other end

nvmlReturn_t askNvlink(Question* question, nvmlDevice_t handle, unsigned link, const void* out,
                       Symbols since = Symbols::Oldest) {
  const nvmlReturn_t result = question->askGpu(handle, Call::Nvlink, out, since);
  if (result != NVML_SUCCESS) return result;
  if (question->model().nvlinks == 0) return NVML_ERROR_NOT_SUPPORTED;
  return link < question->model().nvlinks ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

template <typename Number, typename Know>
nvmlReturn_t answerOfNvlink(nvmlDevice_t handle, unsigned link, Number* out, Know know,
                            Symbols since = Symbols::Oldest) {
  Question question;
  const nvmlReturn_t result = askNvlink(&question, handle, link, out, since);
  if (result == NVML_SUCCESS) *out = know(question);
  return result;
}

// Eight GPUs and more are joined by switches, fewer directly.
unsigned remoteType(const Question& q) { return q.machine->gpuCount >= 8 ? kSwitch : kGpu; }

}  // namespace

NVML_EXPORT nvmlDeviceGetNvLinkState(nvmlDevice_t handle, unsigned link, int* out) {
  return answerOfNvlink(handle, link, out, [](const Question&) { return 1; });
}
NVML_EXPORT nvmlDeviceGetNvLinkVersion(nvmlDevice_t handle, unsigned link, unsigned* out) {
  return answerOfNvlink(handle, link, out, [](const Question& q) { return architectureOf(q.model()).nvlinkVersion; });
}
NVML_EXPORT nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t handle, unsigned link, unsigned, unsigned long long* out) {
  return answerOfNvlink(handle, link, out, [](const Question&) { return 0ull; });
}
NVML_EXPORT nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t handle, unsigned link, unsigned* out) {
  return answerOfNvlink(handle, link, out, remoteType, Symbols::Old);
}
// All but that of a bridge between two cards.
NVML_EXPORT nvmlDeviceGetNvLinkCapability(nvmlDevice_t handle, unsigned link, unsigned capability, unsigned* out) {
  constexpr unsigned kBridge = 4, kCapabilities = 6;
  if (capability >= kCapabilities) return NVML_ERROR_INVALID_ARGUMENT;
  return answerOfNvlink(handle, link, out, [&](const Question&) { return capability != kBridge; });
}

NVML_EXPORT nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t handle, unsigned link, nvmlPciInfo_t* out) {
  Question question;
  const nvmlReturn_t result = askNvlink(&question, handle, link, out);
  if (result != NVML_SUCCESS) return result;
  const uint32_t gpus = question.machine->gpuCount;
  if (remoteType(question) == kGpu)
    return nvmlDeviceGetPciInfo_v3(handleOf((question.device.gpu + 1 + link % (gpus > 1 ? gpus - 1 : 1)) % gpus, 0),
                                   out);
  memset(out, 0, sizeof *out);
  out->bus = 5 + link % 4;
  out->pciDeviceId = 0x22a310de;
  snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "0000:%02X:00.0", out->bus & 0xff);
  snprintf(out->busId, sizeof out->busId, "00000000:%02X:00.0", out->bus & 0xff);
  return NVML_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t handle, unsigned link, nvmlPciInfo_t* out) {
  return nvmlDeviceGetNvLinkRemotePciInfo_v2(handle, link, out);
}

// Between two GPUs. Capabilities: 2 is NVLink. Status: 0 yes, 5 not supported.
NVML_EXPORT nvmlDeviceGetP2PStatus(nvmlDevice_t first, nvmlDevice_t second, unsigned capability, unsigned* out) {
  if (capability > 4) return NVML_ERROR_INVALID_ARGUMENT;
  Question a, b;
  nvmlReturn_t result = a.askGpu(first, Call::Nvlink, out);
  if (result == NVML_SUCCESS) result = b.askGpu(second, Call::Nvlink, out);
  if (result != NVML_SUCCESS) return result;
  const bool linked = a.model().nvlinks && b.model().nvlinks;
  const bool display = a.model().brand == Brand::GeForce || b.model().brand == Brand::GeForce;
  *out = linked || (capability != 2 && !display) ? 0 : 5;
  return NVML_SUCCESS;
}
