import { describe, expect, it, vi } from 'vitest';
import { type Criteria, normalizeCriteria } from '../../lib/config/criteria.ts';
import { judge } from '../../lib/gpus/judge.ts';
import type { GPU, GPUProcess, JudgeContext } from '../../lib/gpus/types.ts';
import type { ProcessDescription } from '../../lib/platform/processes.ts';
import { GIB, MIB, makeGPU, makeLease, usedGPU } from '../support/snapshots.ts';

function verdict(gpu: GPU, criteria: Criteria = {}, context: Partial<JudgeContext> = {}) {
  return judge(gpu, { lease: null, visible: null, criteria: normalizeCriteria(criteria), ...context });
}

const FREE = { state: 'free', reason: null, transient: false };
const compute = (pid: number, usedBytes: number | null = 0): GPUProcess => ({
  pid,
  type: 'compute',
  usedBytes,
});
const graphics = (pid: number, usedBytes: number | null = 0): GPUProcess => ({
  pid,
  type: 'graphics',
  usedBytes,
});

/** describes: 42xx python of alice, 66xx dying, 77xx gone */
function describeFake(pid: number): ProcessDescription {
  const kind = Math.floor(pid / 100);
  if (kind === 77) return { name: null, user: null, uid: null, alive: 'gone' };
  return { name: 'python', user: 'alice', uid: 1000, alive: kind === 66 ? 'dying' : 'alive' };
}
const described = { describe: describeFake };

describe('the verdict by default', () => {
  it('an idle GPU is free', () => {
    expect(verdict(makeGPU())).toEqual(FREE);
  });

  it('up to 100 MiB in use are free, a byte more is not', () => {
    expect(verdict(usedGPU(100 * MIB))).toEqual(FREE);
    expect(verdict(usedGPU(100 * MIB + 1)).state).toBe('busy');
  });

  it("a desktop's memory does not make a GPU busy", () => {
    const desktop = [graphics(900, 700 * MIB), graphics(901, 300 * MIB)];
    expect(verdict(usedGPU(1090 * MIB, { processes: desktop, displayActive: true }))).toEqual(FREE);
    expect(verdict(usedGPU(1101 * MIB, { processes: desktop }))).toEqual({
      state: 'busy',
      reason: '101 MiB in use beyond what visible graphics processes use: maxUsedMemory would accept it',
      transient: true,
    });
  });

  it('a compute process of anybody makes a GPU busy, with as little memory as it likes', () => {
    expect(verdict(makeGPU(0, { processes: [compute(4242, 0)] })).state).toBe('busy');
    expect(verdict(makeGPU(0, { processes: [compute(4242, null)] })).state).toBe('busy');
    expect(verdict(makeGPU(0, { processes: [graphics(1, MIB)] })).state).toBe('free');
  });

  it('the reason says who uses a busy GPU', () => {
    const gpu = usedGPU(31.2 * GIB, { processes: [compute(4242, 31.2 * GIB)] });
    expect(verdict(gpu, {}, described).reason).toBe('python (pid 4242, alice) uses 31.2 GiB');
    expect(verdict(gpu).reason).toBe('pid 4242 uses 31.2 GiB');
    expect(verdict(makeGPU(0, { processes: [compute(4242, null)] }), {}, described).reason).toBe(
      'python (pid 4242, alice) computes',
    );
  });

  it('the reason names the largest living process of several, and counts the others', () => {
    const processes = [compute(4201, GIB), compute(6601, 9 * GIB), compute(4202, 3 * GIB)];
    expect(verdict(usedGPU(13 * GIB, { processes }), {}, described)).toEqual({
      state: 'busy',
      reason: 'python (pid 4202, alice) uses 3 GiB, and 2 more',
      transient: false,
    });
  });

  it('the reason counts a process that computes and draws once, as computing', () => {
    const processes = [compute(4242, GIB), graphics(4242, GIB)];
    expect(verdict(usedGPU(GIB, { processes }), {}, described).reason).toBe(
      'python (pid 4242, alice) uses 1 GiB',
    );
    // Else twice its memory would hide a gigabyte of another process.
    expect(verdict(usedGPU(2 * GIB, { processes }), { allowProcesses: true }).state).toBe('busy');
  });

  it('memory that nobody visible uses makes a GPU busy', () => {
    expect(verdict(usedGPU(3.1 * GIB))).toEqual({
      state: 'busy',
      reason: '3.1 GiB in use, but no process is visible: maxUsedMemory would accept it',
      transient: true,
    });
    expect(verdict(usedGPU(3.1 * GIB, { processes: null })).reason).toBe(
      "3.1 GiB in use, and the driver doesn't list processes here: maxUsedMemory would accept it",
    );
  });

  it('memory decides where the driver lists no processes', () => {
    expect(verdict(usedGPU(90 * MIB, { processes: null }))).toEqual(FREE);
  });

  it('unknown memory of a desktop explains 4 GiB, and half of a small GPU', () => {
    const processes = [graphics(900, null), graphics(901, GIB)];
    expect(verdict(usedGPU(5 * GIB, { processes }))).toEqual(FREE);
    const { state, reason } = verdict(usedGPU(5 * GIB + 1, { processes }));
    expect(state).toBe('busy');
    expect(reason).toBe(
      "4 GiB in use, and the driver doesn't tell how much of it is the desktop's (4 GiB are left to it by default): " +
        'maxUsedMemory 5GiB would accept it',
    );
    const small = (usedBytes: number) =>
      makeGPU(0, { processes: [graphics(900, null)], memory: { totalBytes: 4 * GIB, usedBytes } });
    expect(verdict(small(2 * GIB))).toEqual(FREE);
    expect(verdict(small(2 * GIB + 1)).state).toBe('busy');
    expect(
      verdict(usedGPU(3 * GIB, { processes: [graphics(900, null)] }), { maxUsedMemory: '2GiB' }).state,
    ).toBe('busy');
  });

  it('the reason says which options help where the driver tells neither memory nor processes', () => {
    const gpu = makeGPU(0, { processes: null, memory: { usedBytes: null, freeBytes: null } });
    expect(verdict(gpu).reason).toBe(
      "the driver tells neither memory in use nor processes of this GPU: maxUsedMemory 'any' together with " +
        'allowProcesses would judge by leases alone',
    );
    expect(verdict(gpu, { maxUsedMemory: 'any', allowProcesses: true })).toEqual(FREE);
  });

  it('processes decide where the driver tells no memory in use, as on a GB10', () => {
    const memory = { usedBytes: null, freeBytes: null };
    expect(verdict(makeGPU(0, { memory }))).toEqual(FREE);
    const used = makeGPU(0, { memory, processes: [compute(4242, null)] });
    expect(verdict(used, {}, described)).toMatchObject({
      state: 'busy',
      reason: 'python (pid 4242, alice) computes',
    });
  });

  it('unknown memory in use is not taken for little', () => {
    const gpu = makeGPU(0, { memory: { usedBytes: null, freeBytes: null } });
    expect(verdict(gpu, { maxUsedMemory: '2GiB' })).toMatchObject({ state: 'unavailable', transient: false });
    expect(verdict(gpu, { maxUsedMemory: '2GiB' }).reason).toContain("the driver doesn't tell memory in use");
    expect(verdict(gpu, { maxUsedMemory: 'any' })).toEqual(FREE);
  });
});

describe('a share', () => {
  const UNITS_OF_GIB = 4;
  const room = (gpu: GPU, wanted: number, context: Partial<JudgeContext> = {}, sharing = {}) => {
    const division = { shares: [], taken: 0, capacity: 79 * UNITS_OF_GIB, pids: new Set<number>() };
    const whole = { ...division, wanted: wanted * UNITS_OF_GIB, ...sharing };
    return verdict(gpu, {}, { ...described, sharing: whole, ...context });
  };

  it('fits as long as all shares have no more than there is', () => {
    const taken = { taken: 60 * UNITS_OF_GIB };
    expect(room(makeGPU(), 19, {}, taken)).toMatchObject({ ...FREE, room: { room: 19 * UNITS_OF_GIB } });
    expect(room(makeGPU(), 20, {}, taken)).toMatchObject({
      state: 'leased',
      reason: '19 GiB of 79 GiB are left (memory: 20 GiB)',
    });
  });

  it('can’t be had of a GPU that admits one process only, unless MPS runs there', () => {
    const mode = { computeMode: 'exclusive-process' } as const;
    expect(room(makeGPU(0, mode), 1)).toMatchObject({
      state: 'unavailable',
      reason: expect.stringContaining("'exclusive-process' admits one process only, so it can't be shared"),
    });
    const describe = (pid: number): ProcessDescription => ({
      ...describeFake(pid),
      name: 'nvidia-cuda-mps',
    });
    const served = usedGPU(30 * MIB, { ...mode, processes: [compute(30, 30 * MIB)] });
    expect(room(served, 1, { describe })).toMatchObject(FREE);
  });

  it('can’t be had where the driver doesn’t tell how much memory there is, or there is less', () => {
    expect(room(makeGPU(), 1, {}, { capacity: null })).toMatchObject({
      state: 'unavailable',
      reason: "the driver doesn't tell how much memory it has: leave out memory",
    });
    expect(room(makeGPU(), 80)).toMatchObject({
      state: 'unavailable',
      reason: 'has only 79 GiB of memory (memory: 80 GiB)',
    });
  });
});

describe('a criterion', () => {
  it('maxUsedMemory accepts memory in use, no processes', () => {
    expect(verdict(usedGPU(2 * GIB), { maxUsedMemory: '2GiB' })).toEqual(FREE);
    expect(verdict(usedGPU(2 * GIB + 1), { maxUsedMemory: '2GiB' }).reason).toContain(
      'more than maxUsedMemory allows (2 GiB)',
    );
    expect(verdict(usedGPU(1), { maxUsedMemory: 0 }).state).toBe('busy');
    expect(verdict(usedGPU(60 * GIB), { maxUsedMemory: 'any' })).toEqual(FREE);
    expect(verdict(usedGPU(GIB, { processes: [compute(1, GIB)] }), { maxUsedMemory: '2GiB' }).state).toBe(
      'busy',
    );
  });

  it('allowProcesses accepts processes and the memory they explain', () => {
    const processes = [compute(4242, 3 * GIB)];
    expect(verdict(usedGPU(3 * GIB, { processes }), { allowProcesses: true })).toEqual(FREE);
    expect(verdict(usedGPU(4 * GIB, { processes }), { allowProcesses: true }).reason).toBe(
      '1 GiB in use beyond what the visible processes use: maxUsedMemory would accept it',
    );
    expect(
      verdict(usedGPU(3 * GIB, { processes }), { allowProcesses: true, maxUsedMemory: '2GiB' }).state,
    ).toBe('busy');
    expect(verdict(usedGPU(3 * GIB, { processes }), { allowProcesses: true, maxUsedMemory: '4GiB' })).toEqual(
      FREE,
    );
  });

  it('allowProcesses shares no GPU that admits one process only', () => {
    const processes = [compute(4242, GIB)];
    const gpu = usedGPU(GIB, { processes, computeMode: 'exclusive-process' });
    for (const criteria of [{ allowProcesses: true }, { force: true }]) {
      expect(verdict(gpu, criteria)).toMatchObject({
        state: 'busy',
        reason: expect.stringContaining("'exclusive-process' admits one process only"),
      });
    }
    expect(verdict(makeGPU(0, { computeMode: 'exclusive-process' }), { force: true })).toEqual(FREE);
    expect(verdict(makeGPU(0, { computeMode: 'exclusive-process' }))).toEqual(FREE);
  });

  it("nothing is in the way where neither memory nor processes are known, only if both don't matter", () => {
    const gpu = makeGPU(0, { memory: { usedBytes: null, freeBytes: null }, processes: null });
    expect(verdict(gpu, { maxUsedMemory: 'any' }).state).toBe('unavailable');
    expect(verdict(gpu, { allowProcesses: true }).state).toBe('unavailable');
    expect(verdict(gpu, { maxUsedMemory: 'any', allowProcesses: true })).toEqual(FREE);
  });

  it.each<[criterion: keyof Criteria, limit: number, field: keyof GPU, value: number, reason: string]>([
    ['maxPower', 80, 'powerWatts', 80.1, 'draws 80.1 W (maxPower: 80 W)'],
    ['maxUtilization', 1, 'utilizationPercent', 2, 'utilization is 2 % (maxUtilization: 1 %)'],
    ['maxTemperature', 60, 'temperatureCelsius', 61, 'is at 61 °C (maxTemperature: 60 °C)'],
  ])('%s: %j limits what is free', (key, limit, field, value, reason) => {
    const criteria = { [key]: limit };
    expect(verdict(makeGPU(0, { [field]: value }), criteria)).toEqual({
      state: 'busy',
      reason,
      transient: false,
    });
    expect(verdict(makeGPU(0, { [field]: limit }), criteria)).toEqual(FREE);
    const unknown = verdict(makeGPU(0, { [field]: null }), criteria);
    expect(unknown).toMatchObject({ state: 'unavailable', transient: false });
    expect(unknown.reason).toMatch(
      new RegExp(`^the driver doesn't tell [\\w ]+: leave out ${key}(, or add allowUnknown)?$`),
    );
    const allowed = verdict(makeGPU(0, { [field]: null }), { ...criteria, allowUnknown: true });
    expect(allowed.state).toBe(key === 'minFreeMemory' ? 'unavailable' : 'free');
    expect(verdict(makeGPU(0, { [field]: value }), { ...criteria, allowUnknown: true }).state).toBe('busy');
  });

  it('minFreeMemory asks for free memory', () => {
    const gpu = makeGPU(0, { memory: { totalBytes: 24 * GIB, freeBytes: 20 * GIB } });
    expect(verdict(gpu, { minFreeMemory: '20GiB' })).toEqual(FREE);
    expect(verdict(gpu, { minFreeMemory: '22GiB' })).toEqual({
      state: 'busy',
      reason: 'only 20 GiB of memory are free (minFreeMemory: 22 GiB)',
      transient: false,
    });
    expect(verdict(gpu, { minFreeMemory: '40GiB' })).toMatchObject({
      state: 'unavailable',
      reason: 'has only 24 GiB of memory in all (minFreeMemory: 40 GiB)',
    });
    expect(verdict(makeGPU(0, { memory: { freeBytes: null } }), { minFreeMemory: 0 }).state).toBe(
      'unavailable',
    );
  });

  it('the reason has all limits that are exceeded, by the user’s names', () => {
    const names = { maxPower: '--max-power', maxTemperature: '--max-temperature' };
    const criteria = normalizeCriteria({ maxPower: 1, maxTemperature: 1 }, { names });
    expect(judge(makeGPU(), { lease: null, visible: null, criteria }).reason).toBe(
      'draws 60 W (--max-power: 1 W); is at 30 °C (--max-temperature: 1 °C)',
    );
  });
});

describe('an excluded or unavailable GPU', () => {
  const visible = new Set([makeGPU(1).uuid]);

  it('may be outside of what was allowed', () => {
    expect(verdict(makeGPU(0), { devices: '1-3' })).toEqual({
      state: 'excluded',
      reason: 'not among the GPUs asked for (devices)',
      transient: false,
    });
    expect(verdict(makeGPU(1), { devices: '1-3' })).toEqual(FREE);
    expect(verdict(makeGPU(0), { exclude: 'GPU-0' }).reason).toBe('excluded by exclude');
    expect(verdict(makeGPU(0), { exclude: 'a100' }).reason).toBe('excluded by exclude');
    expect(verdict(makeGPU(0), {}, { visible }).reason).toBe(
      'not in the CUDA_VISIBLE_DEVICES that was inherited',
    );
    expect(verdict(makeGPU(1), {}, { visible })).toEqual(FREE);
    expect(verdict(makeGPU(0), {}, { visible: new Set() }).state).toBe('excluded');
    expect(verdict(makeGPU(0, { uuid: '' }), {}, { visible: new Set() }).state).toBe('excluded');
  });

  it('has the banning file in its reason', () => {
    const source = '/etc/gpu-owner/config.yaml';
    const base = normalizeCriteria({ exclude: [0, 'T400'], devices: [1, 2] });
    const banned = {
      ...base,
      exclude: base.exclude.map((rule) => ({ ...rule, source })),
    };
    const judged = (gpu: GPU, criteria: typeof base) =>
      judge(gpu, { lease: null, visible: null, criteria }).reason;
    expect(judged(makeGPU(0), banned)).toBe(`banned by ${source}`);
    expect(judged(makeGPU(1, { name: 'T400' }), banned)).toBe(`banned by ${source}`);
    const limited = { ...normalizeCriteria(), devices: base.devices.map((rule) => ({ ...rule, source })) };
    expect(judged(makeGPU(0), limited)).toBe(`not among the devices that ${source} allows`);
  });

  it.each<GPU['health']>([
    'lost',
    'reset-required',
    'no-permission',
    'not-responding',
    'unhealthy',
    'failed',
  ])('may not be healthy: %s', (health) => {
    expect(verdict(makeGPU(0, { health, healthReason: null })).reason).toBeTruthy();
    expect(verdict(makeGPU(0, { health, healthReason: 'Xid 79\x1b[2J' }))).toEqual({
      state: 'unavailable',
      reason: 'Xid 79',
      transient: false,
      ...(health === 'not-responding' ? { silent: true } : {}),
    });
  });

  it('may be divided by MIG, or prohibited', () => {
    expect(verdict(makeGPU(0, { migEnabled: true })).reason).toMatch(/^MIG is on/);
    expect(verdict(makeGPU(0, { migEnabled: null }))).toEqual(FREE);
    const memory = { totalBytes: null, usedBytes: null, freeBytes: null };
    const migInstances = [{ uuid: 'MIG-1', name: '1g.10gb', gpuInstanceId: 7, computeInstanceId: 0, memory }];
    expect(verdict(makeGPU(0, { migEnabled: null, migInstances })).state).toBe('unavailable');
    expect(verdict(makeGPU(0, { computeMode: 'prohibited' }))).toMatchObject({ state: 'unavailable' });
    expect(verdict(makeGPU(0, { computeMode: null }))).toEqual(FREE);
  });
});

describe('force', () => {
  const busy = usedGPU(3 * GIB, {
    processes: [compute(4242, GIB)],
    health: 'reset-required',
    powerWatts: null,
  });

  it('skips health, thresholds and processes', () => {
    expect(verdict(busy, { force: true, maxPower: 1, minFreeMemory: '900GiB' })).toEqual(FREE);
    expect(verdict(makeGPU(0, { memory: { usedBytes: null }, processes: null }), { force: true })).toEqual(
      FREE,
    );
  });

  it('never skips leases, bans, MIG, and what nothing can lock', () => {
    const force = { force: true };
    expect(verdict(busy, force, { lease: makeLease() }).state).toBe('leased');
    expect(verdict(busy, { ...force, exclude: 0 }).state).toBe('excluded');
    expect(verdict(busy, { ...force, exclude: 'A100' }).state).toBe('excluded');
    expect(verdict(busy, { ...force, devices: 3 }).state).toBe('excluded');
    expect(verdict(busy, force, { visible: new Set() }).state).toBe('excluded');
    expect(verdict(makeGPU(0, { migEnabled: true }), force).state).toBe('unavailable');
    expect(verdict(makeGPU(0, { computeMode: 'prohibited' }), force).state).toBe('unavailable');
    expect(verdict(makeGPU(0, { uuid: '', health: 'lost' }), force).state).toBe('unavailable');
  });
});

describe('a lease', () => {
  const now = new Date(2025, 10, 21, 16, 0).getTime();
  const since = new Date(2025, 10, 21, 14, 3).toISOString();
  const reason = (lease: ReturnType<typeof makeLease>, context: Partial<JudgeContext> = {}) =>
    verdict(makeGPU(), {}, { lease, now, hostname: 'gpubox', ...context }).reason;

  it('says who holds it, since when, for what', () => {
    expect(verdict(makeGPU(), {}, { lease: makeLease({ since }), now, hostname: 'gpubox' })).toEqual({
      state: 'leased',
      reason: 'leased by alice since 14:03 (pid 4242: python train.py)',
      transient: false,
    });
  });

  it('says less where less is known', () => {
    expect(reason(makeLease({ pid: null, command: null }))).toBe('leased by alice');
    expect(reason(makeLease({ pid: null }))).toBe('leased by alice (python train.py)');
    expect(reason(makeLease({ command: null }))).toBe('leased by alice (pid 4242)');
    expect(reason(makeLease({ name: 'first', note: 'for Friday' }))).toBe(
      'leased by alice (first, pid 4242: python train.py); note: for Friday',
    );
    expect(reason(makeLease({ user: '', pid: null, command: null }))).toBe('leased by somebody');
  });

  it('tells another machine or container, another convention, a time limit and what is left of a job', () => {
    expect(reason(makeLease({ host: '5f3e' }))).toBe('leased by alice (pid 4242 on 5f3e: python train.py)');
    expect(reason(makeLease({ convention: 'gpu_lock' }))).toBe(
      'leased by alice (gpu_lock, pid 4242: python train.py)',
    );
    const now = new Date(2026, 0, 1, 12).getTime();
    const until = (hours: number) => ({
      host: null,
      until: new Date(now + hours * 3_600_000).toISOString(),
    });
    expect(verdict(makeGPU(), {}, { lease: makeLease(until(2.5)), now }).reason).toBe(
      'leased by alice until 14:30 (pid 4242: python train.py)',
    );
    expect(verdict(makeGPU(), {}, { lease: makeLease(until(24)), now }).reason).toBe(
      'leased by alice until 12:00 tomorrow (pid 4242: python train.py)',
    );
    expect(reason(makeLease({ preemptible: true }))).toBe(
      'leased by alice, preemptible (pid 4242: python train.py)',
    );
    expect(reason(makeLease({ survivors: 3 }))).toBe(
      'leased by alice (pid 4242: python train.py has ended, 3 of its processes still run)',
    );
  });

  it('prints a hostile record harmlessly and believes nothing absurd in it', () => {
    const evil = `\x1b]0;owned\x07\n\u202e${'x'.repeat(1e5)}`;
    const lease = {
      user: evil,
      uid: -1,
      pid: 1e300,
      host: evil,
      command: evil,
      since: evil,
      until: evil,
      convention: evil,
      survivors: Number.NaN,
    };
    const text = reason(lease as never) ?? '';
    expect(text).not.toContain('\x1b');
    expect(text).not.toContain('\n');
    expect(text).not.toContain('\u202e');
    expect(text).not.toContain('1e+300');
    expect(text.length).toBeLessThan(700); // a name of a user may be long
    for (const rubbish of [undefined, 7, {}, []]) {
      const record = {
        user: rubbish,
        pid: rubbish,
        host: rubbish,
        command: rubbish,
        since: rubbish,
        convention: rubbish,
      };
      expect(reason(record as never)).toMatch(/^leased by somebody/);
    }
  });

  it('counts whatever the GPU looks like, and spares asking for processes', () => {
    const describeProcess = vi.fn(describeFake);
    const gpu = usedGPU(GIB, { processes: [compute(4242, GIB)] });
    expect(verdict(gpu, {}, { lease: makeLease(), describe: describeProcess }).state).toBe('leased');
    expect(describeProcess).not.toHaveBeenCalled();
  });
});

describe('the remains of a process that dies', () => {
  const transient = (gpu: GPU, criteria: Criteria = {}) => verdict(gpu, criteria, described).transient;

  it('are worth another look', () => {
    expect(verdict(usedGPU(4 * GIB, { processes: [compute(6601, 4 * GIB)] }), {}, described)).toEqual({
      state: 'busy',
      reason: 'python (pid 6601, alice) is ending but still uses 4 GiB',
      transient: true,
    });
    expect(verdict(usedGPU(4 * GIB, { processes: [compute(7701, 4 * GIB)] }), {}, described)).toEqual({
      state: 'busy',
      reason: "pid 7701 uses 4 GiB (it isn't visible here: in another container, or it has just ended)",
      transient: true,
    });
    expect(transient(usedGPU(4 * GIB))).toBe(true);
    expect(transient(usedGPU(5 * GIB, { processes: [compute(6601, 4 * GIB), compute(7701, null)] }))).toBe(
      true,
    );
  });

  it('are no hope beside a living process', () => {
    expect(transient(usedGPU(4 * GIB, { processes: [compute(6601, GIB), compute(4201, GIB)] }))).toBe(false);
    expect(transient(usedGPU(4 * GIB, { processes: [compute(4201, GIB)] }))).toBe(false);
  });

  it('are worth it when the memory they give back, and the rest they take, would do', () => {
    const dying = usedGPU(40 * GIB, {
      processes: [compute(6601, 40 * GIB)],
      powerWatts: 300,
      utilizationPercent: 90,
    });
    expect(transient(dying, { minFreeMemory: '60GiB', maxPower: 80, maxUtilization: 1 })).toBe(true);
    expect(transient(dying, { minFreeMemory: '60GiB', maxTemperature: 10 })).toBe(false);
    const desktopToo = usedGPU(40 * GIB, { processes: [compute(6601, 10 * GIB), graphics(1, 30 * GIB)] });
    expect(transient(desktopToo, { minFreeMemory: '60GiB' })).toBe(false);
    expect(transient(desktopToo, { minFreeMemory: '50GiB' })).toBe(true);
    expect(transient(dying, { allowProcesses: true, minFreeMemory: '60GiB' })).toBe(true);
    // Beside a living process, unexplained memory may well be its own.
    const shared = usedGPU(40 * GIB, { processes: [compute(4201, null)] });
    expect(transient(shared, { allowProcesses: true, maxUsedMemory: 'any', minFreeMemory: '60GiB' })).toBe(
      false,
    );
  });

  it('do not hide what waiting will not mend', () => {
    const dying = usedGPU(40 * GIB, { processes: [compute(6601, 40 * GIB)], powerWatts: null });
    expect(verdict(dying, { maxPower: 80 }, described)).toEqual({
      state: 'unavailable',
      reason: "the driver doesn't tell power: leave out maxPower, or add allowUnknown",
      transient: false,
    });
  });

  it('are assumed of no process that nobody describes', () => {
    expect(verdict(usedGPU(GIB, { processes: [compute(6601, GIB)] })).transient).toBe(false);
  });
});

it('a process is no obstacle to its own claim', () => {
  const gpu = usedGPU(3 * GIB, { processes: [compute(4242, 3 * GIB)] });
  expect(verdict(gpu, {}, { ownPids: new Set([4242]) })).toEqual(FREE);
  expect(verdict(gpu, {}, { ownPids: new Set([1]) }).state).toBe('busy');
  expect(
    verdict(usedGPU(9 * GIB, { processes: [compute(4242, 3 * GIB)] }), {}, { ownPids: new Set([4242]) })
      .state,
  ).toBe('busy');
});
