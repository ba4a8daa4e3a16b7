// The part of NVML's binary interface that is simulated. Written down a second time, apart from the client's
// headers, so that a slip in either shows.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

typedef struct nvmlDevice_st* nvmlDevice_t;
typedef struct nvmlEventSet_st* nvmlEventSet_t;
typedef int nvmlReturn_t;

enum {
  NVML_SUCCESS = 0,
  NVML_ERROR_UNINITIALIZED = 1,
  NVML_ERROR_INVALID_ARGUMENT = 2,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_NO_PERMISSION = 4,
  NVML_ERROR_NOT_FOUND = 6,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
  NVML_ERROR_DRIVER_NOT_LOADED = 9,
  NVML_ERROR_TIMEOUT = 10,
  NVML_ERROR_FUNCTION_NOT_FOUND = 13,
  NVML_ERROR_GPU_IS_LOST = 15,
  NVML_ERROR_RESET_REQUIRED = 16,
  NVML_ERROR_OPERATING_SYSTEM = 17,
  NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
  NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
  NVML_ERROR_DEPRECATED = 26,
  NVML_ERROR_UNKNOWN = 999
};

typedef struct {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;  // includes what is reserved
} nvmlMemory_t;

typedef struct {
  unsigned int version;
  unsigned long long total;
  unsigned long long reserved;
  unsigned long long free;
  unsigned long long used;  // without what is reserved
} nvmlMemory_v2_t;

typedef struct {
  unsigned int pid;
  unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct {
  unsigned int pid;
  unsigned long long usedGpuMemory;
  unsigned int gpuInstanceId;
  unsigned int computeInstanceId;
} nvmlProcessInfo_v2_t;

// Written by the _v3 functions of early R535 drivers; also the entries of nvmlProcessDetailList_t.
typedef struct {
  unsigned int pid;
  unsigned long long usedGpuMemory;
  unsigned int gpuInstanceId;
  unsigned int computeInstanceId;
  unsigned long long usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;

typedef struct {
  unsigned int version;
  unsigned int mode;  // 0 compute, 1 graphics, 2 MPS
  unsigned int numProcArrayEntries;
  nvmlProcessDetail_v1_t* procArray;
} nvmlProcessDetailList_v1_t;

typedef struct {
  unsigned long long protectedMemSizeKib;
  unsigned long long unprotectedMemSizeKib;
} nvmlConfComputeMemSizeInfo_t;

typedef struct {
  char busIdLegacy[16];
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int pciDeviceId;
  unsigned int pciSubSystemId;
  char busId[32];
} nvmlPciInfo_t;

typedef struct {
  char busId[16];
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int pciDeviceId;
  unsigned int pciSubSystemId;
  unsigned int reserved[4];
} nvmlPciInfo_v2_t;

typedef struct {
  char busId[16];
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int pciDeviceId;
} nvmlPciInfo_v1_t;

typedef struct {
  unsigned int gpu;
  unsigned int memory;
} nvmlUtilization_t;

typedef struct {
  unsigned int version;
  unsigned int sensorType;
  int temperature;
} nvmlTemperature_v1_t;

typedef union {
  double dVal;
  unsigned int uiVal;
  unsigned long ulVal;
  unsigned long long ullVal;
  long long sllVal;
} nvmlValue_t;

typedef struct {
  unsigned int fieldId;
  unsigned int scopeId;
  long long timestamp;
  long long latencyUsec;
  unsigned int valueType;
  nvmlReturn_t nvmlReturn;
  nvmlValue_t value;
} nvmlFieldValue_t;

typedef struct {
  unsigned int multiprocessorCount;
  unsigned int sharedCopyEngineCount;
  unsigned int sharedDecoderCount;
  unsigned int sharedEncoderCount;
  unsigned int sharedJpegCount;
  unsigned int sharedOfaCount;
  unsigned int gpuInstanceSliceCount;
  unsigned int computeInstanceSliceCount;
  unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

typedef struct {
  unsigned int version;
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int pciDeviceId;
  unsigned int pciSubSystemId;
  unsigned int baseClass;
  unsigned int subClass;
  char busId[32];
} nvmlPciInfoExt_v1_t;

typedef struct {
  unsigned long long bar1Total;
  unsigned long long bar1Free;
  unsigned long long bar1Used;
} nvmlBAR1Memory_t;

typedef struct {
  unsigned long long l1Cache;
  unsigned long long l2Cache;
  unsigned long long deviceMemory;
  unsigned long long registerFile;
} nvmlEccErrorCounts_t;

typedef struct {
  unsigned int max;
  unsigned int high;
  unsigned int partial;
  unsigned int low;
  unsigned int none;
} nvmlRowRemapperHistogramValues_t;

typedef struct {
  unsigned int pid;
  unsigned long long timeStamp;  // microseconds
  unsigned int smUtil;
  unsigned int memUtil;
  unsigned int encUtil;
  unsigned int decUtil;
} nvmlProcessUtilizationSample_t;

typedef struct {
  nvmlDevice_t device;
  unsigned long long eventType;
  unsigned long long eventData;
} nvmlEventData_v1_t;

typedef struct {
  nvmlDevice_t device;
  unsigned long long eventType;
  unsigned long long eventData;
  unsigned int gpuInstanceId;
  unsigned int computeInstanceId;
} nvmlEventData_t;

typedef struct {
  unsigned long long referenceTime;
  unsigned long long violationTime;
} nvmlViolationTime_t;

typedef struct {
  unsigned int version;
  int marginTemperature;
} nvmlMarginTemperature_v1_t;

typedef struct {
  unsigned int version;
  unsigned int fan;
  unsigned int speed;
} nvmlFanSpeedInfo_v1_t;

typedef struct {
  unsigned int sessionsCount;
  unsigned int averageFPS;
  unsigned int averageLatency;
} nvmlFBCStats_t;

typedef struct {
  unsigned int version;
  unsigned int isSupportedDevice;
} nvmlGpmSupport_t;

typedef struct {
  unsigned int version;
  char branch[80];
} nvmlSystemDriverBranchInfo_v1_t;

}  // extern "C"

static_assert(sizeof(nvmlMemory_t) == 24 && offsetof(nvmlMemory_t, used) == 16, "nvmlMemory_t");
static_assert(sizeof(nvmlMemory_v2_t) == 40 && offsetof(nvmlMemory_v2_t, used) == 32, "nvmlMemory_v2_t");
static_assert(sizeof(nvmlProcessInfo_v1_t) == 16 && sizeof(nvmlProcessInfo_v2_t) == 24, "nvmlProcessInfo_t");
static_assert(sizeof(nvmlProcessDetail_v1_t) == 32, "nvmlProcessDetail_v1_t");
static_assert(sizeof(nvmlPciInfo_t) == 68 && offsetof(nvmlPciInfo_t, busId) == 36, "nvmlPciInfo_t");
static_assert(sizeof(nvmlUtilization_t) == 8 && sizeof(nvmlTemperature_v1_t) == 12, "nvmlUtilization_t");
static_assert(sizeof(nvmlFieldValue_t) == 40 && offsetof(nvmlFieldValue_t, value) == 32, "nvmlFieldValue_t");
static_assert(sizeof(nvmlPciInfoExt_v1_t) == 64 && sizeof(nvmlBAR1Memory_t) == 24, "nvmlPciInfoExt_t");
static_assert(sizeof(nvmlProcessUtilizationSample_t) == 32, "nvmlProcessUtilizationSample_t");
static_assert(sizeof(nvmlEventData_v1_t) == 24 && sizeof(nvmlEventData_t) == 32, "nvmlEventData_t");

constexpr unsigned kMemoryV2Tag = 0x02000028;
constexpr unsigned kTemperatureV1Tag = 0x0100000c;
constexpr unsigned kProcessDetailListV1Tag = sizeof(nvmlProcessDetailList_v1_t) | 1u << 24;
constexpr unsigned kPciInfoExtV1Tag = sizeof(nvmlPciInfoExt_v1_t) | 1u << 24;
constexpr unsigned kMarginTemperatureV1Tag = sizeof(nvmlMarginTemperature_v1_t) | 1u << 24;
constexpr unsigned kFanSpeedInfoV1Tag = sizeof(nvmlFanSpeedInfo_v1_t) | 1u << 24;
constexpr unsigned kGpmSupportV1Tag = sizeof(nvmlGpmSupport_t) | 1u << 24;
constexpr unsigned kDriverBranchV1Tag = sizeof(nvmlSystemDriverBranchInfo_v1_t) | 1u << 24;
