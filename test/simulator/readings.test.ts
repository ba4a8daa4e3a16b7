// Readings of a GPU beside its memory and processes: those that its model fixes, and those that follow from its programs.
import { afterAll, describe, expect, test } from 'vitest';
import { type Session, Simulated, until } from '../support/simulated.ts';

const UNSUPPORTED = { code: 3 };
const ABSENT = { code: 13 };

const machines: Simulated[] = [];
afterAll(() => {
  for (const machine of machines) machine[Symbol.dispose]();
});

async function open(name: string): Promise<{ machine: Simulated; session: Session }> {
  const machine = new Simulated(name);
  machines.push(machine);
  const session = machine.session();
  await session.do('nvml.init()');
  return { machine, session };
}

/** All that a program that monitors GPUs shows. */
async function readings(session: Session, gpu: number) {
  const [utilization, power, temperature, state, sm, memory, link, received, reasons] = await session.do(
    `[nvml.utilization(${gpu})[1], nvml.power(${gpu})[1] // 1000, nvml.temperature(${gpu})[1], nvml.ask("PerformanceState", ${gpu}),
      nvml.ask("ClockInfo", ${gpu}, 1), nvml.ask("ClockInfo", ${gpu}, 2), nvml.ask("CurrPcieLinkGeneration", ${gpu}),
      nvml.ask("PcieThroughput", ${gpu}, 1), nvml.ask("CurrentClocksEventReasons", ${gpu}, type=nvml.c_ulonglong)]`.replaceAll(
      '\n',
      ' ',
    ),
  );
  return { utilization, power, temperature, state, sm, memory, link, received, reasons };
}

describe('readings follow what runs on the GPU', () => {
  const idle = {
    utilization: 0,
    power: 60,
    temperature: 30,
    state: 8,
    sm: 345,
    memory: 405,
    link: 1,
    received: 0,
    reasons: 1,
  };

  test('a process that computes raises clocks, power and heat, until it ends', async () => {
    const { machine, session } = await open('2');
    expect(await readings(session, 0)).toEqual(idle);
    const child = await machine.occupy('0', '--utilization', '80');
    expect(await readings(session, 0)).toEqual({
      utilization: 80,
      power: 60 + (560 - 60) * 0.8,
      temperature: 30 + Math.floor(36 * 0.8),
      state: 0,
      sm: 1755,
      memory: 2619,
      link: 5,
      received: expect.closeTo(0.04 * 64e6, -6),
      reasons: 0,
    });
    expect(await readings(session, 1)).toEqual(idle);
    expect(await session.do('[nvml.process_samples(0), nvml.process_samples(1)]')).toEqual([
      [{ pid: child.pid, sm: 80 }],
      6,
    ]);
    expect(machine.show().gpus[0]).toMatchObject({ utilizationPercent: 80, powerWatts: 460 });
    child.kill('SIGKILL');
    await until(async () => (await readings(session, 0)).state === 8);
    expect(await readings(session, 0)).toEqual(idle);
  });

  test('several processes share what there is, and so do those on MIG instances', async () => {
    const { machine, session } = await open('a100x4-mig');
    for (const on of ['2', '2']) await machine.occupy(on, '--utilization', '70');
    expect(await session.do('[nvml.utilization(2)[1], nvml.power(2)[1]]')).toEqual([100, 340_000]);
    expect(await session.do('len(nvml.process_samples(2))')).toBe(2);
    // Two of seven slices.
    await machine.occupy('0:2', '--utilization', '100');
    expect(await session.do('nvml.power(0)[1]')).toBe(58_000 + (340_000 - 58_000) * 0.28);
    expect(await session.do('[nvml.utilization(0)[0], nvml.process_samples(0)]')).toEqual([3, 3]);
  });

  test('energy is power over time', async () => {
    const { machine, session } = await open('2');
    const now =
      'time.monotonic(), nvml.ask("TotalEnergyConsumption", 0, type=nvml.c_ulonglong), time.monotonic()';
    const check = async (watts: number) => {
      const [before, first, from, , to, last, after] = await session.do(`[${now}, time.sleep(0.2), ${now}]`);
      expect(last - first).toBeGreaterThan((to - from - 0.002) * watts * 1000);
      expect(last - first).toBeLessThan((after - before + 0.002) * watts * 1000);
    };
    await check(60);
    const child = await machine.occupy('0', '--utilization', '100');
    await check(560);
    child.kill('SIGKILL');
    await until(async () => (await session.do('nvml.power(0)'))[1] === 60_000);
    await session.do(`[${now}]`);
    await check(60);
  });

  test('what `set` fixes stays; the rest follows it', async () => {
    const { machine, session } = await open('1');
    machine.set('gpu=0', 'utilization=50', 'temperature=85');
    expect(await readings(session, 0)).toMatchObject({
      utilization: 50,
      power: 310,
      temperature: 85,
      state: 0,
    });
    expect(await session.do('nvml.ask("CurrentClocksThrottleReasons", 0, type=nvml.c_ulonglong)')).toBe(0x20);
    machine.set('gpu=0', 'power=700', 'temperature=88');
    expect(await session.do('nvml.ask("CurrentClocksThrottleReasons", 0, type=nvml.c_ulonglong)')).toBe(
      0x4 | 0x8 | 0x40,
    );
    expect(machine.tool(['reset']).status).toBe(0);
    expect(await readings(session, 0)).toEqual(idle);
  });
});

test('the machine h200x8 answers what monitors ask for', async () => {
  const { session } = await open('h200x8');
  for (const [code, answer] of [
    ['nvml.ask("Brand", 0)', 14],
    ['nvml.ask("Architecture", 0)', 9],
    ['nvml.ask("CudaComputeCapability", 0, outs=2)', [9, 0]],
    ['nvml.ask("NumGpuCores", 0)', 132 * 128],
    ['nvml.ask("MemoryBusWidth", 0)', 6144],
    ['[nvml.ask("MaxClockInfo", 0, i) for i in range(4)]', [1980, 1980, 3201, 1545]],
    ['nvml.ask("PowerManagementLimitConstraints", 0, outs=2)', [200_000, 700_000]],
    ['[nvml.ask("TemperatureThreshold", 0, i) for i in range(4)]', [92, 87, 95, 85]],
    ['[nvml.ask("MaxPcieLinkGeneration", 0), nvml.ask("MaxPcieLinkWidth", 0)]', [5, 16]],
    ['nvml.ask("EncoderUtilization", 0, outs=2)', [0, 167_000]],
    ['nvml.ask("EccMode", 0, outs=2)', [1, 1]],
    ['nvml.ask("TotalEccErrors", 0, 1, 0, type=nvml.c_ulonglong)', 0],
    ['nvml.ask("MemoryErrorCounter", 0, 1, 0, 2, type=nvml.c_ulonglong)', 0],
    ['nvml.ask("RemappedRows", 0, outs=4)', [0, 0, 0, 0]],
    // Since Ampere, pages aren't retired.
    ['nvml.listed("RetiredPages", 0, 0)[0]', 3],
    ['[nvml.ask("NvLinkState", 0, i) for i in (0, 17, 18)]', [1, 1, { code: 2 }]],
    ['nvml.ask("NvLinkRemoteDeviceType", 0, 3)', 2],
    ['nvml.listed("SupportedMemoryClocks", 0)', [0, 1, [3201]]],
    ['nvml.listed("SupportedGraphicsClocks", 0, 3201, room=2)', [7, 110, []]],
    [
      '[nvml.listed("EncoderSessions", 0)[:2], nvml.listed("AccountingPids", 0)[:2]]',
      [
        [0, 0],
        [0, 0],
      ],
    ],
    ['nvml.ask("FanSpeed", 0)', UNSUPPORTED],
    ['nvml.ask("DriverModel", 0, outs=2)', UNSUPPORTED],
    ['nvml.ask("SupportedVgpus", 0)', UNSUPPORTED],
  ])
    expect(await session.do(code as string), code as string).toEqual(answer);
  const serials = await session.do('[nvml.text("GetSerial", i) for i in range(8)]');
  expect(new Set(serials).size).toBe(8);
  await session.do(
    `found = nvml.c_void_p(); code = nvml.library.nvmlDeviceGetHandleBySerial(b"${serials[5]}", nvml.byref(found))`,
  );
  expect(await session.do('[code, found.value == nvml.handle(5).value]')).toEqual([0, true]);
  // Processors of this computer, so that a program can bind itself to them.
  const [near, everywhere] = await session.do(
    '[nvml.bits("CpuAffinity", 0), sorted({cpu for i in range(8) for cpu in nvml.bits("CpuAffinity", i)})]',
  );
  expect(everywhere).toEqual(await session.do('list(range(os.sysconf("SC_NPROCESSORS_CONF")))'));
  expect(await session.do('nvml.bits("CpuAffinityWithinScope", 0, 0)')).toEqual(near);
  expect(await session.do('[nvml.bits("MemoryAffinity", i, 0) for i in (0, 7)]')).toEqual([[0], [1]]);
});

test('a card answers only what its model supports', async () => {
  const questions = ['FanSpeed', 'NumFans', 'Serial', 'EccMode', 'PowerUsage', 'NvLinkState'];
  const about = (gpu: number) =>
    `[nvml.ask("FanSpeed", ${gpu}), nvml.ask("NumFans", ${gpu}), nvml.text("GetSerial", ${gpu}), nvml.ask("EccMode", ${gpu}, outs=2),
      nvml.ask("PowerUsage", ${gpu}), nvml.ask("NvLinkState", ${gpu}, 0)]`.replaceAll('\n', ' ');
  const { session } = await open('mixed');
  const answers = async (gpu: number) =>
    Object.fromEntries(
      (await session.do(about(gpu))).map((value: unknown, i: number) => [questions[i], value]),
    );
  expect(await answers(0)).toMatchObject({
    FanSpeed: 38,
    NumFans: 1,
    EccMode: UNSUPPORTED,
    PowerUsage: UNSUPPORTED,
  });
  expect(await answers(1)).toMatchObject({ FanSpeed: 0, NumFans: 2, Serial: 3, EccMode: UNSUPPORTED });
  expect(await answers(2)).toMatchObject({
    FanSpeed: UNSUPPORTED,
    Serial: expect.stringMatching(/^\d{13}$/),
    EccMode: [1, 1],
    NvLinkState: UNSUPPORTED,
  });
});

test('the machine jetson answers hardly anything', async () => {
  const { session } = await open('jetson');
  for (const code of [
    'nvml.ask("ClockInfo", 0, 1)',
    'nvml.ask("MaxPcieLinkGeneration", 0)',
    'nvml.ask("FanSpeed", 0)',
    'nvml.ask("EccMode", 0, outs=2)',
    'nvml.ask("EncoderUtilization", 0, outs=2)',
    'nvml.structure("BAR1MemoryInfo", 0, nvml.Bar1)',
    'nvml.ask("Brand", 0)',
  ])
    expect(await session.do(code), code).toEqual(UNSUPPORTED);
  expect(await session.do('nvml.ask("CudaComputeCapability", 0, outs=2)')).toEqual([8, 7]);
});

test.each([
  ['oldest-driver', ABSENT, ABSENT, ABSENT],
  ['old-driver', 5, ABSENT, ABSENT],
  ['early-r535', 7, 108 * 64, ABSENT],
  ['1', 9, 132 * 128, { margin: 55 }],
])(
  'the machine %s has the functions of its driver, and no others',
  async (name, architecture, cores, margin) => {
    const { session } = await open(name);
    expect(await session.do('nvml.ask("Architecture", 0)')).toEqual(architecture);
    expect(await session.do('nvml.ask("NumGpuCores", 0)')).toEqual(cores);
    expect(await session.do('nvml.structure("MarginTemperature", 0, nvml.Margin)')).toEqual(margin);
    expect(await session.do('nvml.ask("CurrentClocksThrottleReasons", 0, type=nvml.c_ulonglong)')).toBe(1);
  },
);

test('faults reach the groups of getters', async () => {
  const { machine, session } = await open('2');
  const groups: Record<string, string> = {
    board: 'nvml.ask("Brand", 1)',
    clocks: 'nvml.ask("PerformanceState", 1)',
    pcie: 'nvml.ask("MaxPcieLinkWidth", 1)',
    nvlink: 'nvml.ask("NvLinkState", 1, 0)',
    fan: 'nvml.ask("NumFans", 1)',
    ecc: 'nvml.ask("EccMode", 1, outs=2)',
    codec: 'nvml.ask("DecoderUtilization", 1, outs=2)',
    bar1: 'nvml.structure("BAR1MemoryInfo", 1, nvml.Bar1)',
    events: 'nvml.ask("SupportedEventTypes", 1, type=nvml.c_ulonglong)',
  };
  const all = `[${Object.values(groups).join(', ')}]`;
  machine.set('gpu=1', `error=${Object.keys(groups).join(':4,')}:4`);
  expect(await session.do(all)).toEqual(Array(9).fill({ code: 4 }));
  expect(await session.do(all.replaceAll(' 1', ' 0'))).not.toContainEqual({ code: 4 });
  machine.set('gpu=1', 'error=off', 'lost=on');
  expect(await session.do(all)).toEqual(Array(9).fill({ code: 15 }));
  machine.set('gpu=1', 'lost=off', 'latency=clocks:3000');
  expect(await session.do(`measure(lambda: ${groups.clocks}, 3)`)).toBeGreaterThanOrEqual(3000);
  expect(machine.show().gpus[1].faults.latencyMicroseconds).toEqual({ clocks: 3000 });
});
