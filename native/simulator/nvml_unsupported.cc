// Getters of what no simulated GPU has: virtual GPUs, Windows' driver models, confidential computing, profiling (GPM).
// Programs that ask for them shall hear so, and not that the driver is older than they think.
#include "simulator/nvml.h"

using namespace simulator;

namespace {

nvmlReturn_t not_supported(nvmlDevice_t handle, Symbols since) {
  Question question;
  const nvmlReturn_t result = question.ask(handle, Call::Board, since);
  return result == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : result;
}

}  // namespace

// Whatever follows the handle is left alone.
#define UNSUPPORTED(name, since) \
  NVML_EXPORT name(nvmlDevice_t handle) { return not_supported(handle, Symbols::since); }

UNSUPPORTED(nvmlDeviceGetAPIRestriction, Oldest)
UNSUPPORTED(nvmlDeviceGetAccountingStats, Oldest)
UNSUPPORTED(nvmlDeviceGetActiveVgpus, Oldest)
UNSUPPORTED(nvmlDeviceGetBridgeChipInfo, Oldest)
UNSUPPORTED(nvmlDeviceGetCreatableVgpus, Oldest)
UNSUPPORTED(nvmlDeviceGetDriverModel, Oldest)
UNSUPPORTED(nvmlDeviceGetGpuOperationMode, Oldest)
UNSUPPORTED(nvmlDeviceGetGridLicensableFeatures_v2, Oldest)
UNSUPPORTED(nvmlDeviceGetNvLinkUtilizationControl, Oldest)
UNSUPPORTED(nvmlDeviceGetNvLinkUtilizationCounter, Oldest)
UNSUPPORTED(nvmlDeviceGetSamples, Oldest)
UNSUPPORTED(nvmlDeviceGetSupportedVgpus, Oldest)
UNSUPPORTED(nvmlDeviceGetVgpuMetadata, Oldest)
UNSUPPORTED(nvmlDeviceGetVgpuProcessUtilization, Oldest)
UNSUPPORTED(nvmlDeviceGetVgpuUtilization, Oldest)

UNSUPPORTED(nvmlDeviceGetClkMonStatus, Old)
UNSUPPORTED(nvmlDeviceGetGpuInstanceById, Old)
UNSUPPORTED(nvmlDeviceGetGpuInstancePossiblePlacements, Old)
UNSUPPORTED(nvmlDeviceGetGpuInstancePossiblePlacements_v2, Old)
UNSUPPORTED(nvmlDeviceGetGpuInstanceProfileInfo, Old)
UNSUPPORTED(nvmlDeviceGetGpuInstanceRemainingCapacity, Old)
UNSUPPORTED(nvmlDeviceGetGpuInstances, Old)
UNSUPPORTED(nvmlDeviceGetGridLicensableFeatures, Old)
UNSUPPORTED(nvmlDeviceGetGridLicensableFeatures_v3, Old)
UNSUPPORTED(nvmlDeviceGetGridLicensableFeatures_v4, Old)
UNSUPPORTED(nvmlDeviceGetHostVgpuMode, Old)
UNSUPPORTED(nvmlDeviceGetPgpuMetadataString, Old)

UNSUPPORTED(nvmlDeviceGetConfComputeGpuAttestationReport, EarlyR535)
UNSUPPORTED(nvmlDeviceGetConfComputeGpuCertificate, EarlyR535)
UNSUPPORTED(nvmlDeviceGetConfComputeProtectedMemoryUsage, EarlyR535)
UNSUPPORTED(nvmlDeviceGetDynamicPstatesInfo, EarlyR535)
UNSUPPORTED(nvmlDeviceGetGpcClkMinMaxVfOffset, EarlyR535)
UNSUPPORTED(nvmlDeviceGetGpcClkVfOffset, EarlyR535)
UNSUPPORTED(nvmlDeviceGetGpuFabricInfo, EarlyR535)
UNSUPPORTED(nvmlDeviceGetGpuInstanceProfileInfoV, EarlyR535)
UNSUPPORTED(nvmlDeviceGetLastBBXFlushTime, EarlyR535)
UNSUPPORTED(nvmlDeviceGetMemClkMinMaxVfOffset, EarlyR535)
UNSUPPORTED(nvmlDeviceGetMemClkVfOffset, EarlyR535)
UNSUPPORTED(nvmlDeviceGetSramEccErrorStatus, EarlyR535)
UNSUPPORTED(nvmlDeviceGetThermalSettings, EarlyR535)
UNSUPPORTED(nvmlDeviceGetVgpuCapabilities, EarlyR535)
UNSUPPORTED(nvmlDeviceGetVgpuSchedulerCapabilities, EarlyR535)
UNSUPPORTED(nvmlDeviceGetVgpuSchedulerLog, EarlyR535)
UNSUPPORTED(nvmlDeviceGetVgpuSchedulerState, EarlyR535)

UNSUPPORTED(nvmlDeviceGetAddressingMode, Current)
UNSUPPORTED(nvmlDeviceGetC2cModeInfoV, Current)
UNSUPPORTED(nvmlDeviceGetCapabilities, Current)
UNSUPPORTED(nvmlDeviceGetClockOffsets, Current)
UNSUPPORTED(nvmlDeviceGetCoolerInfo, Current)
UNSUPPORTED(nvmlDeviceGetCurrentClockFreqs, Current)
UNSUPPORTED(nvmlDeviceGetDramEncryptionMode, Current)
UNSUPPORTED(nvmlDeviceGetDriverModel_v2, Current)
UNSUPPORTED(nvmlDeviceGetGpuFabricInfoV, Current)
UNSUPPORTED(nvmlDeviceGetGpuInstanceProfileInfoByIdV, Current)
UNSUPPORTED(nvmlDeviceGetNvLinkInfo, Current)
UNSUPPORTED(nvmlDeviceGetNvlinkBwMode, Current)
UNSUPPORTED(nvmlDeviceGetNvlinkSupportedBwModes, Current)
UNSUPPORTED(nvmlDeviceGetPdi, Current)
UNSUPPORTED(nvmlDeviceGetPerformanceModes, Current)
UNSUPPORTED(nvmlDeviceGetPlatformInfo, Current)
UNSUPPORTED(nvmlDeviceGetPowerMizerMode_v1, Current)
UNSUPPORTED(nvmlDeviceGetProcessesUtilizationInfo, Current)
UNSUPPORTED(nvmlDeviceGetRepairStatus, Current)
UNSUPPORTED(nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts, Current)
UNSUPPORTED(nvmlDeviceGetVgpuHeterogeneousMode, Current)
UNSUPPORTED(nvmlDeviceGetVgpuInstancesUtilizationInfo, Current)
UNSUPPORTED(nvmlDeviceGetVgpuProcessesUtilizationInfo, Current)
UNSUPPORTED(nvmlDeviceGetVgpuTypeCreatablePlacements, Current)
UNSUPPORTED(nvmlDeviceGetVgpuTypeSupportedPlacements, Current)

UNSUPPORTED(nvmlGpmSampleGet, EarlyR535)
UNSUPPORTED(nvmlGpmMigSampleGet, EarlyR535)
UNSUPPORTED(nvmlGpmQueryIfStreamingEnabled, EarlyR535)
NVML_EXPORT nvmlGpmSampleAlloc(void*) { return NVML_ERROR_NOT_SUPPORTED; }
NVML_EXPORT nvmlGpmSampleFree(void*) { return NVML_ERROR_NOT_SUPPORTED; }
NVML_EXPORT nvmlGpmMetricsGet(void*) { return NVML_ERROR_NOT_SUPPORTED; }

NVML_EXPORT nvmlGpmQueryDeviceSupport(nvmlDevice_t handle, nvmlGpmSupport_t* out) {
  Question question;
  const nvmlReturn_t result = question.ask_gpu(handle, Call::Board, out, Symbols::EarlyR535);
  if (result != NVML_SUCCESS) return result;
  if (out->version != kGpmSupportV1Tag) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  out->isSupportedDevice = 0;
  return NVML_SUCCESS;
}
