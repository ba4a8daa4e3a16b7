import { execFileSync } from 'node:child_process';
import { describe, expect, test } from 'vitest';
import { isThere } from '../support/processes.ts';
import { CONTEXT, GiB, MiB, NO_INSTANCE, Simulated, tool } from '../support/simulated.ts';

const names: string[] = JSON.parse(execFileSync(tool, ['machines', '--json'], { encoding: 'utf8' })).map(
  (machine: { name: string }) => machine.name,
);

test.each([...names, '1', '4', '64'])('NVML, CUDA and the witness agree about %s', async (name) => {
  using machine = new Simulated(name);
  const shown = machine.show();
  const session = machine.session();
  await session.do('nvml.init()');
  expect(await session.do('nvml.count()')).toBe(shown.gpus.length);
  expect(await session.do('[nvml.text("GetUUID", i) for i in range(nvml.count())]')).toEqual(
    shown.gpus.map((gpu: { uuid: string }) => gpu.uuid),
  );
  expect(await session.do('[nvml.pci(i)["busId"] for i in range(nvml.count())]')).toEqual(
    shown.gpus.map((gpu: { pciBusId: string }) => gpu.pciBusId),
  );
  if (name !== 'jetson') {
    expect(await session.do('[nvml.memory(i)["free"] for i in range(nvml.count())]')).toEqual(
      shown.gpus.map((gpu: { memory: { freeBytes: number } }) => gpu.memory.freeBytes),
    );
  }
  expect(await session.do('nvml.system("DriverVersion")')).toBe(shown.driverVersion);
  expect(await session.do('cuda.version()[1]')).toBe(shown.cudaVersion);
  // Unique, in the shape of a UUID, and in the order of the bus.
  const uuids = shown.gpus.flatMap((gpu: { uuid: string; migInstances: { uuid: string }[] }) => [
    gpu.uuid,
    ...gpu.migInstances.map((instance) => instance.uuid),
  ]);
  expect(new Set(uuids.map((uuid: string) => uuid.slice(-36))).size).toBe(uuids.length);
  for (const uuid of uuids) {
    expect(uuid.slice(-36)).toMatch(/^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$/);
    expect(uuid.slice(0, -36)).toMatch(name === 'jetson' ? /^$/ : /^(GPU|MIG)-$/);
  }
  const buses = shown.gpus.map((gpu: { pciBusId: string }) => gpu.pciBusId);
  expect(buses).toEqual([...new Set(buses)].sort());
  // And a process can use it.
  expect(await session.do('cuda.use(0, 2**20)')).toBe(0);
});

test('UUIDs are the same every time', () => {
  using first = new Simulated('h200x8');
  using second = new Simulated('h200x8');
  expect(first.show().gpus).toEqual(second.show().gpus);
  using plain = new Simulated(2);
  expect(plain.show().gpus[1].uuid).toBe('GPU-00000000-0000-4000-8000-000000000001');
});

test.each([
  ['h200x8', 8],
  ['h200x16', 16],
])('%s has as many GPUs as its name says', (name, count) => {
  using machine = new Simulated(name);
  const { gpus } = machine.show();
  expect(gpus.length).toBe(count);
  expect(gpus[0]).toMatchObject({ name: 'NVIDIA H200', powerLimitWatts: 700 });
});

test('a100x4-mig has instances with memory and processes', async () => {
  using machine = new Simulated('a100x4-mig');
  const session = machine.session();
  await session.do('nvml.init()');
  expect(await session.do('[nvml.mig_mode(i) for i in range(4)]')).toEqual([
    [0, 1, 1],
    [0, 1, 1],
    [0, 0, 0],
    [0, 0, 0],
  ]);
  // An empty slot among the instances.
  expect(await session.do('[nvml.mig_codes(i) for i in range(3)]')).toEqual([
    [0, 6, 0, 0, 0, 6, 6],
    Array(7).fill(0),
    [],
  ]);
  await expect(session.do('nvml.handle((2, 0))')).rejects.toThrow('Failed: 3');
  expect(await session.do('[nvml.text("GetName", (0, 2)), nvml.memory_v2((0, 2))["total"]]')).toEqual([
    'NVIDIA A100-SXM4-80GB MIG 2g.20gb',
    20 * GiB,
  ]);
  expect(await session.do('nvml.attributes((0, 2))')).toEqual({ slices: 2, memoryMB: 20 * 1024 });
  expect(await session.do('nvml.attributes(0)')).toBe(3);
  expect(await session.do('[nvml.number("IsMigDeviceHandle", d)[1] for d in (0, (0, 2))]')).toEqual([0, 1]);
  await session.do(
    'code = nvml.library.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvml.kept((0, 2)), nvml.byref(parent := nvml.c_void_p()))',
  );
  expect(await session.do('[code, parent.value == nvml.kept(0).value]')).toEqual([0, true]);
  expect(
    await session.do('[nvml.utilization(0)[0], nvml.utilization((0, 2))[0], nvml.power((0, 2))[0]]'),
  ).toEqual([3, 3, 3]);

  const { gpus } = machine.show();
  const [, instance] = gpus[0].migInstances;
  expect(instance).toMatchObject({ index: 2, profile: '2g.20gb', gpuInstanceId: 3, computeInstanceId: 0 });
  expect(await session.do(`nvml.kept("${instance.uuid}").value == nvml.kept((0, 2)).value`)).toBe(true);
  expect(
    await session.do(
      '[nvml.number("GetGpuInstanceId", (0, 2)), nvml.number("GetComputeInstanceId", (0, 2))]',
    ),
  ).toEqual([
    [0, 3],
    [0, 0],
  ]);
  expect(
    await session.do('[nvml.number("GetGpuInstanceId", 0)[0], nvml.number("GetIndex", (0, 2))[1]]'),
  ).toEqual([2, 2]);

  const user = machine.session({ environment: { CUDA_VISIBLE_DEVICES: instance.uuid } });
  expect(await user.do('[cuda.use(0, 2**30), cuda.count(), cuda.name(0)]')).toEqual([
    0,
    1,
    'NVIDIA A100-SXM4-80GB MIG 2g.20gb',
  ]);
  expect(await user.do('[cuda.uuid(0, prefix="MIG"), cuda.uuid(0, ""), cuda.total(0)[1]]')).toEqual([
    instance.uuid,
    gpus[0].uuid,
    20 * GiB,
  ]);
  const entry = { pid: user.pid, memory: CONTEXT + GiB, gi: 3, ci: 0 };
  expect(await session.do('[nvml.processes(0), nvml.processes((0, 2)), nvml.processes((0, 0))]')).toEqual([
    [entry],
    [entry],
    [],
  ]);
  expect(await session.do('[nvml.memory_v2(d)["used"] for d in (0, (0, 2), (0, 0))]')).toEqual([
    CONTEXT + GiB + 4 * MiB,
    CONTEXT + GiB,
    0,
  ]);
  expect(machine.show().gpus[0].processes).toMatchObject([{ pid: user.pid, migUuid: instance.uuid }]);
  expect(await user.do(`cuda.allocate(${19 * GiB})[0]`)).toBe(2);
  // Compute modes can't be changed with MIG on.
  machine.set('gpu=0', 'compute-mode=prohibited');
  expect(await session.do('[nvml.number("GetComputeMode", d) for d in (0, (0, 2))]')).toEqual([
    [0, 0],
    [0, 0],
  ]);
});

describe('desktops', () => {
  test('rtx4090x2-display has Xorg on both GPUs, and the display on one', async () => {
    using machine = new Simulated('rtx4090x2-display');
    const session = machine.session();
    await session.do('nvml.init()');
    expect(await session.do('[nvml.number("GetDisplayActive", i)[1] for i in (0, 1)]')).toEqual([1, 0]);
    const lists = await session.do('[nvml.processes(i, "Graphics") for i in (0, 1)]');
    expect(lists[0].map((each: { memory: number }) => each.memory / MiB)).toEqual([182, 64, 211]);
    expect(lists[1].map((each: { memory: number }) => each.memory / MiB)).toEqual([4]);
    expect(lists[0][0]).toMatchObject({ pid: lists[1][0].pid, gi: NO_INSTANCE, ci: NO_INSTANCE });
    expect(await session.do('nvml.pids(0)')).toEqual([]);
    expect(await session.do('[nvml.memory_v2(i)["used"] // 2**20 for i in (0, 1)]')).toEqual([
      182 + 64 + 211 + 12,
      4 + 4,
    ]);
    expect(await session.do(`nvml.process_name(${lists[0][0].pid})`)).toBe('/usr/lib/xorg/Xorg');
    expect(await session.do('[nvml.mig_mode(0)[0], nvml.number("GetPersistenceMode", 0)]')).toEqual([
      3,
      [0, 0],
    ]);
    // Never the pid of a real process here.
    expect(isThere(lists[0][0].pid)).toBe(false);
  });

  test('workstation has one GPU with a desktop', async () => {
    using machine = new Simulated('workstation');
    const session = machine.session();
    expect(await session.do('nvml.init() or [nvml.count(), nvml.text("GetName", 0)]')).toEqual([
      1,
      'NVIDIA RTX A4000',
    ]);
    expect(await session.do('len(nvml.pids(0, "Graphics"))')).toBe(3);
  });
});

test('mixed has a small GPU, which does not tell everything', async () => {
  using machine = new Simulated('mixed');
  const session = machine.session();
  await session.do('nvml.init()');
  expect(await session.do('[nvml.text("GetName", i) for i in range(3)]')).toEqual([
    'NVIDIA T400 4GB',
    'NVIDIA GeForce RTX 4090',
    'NVIDIA A100 80GB PCIe',
  ]);
  expect(await session.do('[nvml.power(i)[0] for i in range(3)]')).toEqual([3, 0, 0]);
});

describe('drivers of other times', () => {
  const form =
    `[nvml.processes(0, suffix=s) for s in ("_v3", "_v2", "")] + [nvml.details(0), nvml.conf_compute(0),
    nvml.memory_v2(0) if isinstance(nvml.memory_v2(0), int) else 0, nvml.temperature_v(0)[0], nvml.mig_mode(0)[0]]`.replaceAll(
      '\n',
      ' ',
    );
  const absent = 13;

  test('old-driver has no _v3, and no memory v2', async () => {
    using machine = new Simulated('old-driver');
    const session = machine.session();
    await session.do('[nvml.init(), cuda.use(0)]');
    const { pid } = session;
    expect(await session.do(form)).toEqual([
      absent,
      [{ pid, memory: CONTEXT, gi: NO_INSTANCE, ci: NO_INSTANCE }],
      [{ pid, memory: CONTEXT }],
      absent,
      absent,
      absent,
      absent,
      3,
    ]);
    expect(await session.do('nvml.memory(0)["used"]')).toBe(CONTEXT + 4 * MiB);
    expect(await session.do('nvml.temperature(0)')).toEqual([0, 33]);
  });

  test('oldest-driver has no suffixes at all', async () => {
    using machine = new Simulated('oldest-driver');
    const session = machine.session();
    await session.do('[nvml.init(), cuda.use(0)]');
    expect(await session.do(form)).toEqual([
      absent,
      absent,
      [{ pid: session.pid, memory: CONTEXT }],
      absent,
      absent,
      absent,
      absent,
      absent,
    ]);
  });

  test('early-r535 has entries of 32 bytes', async () => {
    using machine = new Simulated('early-r535');
    const session = machine.session();
    const other = machine.session();
    await session.do('[nvml.init(), cuda.use(0)]');
    await other.do('cuda.use(0, 2**30)');
    // The entries of 24 bytes that the name promises would make nonsense of the second process.
    const lists = await session.do('nvml.processes(0, entry=nvml.ProcessEarlyR535)');
    expect(lists.map((each: { pid: number; memory: number }) => [each.pid, each.memory])).toEqual(
      expect.arrayContaining([
        [session.pid, CONTEXT],
        [other.pid, CONTEXT + GiB],
      ]),
    );
    expect(
      await session.do('[nvml.details(0), nvml.conf_compute(0), len(nvml.processes(0, suffix="_v2"))]'),
    ).toEqual([absent, 0, 2]);
  });
});

test('wsl has no processes, and no utilization', async () => {
  using machine = new Simulated('wsl');
  const session = machine.session();
  await session.do('[nvml.init(), cuda.use(0)]');
  expect(
    await session.do(
      '[nvml.processes(0), nvml.processes(0, "Graphics"), nvml.details(0), nvml.utilization(0)[0]]',
    ),
  ).toEqual([3, 3, 3, 3]);
  expect(await session.do('[nvml.memory_v2(0)["used"], nvml.power(0)[0], nvml.temperature(0)[0]]')).toEqual([
    CONTEXT + 1126 * MiB,
    0,
    0,
  ]);
  expect(machine.witness(0)).toEqual([session.pid]);
});
