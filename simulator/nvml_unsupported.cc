// Getters of what no simulated GPU has: virtual GPUs, Windows' driver models, confidential computing, profiling (GPM).
// Programs that ask for them shall hear so, and not that the driver is older than they think.
#include "simulator/nvml.h"

using namespace simulator;

namespace {

nvmlReturn_t not_supported(nvmlDevice_t handle, Symbols since) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::board, since);
  return result == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : result;
}

}  // namespace

// Whatever follows the handle is left alone.
#define UNSUPPORTED(name, since) \
  NVML_EXPORT name(nvmlDevice_t handle) { return not_supported(handle, Symbols::since); }

UNSUPPORTED(nvmlDeviceGetAPIRestriction, oldest)
UNSUPPORTED(nvmlDeviceGetAccountingStats, oldest)
UNSUPPORTED(nvmlDeviceGetActiveVgpus, oldest)
UNSUPPORTED(nvmlDeviceGetBridgeChipInfo, oldest)
UNSUPPORTED(nvmlDeviceGetCreatableVgpus, oldest)
UNSUPPORTED(nvmlDeviceGetDriverModel, oldest)
UNSUPPORTED(nvmlDeviceGetGpuOperationMode, oldest)
UNSUPPORTED(nvmlDeviceGetGridLicensableFeatures_v2, oldest)
UNSUPPORTED(nvmlDeviceGetNvLinkUtilizationControl, oldest)
UNSUPPORTED(nvmlDeviceGetNvLinkUtilizationCounter, oldest)
UNSUPPORTED(nvmlDeviceGetSamples, oldest)
UNSUPPORTED(nvmlDeviceGetSupportedVgpus, oldest)
UNSUPPORTED(nvmlDeviceGetVgpuMetadata, oldest)
UNSUPPORTED(nvmlDeviceGetVgpuProcessUtilization, oldest)
UNSUPPORTED(nvmlDeviceGetVgpuUtilization, oldest)

UNSUPPORTED(nvmlDeviceGetClkMonStatus, old)
UNSUPPORTED(nvmlDeviceGetGpuInstanceById, old)
UNSUPPORTED(nvmlDeviceGetGpuInstancePossiblePlacements, old)
UNSUPPORTED(nvmlDeviceGetGpuInstancePossiblePlacements_v2, old)
UNSUPPORTED(nvmlDeviceGetGpuInstanceProfileInfo, old)
UNSUPPORTED(nvmlDeviceGetGpuInstanceRemainingCapacity, old)
UNSUPPORTED(nvmlDeviceGetGpuInstances, old)
UNSUPPORTED(nvmlDeviceGetGridLicensableFeatures, old)
UNSUPPORTED(nvmlDeviceGetGridLicensableFeatures_v3, old)
UNSUPPORTED(nvmlDeviceGetGridLicensableFeatures_v4, old)
UNSUPPORTED(nvmlDeviceGetHostVgpuMode, old)
UNSUPPORTED(nvmlDeviceGetPgpuMetadataString, old)

UNSUPPORTED(nvmlDeviceGetConfComputeGpuAttestationReport, early_r535)
UNSUPPORTED(nvmlDeviceGetConfComputeGpuCertificate, early_r535)
UNSUPPORTED(nvmlDeviceGetConfComputeProtectedMemoryUsage, early_r535)
UNSUPPORTED(nvmlDeviceGetDynamicPstatesInfo, early_r535)
UNSUPPORTED(nvmlDeviceGetGpcClkMinMaxVfOffset, early_r535)
UNSUPPORTED(nvmlDeviceGetGpcClkVfOffset, early_r535)
UNSUPPORTED(nvmlDeviceGetGpuFabricInfo, early_r535)
UNSUPPORTED(nvmlDeviceGetGpuInstanceProfileInfoV, early_r535)
UNSUPPORTED(nvmlDeviceGetLastBBXFlushTime, early_r535)
UNSUPPORTED(nvmlDeviceGetMemClkMinMaxVfOffset, early_r535)
UNSUPPORTED(nvmlDeviceGetMemClkVfOffset, early_r535)
UNSUPPORTED(nvmlDeviceGetSramEccErrorStatus, early_r535)
UNSUPPORTED(nvmlDeviceGetThermalSettings, early_r535)
UNSUPPORTED(nvmlDeviceGetVgpuCapabilities, early_r535)
UNSUPPORTED(nvmlDeviceGetVgpuSchedulerCapabilities, early_r535)
UNSUPPORTED(nvmlDeviceGetVgpuSchedulerLog, early_r535)
UNSUPPORTED(nvmlDeviceGetVgpuSchedulerState, early_r535)

UNSUPPORTED(nvmlDeviceGetAddressingMode, current)
UNSUPPORTED(nvmlDeviceGetC2cModeInfoV, current)
UNSUPPORTED(nvmlDeviceGetCapabilities, current)
UNSUPPORTED(nvmlDeviceGetClockOffsets, current)
UNSUPPORTED(nvmlDeviceGetCoolerInfo, current)
UNSUPPORTED(nvmlDeviceGetCurrentClockFreqs, current)
UNSUPPORTED(nvmlDeviceGetDramEncryptionMode, current)
UNSUPPORTED(nvmlDeviceGetDriverModel_v2, current)
UNSUPPORTED(nvmlDeviceGetGpuFabricInfoV, current)
UNSUPPORTED(nvmlDeviceGetGpuInstanceProfileInfoByIdV, current)
UNSUPPORTED(nvmlDeviceGetNvLinkInfo, current)
UNSUPPORTED(nvmlDeviceGetNvlinkBwMode, current)
UNSUPPORTED(nvmlDeviceGetNvlinkSupportedBwModes, current)
UNSUPPORTED(nvmlDeviceGetPdi, current)
UNSUPPORTED(nvmlDeviceGetPerformanceModes, current)
UNSUPPORTED(nvmlDeviceGetPlatformInfo, current)
UNSUPPORTED(nvmlDeviceGetPowerMizerMode_v1, current)
UNSUPPORTED(nvmlDeviceGetProcessesUtilizationInfo, current)
UNSUPPORTED(nvmlDeviceGetRepairStatus, current)
UNSUPPORTED(nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts, current)
UNSUPPORTED(nvmlDeviceGetVgpuHeterogeneousMode, current)
UNSUPPORTED(nvmlDeviceGetVgpuInstancesUtilizationInfo, current)
UNSUPPORTED(nvmlDeviceGetVgpuProcessesUtilizationInfo, current)
UNSUPPORTED(nvmlDeviceGetVgpuTypeCreatablePlacements, current)
UNSUPPORTED(nvmlDeviceGetVgpuTypeSupportedPlacements, current)

UNSUPPORTED(nvmlGpmSampleGet, early_r535)
UNSUPPORTED(nvmlGpmMigSampleGet, early_r535)
UNSUPPORTED(nvmlGpmQueryIfStreamingEnabled, early_r535)
NVML_EXPORT nvmlGpmSampleAlloc(void*) { return NVML_ERROR_NOT_SUPPORTED; }
NVML_EXPORT nvmlGpmSampleFree(void*) { return NVML_ERROR_NOT_SUPPORTED; }
NVML_EXPORT nvmlGpmMetricsGet(void*) { return NVML_ERROR_NOT_SUPPORTED; }

NVML_EXPORT nvmlGpmQueryDeviceSupport(nvmlDevice_t handle, nvmlGpmSupport_t* out) {
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::board, out, Symbols::early_r535);
  if (result != NVML_SUCCESS) return result;
  if (out->version != kGpmSupportV1Tag) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  out->isSupportedDevice = 0;
  return NVML_SUCCESS;
}
