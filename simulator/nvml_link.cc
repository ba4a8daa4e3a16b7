// Connections of a GPU: PCIe and NVLink.
#include <cstdio>
#include <cstring>

#include "simulator/activity.h"
#include "simulator/nvml.h"

using namespace simulator;

NVML_EXPORT nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t* out);

namespace {

// Cards that sleep slow down their link.
unsigned generation_now(const Question& q) {
  return q.model().idle_state && !is_awake(*q.machine, q.device.gpu) ? 1 : q.model().pcie_generation;
}

// Megatransfers a second of a lane.
unsigned speed_of(unsigned generation) { return generation < 3 ? generation * 2500 : 8000u << (generation - 3); }

}  // namespace

NVML_GETTER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, pcie, oldest, unless_zero(q.model().pcie_generation))
NVML_GETTER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, pcie, early_r535, unless_zero(q.model().pcie_generation))
NVML_GETTER(nvmlDeviceGetPcieLinkMaxSpeed, unsigned, pcie, early_r535, unless_zero(q.model().pcie_generation))
NVML_GETTER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, pcie, oldest, unless_zero(generation_now(q)))
NVML_GETTER(nvmlDeviceGetPcieSpeed, unsigned, pcie, early_r535, unless_zero(speed_of(generation_now(q))))
NVML_GETTER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, pcie, oldest, unless_zero(q.model().pcie_width))
NVML_GETTER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, pcie, oldest, unless_zero(q.model().pcie_width))
NVML_GETTER(nvmlDeviceGetPcieReplayCounter, unsigned, pcie, oldest, 0)

// In kB/s. A GPU that computes all the time receives a twentieth of what its link could carry, and sends half of that.
NVML_EXPORT nvmlDeviceGetPcieThroughput(nvmlDevice_t handle, unsigned counter, unsigned* out) {
  constexpr unsigned kSent = 0, kReceived = 1;
  if (counter > kReceived) return NVML_ERROR_INVALID_ARGUMENT;
  return answer(handle, Call::pcie, Symbols::oldest, out, [&](const Question& q) -> Known {
    if (q.model().pcie_generation == 0) return std::nullopt;
    const uint64_t link = uint64_t{speed_of(q.model().pcie_generation)} * 1000 / 8 * q.model().pcie_width;
    return link * utilization_of(*q.machine, q.device.gpu) / 100 / (counter == kSent ? 40 : 20);
  });
}

namespace {

constexpr unsigned kGpu = 0, kSwitch = 2;  // the device at the other end

NvLink link_of(const Question& q, unsigned link) { return nvlink_of(q.machine->description, q.device.gpu, link); }

bool are_linked(const Question& a, const Question& b) {
  if (!a.model().nvlinks || !b.model().nvlinks) return false;
  for (uint32_t link = 0; link < a.model().nvlinks; ++link) {
    const NvLink found = link_of(a, link);
    if (found.is_active && (found.to_switch || found.gpu == b.device.gpu)) return true;
  }
  return false;
}

nvmlReturn_t ask_nvlink(Question* question, nvmlDevice_t handle, unsigned link, const void* out,
                        Symbols since = Symbols::oldest) {
  const nvmlReturn_t result = question->ask_gpu(handle, Call::nvlink, out, since);
  if (result != NVML_SUCCESS) return result;
  if (link >= kMaxNvlinks) return NVML_ERROR_INVALID_ARGUMENT;
  return link < question->model().nvlinks ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

template <typename Number, typename Know>
nvmlReturn_t answer_of_nvlink(nvmlDevice_t handle, unsigned link, Number* out, Know know,
                              Symbols since = Symbols::oldest) {
  Question question;
  const nvmlReturn_t result = ask_nvlink(&question, handle, link, out, since);
  if (result == NVML_SUCCESS) *out = know(question);
  return result;
}

}  // namespace

NVML_EXPORT nvmlDeviceGetNvLinkState(nvmlDevice_t handle, unsigned link, int* out) {
  return answer_of_nvlink(handle, link, out, [&](const Question& q) { return link_of(q, link).is_active ? 1 : 0; });
}
NVML_EXPORT nvmlDeviceGetNvLinkVersion(nvmlDevice_t handle, unsigned link, unsigned* out) {
  return answer_of_nvlink(handle, link, out,
                          [](const Question& q) { return architecture_of(q.model()).nvlink_version; });
}
NVML_EXPORT nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t handle, unsigned link, unsigned, unsigned long long* out) {
  return answer_of_nvlink(handle, link, out, [](const Question&) { return 0ull; });
}
NVML_EXPORT nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t handle, unsigned link, unsigned* out) {
  const auto remote_type = [&](const Question& q) { return link_of(q, link).to_switch ? kSwitch : kGpu; };
  return answer_of_nvlink(handle, link, out, remote_type, Symbols::old);
}
// All but that of a bridge between two cards.
NVML_EXPORT nvmlDeviceGetNvLinkCapability(nvmlDevice_t handle, unsigned link, unsigned capability, unsigned* out) {
  constexpr unsigned kBridge = 4, kCapabilities = 6;
  if (capability >= kCapabilities) return NVML_ERROR_INVALID_ARGUMENT;
  return answer_of_nvlink(handle, link, out, [&](const Question&) { return capability != kBridge; });
}

NVML_EXPORT nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t handle, unsigned link, nvmlPciInfo_t* out) {
  Question question;
  const nvmlReturn_t result = ask_nvlink(&question, handle, link, out);
  if (result != NVML_SUCCESS) return result;
  const NvLink found = link_of(question, link);
  if (!found.is_active) return NVML_ERROR_NOT_SUPPORTED;
  if (!found.to_switch) return nvmlDeviceGetPciInfo_v3(handle_of(found.gpu, 0), out);
  memset(out, 0, sizeof *out);
  out->bus = 0xf5 + link % 4;  // beyond those of GPUs
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
  nvmlReturn_t result = a.ask_gpu(first, Call::nvlink, out);
  if (result == NVML_SUCCESS) result = b.ask_gpu(second, Call::nvlink, out);
  if (result != NVML_SUCCESS) return result;
  const bool linked = are_linked(a, b);
  const bool display = a.model().brand == Brand::geforce || b.model().brand == Brand::geforce;
  *out = linked || (capability != 2 && !display) ? 0 : 5;
  return NVML_SUCCESS;
}
