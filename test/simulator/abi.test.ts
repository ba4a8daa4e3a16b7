import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { CONTEXT, libraries, NO_INSTANCE, Simulated } from '../support/simulated.ts';

const nvml = join(libraries, 'libnvidia-ml.so.1');
const cuda = join(libraries, 'libcuda.so.1');
const machine = new Simulated(2);
afterAll(() => machine[Symbol.dispose]());

function symbols(library: string, ...options: string[]): string[] {
  const lines = execFileSync('nm', ['-D', ...options, library], { encoding: 'utf8' })
    .trim()
    .split('\n');
  return lines.map((line) => line.trim().split(/\s+/).at(-1) as string);
}

// As in NVML's and CUDA's headers: the names that a program linked today and ten years ago asks for.
const NVML = `Init Init_v2 InitWithFlags Shutdown ErrorString
  SystemGetDriverVersion SystemGetNVMLVersion SystemGetCudaDriverVersion SystemGetCudaDriverVersion_v2
  DeviceGetCount DeviceGetCount_v2 DeviceGetHandleByIndex DeviceGetHandleByIndex_v2 DeviceGetHandleByUUID
  DeviceGetHandleByPciBusId DeviceGetHandleByPciBusId_v2 DeviceGetIndex DeviceGetUUID DeviceGetName
  DeviceGetPciInfo DeviceGetPciInfo_v2 DeviceGetPciInfo_v3 DeviceGetMemoryInfo DeviceGetMemoryInfo_v2
  DeviceGetPowerUsage DeviceGetEnforcedPowerLimit DeviceGetPowerManagementLimit DeviceGetUtilizationRates
  DeviceGetTemperature DeviceGetTemperatureV DeviceGetComputeMode DeviceGetDisplayActive DeviceGetDisplayMode
  DeviceGetPersistenceMode DeviceGetMinorNumber DeviceGetMigMode DeviceGetMaxMigDeviceCount
  DeviceGetMigDeviceHandleByIndex DeviceIsMigDeviceHandle DeviceGetDeviceHandleFromMigDeviceHandle
  DeviceGetGpuInstanceId DeviceGetComputeInstanceId DeviceGetAttributes_v2
  DeviceGetComputeRunningProcesses DeviceGetComputeRunningProcesses_v2 DeviceGetComputeRunningProcesses_v3
  DeviceGetGraphicsRunningProcesses DeviceGetGraphicsRunningProcesses_v2 DeviceGetGraphicsRunningProcesses_v3
  DeviceGetMPSComputeRunningProcesses DeviceGetMPSComputeRunningProcesses_v3
  DeviceGetRunningProcessDetailList DeviceGetConfComputeMemSizeInfo DeviceGetFieldValues
  DeviceGetTopologyCommonAncestor
  DeviceGetBrand DeviceGetArchitecture DeviceGetSerial DeviceGetBoardId DeviceGetVbiosVersion DeviceGetInforomVersion
  DeviceGetInforomImageVersion DeviceGetCudaComputeCapability DeviceGetNumGpuCores DeviceGetMemoryBusWidth
  DeviceGetHandleBySerial DeviceGetPciInfoExt DeviceGetCpuAffinity DeviceGetMemoryAffinity DeviceGetNumaNodeId
  DeviceGetTopologyNearestGpus SystemGetTopologyGpuSet SystemGetHicVersion SystemGetDriverBranch UnitGetCount
  DeviceGetBAR1MemoryInfo DeviceGetEccMode DeviceGetTotalEccErrors DeviceGetDetailedEccErrors
  DeviceGetMemoryErrorCounter DeviceGetRetiredPages DeviceGetRetiredPages_v2 DeviceGetRemappedRows
  DeviceGetRowRemapperHistogram DeviceGetPowerManagementLimitConstraints DeviceGetPowerManagementDefaultLimit
  DeviceGetTotalEnergyConsumption DeviceGetTemperatureThreshold DeviceGetFanSpeed DeviceGetFanSpeed_v2
  DeviceGetNumFans DeviceGetClockInfo DeviceGetMaxClockInfo DeviceGetApplicationsClock DeviceGetClock
  DeviceGetSupportedMemoryClocks DeviceGetSupportedGraphicsClocks DeviceGetPerformanceState
  DeviceGetCurrentClocksThrottleReasons DeviceGetCurrentClocksEventReasons DeviceGetMaxPcieLinkGeneration
  DeviceGetCurrPcieLinkGeneration DeviceGetMaxPcieLinkWidth DeviceGetCurrPcieLinkWidth DeviceGetPcieThroughput
  DeviceGetPcieReplayCounter DeviceGetNvLinkState DeviceGetNvLinkRemotePciInfo_v2 DeviceGetNvLinkRemoteDeviceType
  DeviceGetP2PStatus DeviceGetEncoderUtilization DeviceGetDecoderUtilization DeviceGetEncoderSessions
  DeviceGetProcessUtilization DeviceGetDriverModel DeviceGetAccountingMode DeviceGetSupportedEventTypes
  DeviceRegisterEvents EventSetCreate EventSetWait EventSetWait_v2 EventSetFree GpmQueryDeviceSupport`;
const CUDA = `Init DriverGetVersion DeviceGetCount DeviceGet DeviceGetName DeviceGetUuid DeviceGetUuid_v2
  DeviceGetPCIBusId DeviceGetAttribute DeviceTotalMem DeviceTotalMem_v2 DevicePrimaryCtxRetain
  DevicePrimaryCtxRelease DevicePrimaryCtxRelease_v2 DevicePrimaryCtxGetState DevicePrimaryCtxReset
  DevicePrimaryCtxReset_v2 CtxCreate CtxCreate_v2 CtxDestroy CtxDestroy_v2 CtxPushCurrent CtxPushCurrent_v2
  CtxPopCurrent CtxPopCurrent_v2 CtxSetCurrent CtxGetCurrent CtxGetDevice CtxSynchronize MemAlloc MemAlloc_v2
  MemFree MemFree_v2 MemGetInfo MemGetInfo_v2 GetErrorName GetErrorString`;

test.each([
  ['nvml', nvml, NVML],
  ['cu', cuda, CUDA],
])('lib%s exports the expected functions, and nothing but them', (prefix, library, names) => {
  const exported = symbols(library, '--defined-only');
  expect(exported).toEqual(expect.arrayContaining(names.split(/\s+/).map((name) => prefix + name)));
  expect(exported.filter((name) => !name.startsWith(prefix))).toEqual([]);
});

test.each([nvml, cuda])('%s has its soname, and needs no new library', (library) => {
  const dynamic = execFileSync('readelf', ['-dW', library], { encoding: 'utf8' });
  expect(dynamic).toContain(`soname: [${library.slice(library.lastIndexOf('/') + 1)}]`);
  const newer = (symbol: string) => {
    const [, minor] = symbol.match(/@GLIBC_2\.(\d+)/) ?? symbol.match(/@GLIBCXX_3\.4\.(\d+)/) ?? [];
    return Number(minor) > (symbol.includes('GLIBCXX') ? 21 : 28);
  };
  const sanitized = dynamic.includes('san.so');
  expect(sanitized ? [] : symbols(library, '--undefined-only').filter(newer)).toEqual([]);
});

// The structures in fixtures/nvml.py are written from the published interface and check their sizes themselves.
test('every form of every structure carries the same numbers', async () => {
  const session = machine.session();
  expect(await session.do('[cuda.use(1, 2**30), nvml.init()]')).toEqual([0, 0]);
  const used = CONTEXT + 2 ** 30;
  const v2 = await session.do('nvml.memory_v2(1)');
  expect(v2.used).toBe(used);
  expect(v2.free + v2.used + v2.reserved).toBe(v2.total);
  const v1 = await session.do('nvml.memory(1)');
  expect(v1).toEqual({ total: v2.total, free: v2.free, used: v2.used + v2.reserved });

  const entry = { pid: session.pid, memory: used, gi: NO_INSTANCE, ci: NO_INSTANCE };
  expect(await session.do('nvml.processes(1)')).toEqual([entry]);
  expect(await session.do('nvml.processes(1, suffix="_v2")')).toEqual([entry]);
  expect(await session.do('nvml.processes(1, suffix="")')).toEqual([{ pid: session.pid, memory: used }]);
  expect(await session.do('nvml.details(1)')).toEqual([{ pid: session.pid, memory: used }]);
  expect(await session.do('nvml.pci(1)')).toEqual({
    busId: '00000000:02:00.0',
    legacy: '0000:02:00.0',
    bus: 2,
  });

  machine.set('gpu=1', 'power=123.456', 'temperature=77', 'utilization=42');
  expect(await session.do('nvml.power(1)')).toEqual([0, 123_456]);
  expect(await session.do('nvml.fields(1, 185, 186, 1)')).toEqual([
    [0, 1, 123_456],
    [0, 1, 123_456],
    [3, 1, 0],
  ]);
  expect(await session.do('nvml.temperature_v(1)')).toEqual([0, 77]);
  expect(await session.do('nvml.temperature(1)')).toEqual([0, 77]);
  expect(await session.do('nvml.utilization(1)')).toEqual([0, 42]);
});

test('every other structure carries the numbers of its model', async () => {
  const session = machine.session();
  await session.do('nvml.init()');
  expect(await session.do('nvml.structure("PciInfoExt", 1, nvml.PciExt)')).toMatchObject({
    busId: '00000000:02:00.0',
    bus: 2,
    baseClass: 3,
    subClass: 2,
  });
  const bar1 = await session.do('nvml.structure("BAR1MemoryInfo", 1, nvml.Bar1)');
  expect(bar1.total).toBe(128 * 2 ** 30);
  expect(bar1.free + bar1.used).toBe(bar1.total);
  expect(await session.do('nvml.structure("DetailedEccErrors", 1, nvml.EccErrors, 0, 1)')).toEqual({
    l1Cache: 0,
    l2Cache: 0,
    deviceMemory: 0,
    registerFile: 0,
  });
  expect(await session.do('nvml.structure("RowRemapperHistogram", 1, nvml.RowHistogram)')).toEqual({
    max: 640,
    high: 0,
    partial: 0,
    low: 0,
    none: 0,
  });
  expect(await session.do('nvml.structure("ViolationStatus", 1, nvml.Violation, 0)["violation"]')).toBe(0);
  expect(await session.do('nvml.fields(1, 82, 83, 91)')).toEqual([
    [0, 1, 36 + 47],
    [0, 3, expect.any(Number)],
    [3, 1, 0],
  ]);
  expect(await session.do('nvml.branch()')).toBe('r580_00');
  const support = 'nvml.library.nvmlGpmQueryDeviceSupport(nvml.kept(1), nvml.byref(gpm))';
  await session.do('gpm = nvml.GpmSupport(version=0x01000008, isSupported=7)');
  expect(await session.do(`[${support}, gpm.isSupported]`)).toEqual([0, 0]);
});

test('wrong versions of structures are told apart', async () => {
  const session = machine.session();
  await session.do('nvml.init()');
  expect(await session.do('nvml.memory_v2(0, version=0)')).toBe(25);
  expect(await session.do('nvml.temperature_v(0, version=1)')).toEqual([25, 0]);
  expect(await session.do('nvml.details(0, version=7)')).toBe(25);
  for (const [function_, structure] of [
    ['PciInfoExt', 'PciExt'],
    ['MarginTemperature', 'Margin'],
    ['FanSpeedRPM', 'FanInfo'],
  ])
    expect(await session.do(`nvml.structure("${function_}", 0, nvml.${structure}, version=2)`)).toEqual({
      code: 25,
    });
});

test('initialisation is counted', async () => {
  const session = machine.session();
  expect(await session.do('nvml.call("nvmlShutdown")')).toBe(1);
  expect(await session.do('nvml.count()')).toBe(-1);
  expect(await session.do('nvml.handle_code(0)')).toBe(1);
  expect(await session.do('nvml.system("DriverVersion")')).toBe(1);
  expect(await session.do('[nvml.init(), nvml.init("nvmlInit"), nvml.library.nvmlInitWithFlags(3)]')).toEqual(
    [0, 0, 0],
  );
  expect(await session.do('nvml.library.nvmlInitWithFlags(8)')).toBe(2);
  expect(await session.do('[nvml.power(0)[0], nvml.count(), nvml.count("")]')).toEqual([0, 2, 2]);
  expect(await session.do('[nvml.shutdown(), nvml.shutdown(), nvml.power(0)[0]]')).toEqual([0, 0, 0]);
  expect(await session.do('[nvml.shutdown(), nvml.power(0)[0], nvml.shutdown()]')).toEqual([0, 1, 1]);
  // Handles of before are good again.
  expect(await session.do('[nvml.init(), nvml.power(0)[0]]')).toEqual([0, 0]);
});

test('wrong arguments are refused', async () => {
  const session = machine.session();
  await session.do('nvml.init()');
  expect(await session.do('nvml.handle_code(2)')).toBe(2);
  expect(await session.do('nvml.library.nvmlDeviceGetIndex(nvml.c_void_p(12345), None)')).toBe(2);
  expect(await session.do('nvml.library.nvmlDeviceGetIndex(None, None)')).toBe(2);
  // Inside the library's own memory, but no handle.
  expect(
    await session.do('nvml.library.nvmlDeviceGetIndex(nvml.c_void_p(nvml.handle(0).value + 1), None)'),
  ).toBe(2);
  // A whole GPU's handle is none of an instance that doesn't exist.
  expect(
    await session.do('nvml.library.nvmlDeviceGetIndex(nvml.c_void_p(nvml.handle(0).value + 16), None)'),
  ).toBe(2);
  expect(await session.do('nvml.library.nvmlDeviceGetMemoryInfo(nvml.kept(0), None)')).toBe(2);
  expect(await session.do('nvml.text("GetUUID", 0, 8)')).toBe(7);
  await expect(session.do('nvml.handle("GPU-unknown")')).rejects.toThrow('Failed: 6');
  // The library's texts, not nvml.h's
  expect(await session.do('[nvml.error_string(code) for code in (0, 9, 15, 18, 29, 30, -1, 999)]')).toEqual([
    'Success',
    'Driver Not Loaded',
    'GPU is lost',
    'Driver/library version mismatch',
    'Resource not in correct state to perform requested operation',
    'Unknown Error',
    'Unknown Error',
    'Unknown Error',
  ]);
  expect(await session.do('[cuda.error(46)[1], cuda.error(12345)]')).toEqual([
    'CUDA_ERROR_DEVICE_UNAVAILABLE',
    [1, null, null],
  ]);
});

test('a list that is too small says how long it is', async () => {
  const session = machine.session();
  const other = machine.session();
  await session.do('nvml.init()');
  expect(await session.do('nvml.process_count(0)')).toEqual([0, 0]);
  await session.do('cuda.use(0)');
  await other.do('cuda.use(0)');
  expect(await session.do('nvml.process_count(0)')).toEqual([7, 2]);
  expect(await session.do('nvml.process_count(0, suffix="")')).toEqual([7, 2]);
  expect(await session.do('nvml.processes(0, room=1)')).toBe(7);
  expect(await session.do('len(nvml.processes(0, room=2))')).toBe(2);
});

test('GPUs are found by index, UUID and bus', async () => {
  const session = machine.session();
  await session.do('nvml.init()');
  const uuid = 'GPU-00000000-0000-4000-8000-000000000001';
  expect(await session.do('nvml.text("GetUUID", 1)')).toBe(uuid);
  expect(await session.do('nvml.text("GetName", 1)')).toBe('Simulated GPU');
  expect(await session.do(`nvml.number("GetIndex", "${uuid}")`)).toEqual([0, 1]);
  expect(await session.do('nvml.number("GetMinorNumber", 1)')).toEqual([0, 1]);
  const byBus =
    'out = nvml.c_void_p(); code = nvml.library.nvmlDeviceGetHandleByPciBusId_v2(b"0000:02:00.0", nvml.byref(out))';
  await session.do(byBus);
  expect(await session.do('[code, out.value == nvml.handle(1).value]')).toEqual([0, true]);
});
