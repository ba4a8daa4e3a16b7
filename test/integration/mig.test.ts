// MIG instances claimed like GPUs, on a machine of which GPU 0 has four (0:0, 0:2, 0:3, 0:4), GPU 1 seven, 2 and 3 are whole.
import { spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { binaries } from '../support/binaries.ts';
import { finished, Machine, output } from '../support/machine.ts';
import { pause } from '../support/time.ts';

const SECONDS = process.env.GPU_OWNER_SOAK ? 120 : 1.5;
const CLAIMANTS = process.env.GPU_OWNER_SOAK ? 16 : 8;
const claimant = join(import.meta.dirname, 'fixtures/instance-claimant.mjs');

interface Row {
  index: number;
  instance: number | null;
  uuid: string;
  parent: string | null;
  name: string;
  state: string;
  reason: string | null;
  lease: { command: string } | null;
  processes: { pid: number }[];
  memory: { totalBytes: number; usedBytes: number };
}

let machine: Machine;
beforeEach(() => {
  machine = new Machine('a100x4-mig');
});
afterEach(() => {
  vi.unstubAllEnvs();
  return machine.close();
});

/** Runs a program of fixtures/ on the machine. */
function runFixture(name: string, ...args: string[]) {
  return machine.run([process.execPath, join(import.meta.dirname, 'fixtures', name), ...args]);
}

const at = (row: Row) => (row.instance === null ? String(row.index) : `${row.index}:${row.instance}`);

async function rows(): Promise<Record<string, Row>> {
  return Object.fromEntries((await machine.status()).map((row: Row) => [at(row), row]));
}

/** Which processes the simulated driver itself has on each instance: '0:2' -> PIDs. */
function witnessed(): Record<string, number[]> {
  const { stdout } = spawnSync(join(binaries(), 'gpu-owner-simulator'), ['show', '--json'], {
    env: machine.env as NodeJS.ProcessEnv,
    encoding: 'utf8',
  });
  const found: Record<string, number[]> = {};
  for (const gpu of JSON.parse(stdout).gpus) {
    for (const { pid, migUuid } of gpu.processes) {
      const instance = gpu.migInstances.find(({ uuid }: { uuid: string }) => uuid === migUuid);
      const name = instance === undefined ? String(gpu.index) : `${gpu.index}:${instance.index}`;
      found[name] = [...(found[name] ?? []), pid];
    }
  }
  return found;
}

/** Holds what the options ask for; resolves when it does. */
async function hold(...options: string[]) {
  const child = machine.startCommand(['hold', ...options]);
  const line = await output(child, /(\{.*\})\n/);
  return {
    child,
    ...(JSON.parse(line) as { devices: Row[]; visibleDevices: string }),
    end: async () => {
      child.stdin?.end();
      await finished(child, 'exit');
    },
  };
}

/** What `find` finds with each of these options, where '' is none. */
async function find(...options: string[]): Promise<(string | string[])[]> {
  const lines = options.map((each) => ['find', '--json', ...each.split(' ').filter(Boolean)]);
  const ended = await machine.runCommands(lines);
  return ended.map(({ code, stdout, stderr }) =>
    code === 0 ? (JSON.parse(stdout) as Row[]).map(at) : stderr,
  );
}

describe('status', () => {
  test('has a row for each instance, below its GPU', async () => {
    const list = (await machine.status()) as Row[];
    expect(list.map(at)).toEqual([
      '0',
      '0:0',
      '0:2',
      '0:3',
      '0:4',
      '1',
      ...[0, 1, 2, 3, 4, 5, 6].map((i) => `1:${i}`),
      '2',
      '3',
    ]);
    const [gpu, first] = list;
    expect(gpu).toMatchObject({ instance: null, parent: null, state: 'unavailable', migEnabled: true });
    expect(gpu?.reason).toBe('MIG is on: divided into instances, which are claimed instead');
    expect(first).toMatchObject({
      parent: gpu?.uuid,
      name: 'NVIDIA A100-SXM4-80GB MIG 3g.40gb',
      state: 'free',
      computeMode: 'default',
      powerWatts: null,
      utilizationPercent: null,
      temperatureCelsius: 31,
      migEnabled: null,
      migInstances: [],
    });
    expect(first?.memory.totalBytes).toBe(40 * 1024 ** 3);
  });

  test('counts a process on its own instance only', async () => {
    const stranger = machine.start([
      join(binaries(), 'gpu-owner-simulator'),
      'occupy',
      '0:3',
      '--memory',
      '1GiB',
    ]);
    await output(stranger, /ready/);
    const now = await rows();
    expect(now['0:3']).toMatchObject({ state: 'busy', processes: [{ pid: stranger.pid }] });
    expect(now['0:3']?.memory.usedBytes).toBeGreaterThan(1024 ** 3);
    expect(now['0:4']).toMatchObject({ state: 'free', processes: [], memory: { usedBytes: 0 } });
  });

  test('follows instances that come and go, and a GPU that falls silent or is lost', async () => {
    machine.set('gpu=0', 'instances=2');
    expect(Object.keys(await rows()).filter((name) => name.startsWith('0'))).toEqual(['0', '0:2']);
    machine.set('gpu=0', 'instances=none');
    expect((await rows())['0']?.reason).toMatch(/nobody has made instances/);
    machine.set('gpu=0', 'instances=default', 'lost=on');
    expect((await rows())['0']?.reason).toMatch(/fallen off the bus/);
    // In a process that has seen the instances, they are as unwell as their GPU, not gone.
    machine.set('gpu=0', 'lost=off');
    const { stdout } = await runFixture('changing-instances.mjs');
    const all = (text: string, ofGPU = text) =>
      [ofGPU.replace('N', 'GPU'), ...[0, 2, 3, 4].map((i) => text.replace('N', String(i)))].join();
    const well = all('N ok true free', 'N ok true unavailable');
    expect(stdout.trim().split('\n')).toEqual([
      well,
      all('N lost false unavailable'),
      all('N not-responding false unavailable'),
      all('N not-responding false unavailable'),
      well,
    ]);
  });
});

describe('a claim without a choice', () => {
  test('for one takes a whole GPU before an instance, then the smallest instance that will do', async () => {
    expect(await find('')).toEqual([['2']]);
    const both = await hold('-n', '2', '--placeholder', 'none');
    expect(both.devices.map(({ index }) => index)).toEqual([2, 3]);
    expect(await find('', '--min-free-memory 15GiB', '--min-free-memory 30GiB')).toEqual([
      ...[['0:3'], ['0:2'], ['0:0']],
    ]);
    await both.end();
  });

  test('for several takes whole GPUs where there are enough, else instances; never both', async () => {
    expect(await find('-n 2', '-n 3', '-n 2 --devices 0')).toEqual([
      ...[
        ['2', '3'],
        ['0:3', '0:4', '1:0'],
        ['0:3', '0:4'],
      ],
    ]);
    const one = await hold('--placeholder', 'none');
    expect(await find('-n 2', '-n 20', '-n 4 --devices 2-3,0:0,0:2')).toEqual([
      expect.stringContaining('2 GPUs asked for, only 1 is free'),
      expect.stringContaining('this machine has 4, and 11 MIG instances'),
      expect.stringContaining('never mixes whole GPUs and MIG instances'),
    ]);
    await one.end();
  });

  test('can be narrowed by number, UUID and name, also those of the GPU', async () => {
    const { '1:2': chosen, '1': gpu } = await rows();
    const found: [options: string, instance: string][] = [
      ['--devices 1:2', '1:2'],
      [`--devices ${chosen?.uuid.slice(0, 16)}`, '1:2'],
      ['--devices 2g.20gb', '0:2'],
      [`--devices ${gpu?.uuid} --exclude 1:0,1:1`, '1:2'],
      ['--devices 0-1 --exclude 0', '1:0'],
      ['--exclude 2-3 --exclude 1g.10gb,H200', '0:2'],
    ];
    expect(await find(...found.map(([options]) => options))).toEqual(found.map(([, instance]) => [instance]));
    expect((await find('-n 5 --exclude MIG'))[0]).toMatch(/of which 4 may be used here/);
  });

  test('takes only instances of an inherited CUDA_VISIBLE_DEVICES, in every form', async () => {
    const { '0:4': chosen, '0': gpu } = await rows();
    const inherited = async (value: string) =>
      (await machine.runCommand(['find'], { env: { CUDA_VISIBLE_DEVICES: value } })).stdout.trim();
    expect(await inherited(chosen?.uuid ?? '')).toBe(chosen?.uuid);
    expect(await inherited(chosen?.uuid.slice(0, 14) ?? '')).toBe(chosen?.uuid);
    expect(await inherited(`MIG-${gpu?.uuid}/10/0`)).toBe(chosen?.uuid);
    // A divided GPU that was given means its instances.
    expect(await inherited(gpu?.uuid ?? '')).toBe((await rows())['0:3']?.uuid);
  });
});

describe('a claim', () => {
  test('by run has the variable, the lease and the placeholder on the right instance', async () => {
    const { '0:2': wanted } = await rows();
    const child = machine.startCommand([
      'run',
      '--devices',
      '0:2',
      '--visible-devices',
      'index',
      '--',
      'sh',
      '-c',
      'echo $CUDA_VISIBLE_DEVICES; sleep 60',
    ]);
    expect(await output(child, /(MIG-\S+)\n/)).toBe(wanted?.uuid);
    expect(Object.keys(witnessed())).toEqual(['0:2']);
    const now = await rows();
    expect(now['0:2']).toMatchObject({
      state: 'leased',
      lease: { command: expect.stringMatching(/sleep 60/) },
    });
    expect(now['0']).toMatchObject({ state: 'unavailable', lease: null });
    expect(now['0:3']?.state).toBe('free');
    const second = await machine.runCommand(['run', '--no-wait', '--devices', '0:2', 'true']);
    expect(second).toMatchObject({ code: 75, stderr: expect.stringMatching(/GPU 0:2: leased by/) });
  });

  test('by the library has two instances with their placeholders, and gives them back on release', async () => {
    const { stdout, stderr } = await runFixture('two-instances.mjs');
    expect({ stdout, stderr }).toEqual({ stdout: '0:3,0:4\ntrue 2\n0:null,0:3,0:4\n 0\n', stderr: '' });
  });

  test('notices a stranger on the same instance, and none on a neighbour', async () => {
    const { '0:2': wanted } = await rows();
    const claim = (where: string) => runFixture('claim-beside-stranger.mjs', where);
    expect((await claim('0:3')).stdout).toBe(`${wanted?.uuid}\n`);
    expect((await claim('0:2')).stdout).toBe('ERR_GPU_UNAVAILABLE\n');
  });

  test('ends with its holder, whatever kills it', async () => {
    const child = machine.start([
      process.execPath,
      '--input-type=module',
      '-e',
      machine.script(`new GPUOwner({ devices: '1:3' }); console.log('claimed'); setInterval(() => {}, 1000)`),
    ]);
    await output(child, /claimed/);
    expect(witnessed()).toEqual({ '1:3': [child.pid] });
    machine.set('teardown=200'); // the driver takes its time to forget it
    child.kill('SIGKILL');
    await finished(child);
    const next = await machine.runCommand(['run', '--no-wait', '--devices', '1:3', 'true']);
    expect(next).toMatchObject({ code: 0, stderr: '' });
    // Nor is a part of the GPU's own lease left.
    machine.set('teardown=0');
    machine.set('gpu=1', 'mig=off');
    expect((await machine.runCommand(['run', '--no-wait', '--devices', '1', 'true'])).code).toBe(0);
  });
});

describe('a whole GPU and its instances exclude each other', () => {
  const tryHold = (devices: string) =>
    machine.runCommand(['hold', '--placeholder', 'none', '--devices', devices]);

  test('when MIG is switched off, the GPU of a held instance stays leased, and can be waited for', async () => {
    const first = await hold('--devices', '1:0', '--placeholder', 'none');
    const second = await hold('--devices', '1:1', '--placeholder', 'none');
    machine.set('gpu=1', 'mig=off');
    expect((await rows())['1']).toMatchObject({
      state: 'leased',
      lease: { command: expect.stringMatching(/^gpu-owner hold --devices 1:[01]/) },
    });
    expect(await tryHold('1')).toMatchObject({ code: 75, stderr: expect.stringMatching(/GPU 1: leased by/) });
    const waiting = machine.startCommand([
      'run',
      '--devices',
      '1',
      '--placeholder',
      'none',
      'echo',
      'at last',
    ]);
    await output(waiting, /waiting for (?:a|\d+) GPU/);
    const got = output(waiting, /at last/);
    await first.end();
    expect((await rows())['1']?.state).toBe('leased');
    await second.end();
    await got;
  });

  test('when MIG is switched on, no instance of a held GPU can be had before its lease ends', async () => {
    const held = await hold('--devices', '2', '--placeholder', 'none');
    machine.set('gpu=2', 'mig=on');
    const now = await rows();
    expect(now['2:0']).toMatchObject({
      state: 'leased',
      lease: { command: expect.stringMatching(/^gpu-owner hold/) },
    });
    expect(await tryHold('2:0')).toMatchObject({
      code: 75,
      stderr: expect.stringMatching(/GPU 2:0: leased by/),
    });
    const waiting = machine.startCommand([
      'run',
      '--devices',
      '2:0',
      '--placeholder',
      'none',
      'echo',
      'at last',
    ]);
    await output(waiting, /waiting for (?:a|\d+) GPU/);
    const got = output(waiting, /at last/);
    await held.end();
    await got;
  });
});

test('nothing is held twice while processes claim instances and whole GPUs, and MIG is switched', {
  timeout: (SECONDS + 60) * 1000,
}, async () => {
  const witness = randomBytes(8).toString('hex');
  // Marks for other tools would keep a claim from a GPU whose lock failed, and hide that.
  vi.stubEnv('GPU_OWNER_CONVENTIONS', 'none');
  const running = Array.from({ length: CLAIMANTS }, () =>
    machine.start([process.execPath, claimant, witness, String(SECONDS)]),
  );
  const outcomes = running.map((child) => finished(child));
  const end = performance.now() + SECONDS * 1000;
  for (let i = 0; performance.now() < end; i++) {
    machine.set(`gpu=${i % 4}`, `mig=${i % 3 === 0 ? 'off' : 'on'}`);
    if (i === 8 || i === 16) running[i / 8]?.kill('SIGKILL');
    await pause(40);
  }
  const results = await Promise.all(outcomes);
  const texts = results.map(({ stdout }) => stdout).join('');
  expect(texts.match(/violation: .*/g)).toBeNull();
  expect(results.filter(({ code, signal }) => code !== 0 && signal !== 'SIGKILL')).toEqual([]);
  const sum = (what: string) =>
    [...texts.matchAll(new RegExp(`${what} (\\d+)`, 'g'))].reduce((all, [, n]) => all + Number(n), 0);
  console.log(`${sum('instances')} claims of instances and ${sum('whole')} of whole GPUs in ${SECONDS} s`);
  // That it was put to the test at all: how many a busy machine manages isn't promised.
  expect(sum('instances')).toBeGreaterThan(SECONDS / 2);
  expect(sum('whole')).toBeGreaterThan(SECONDS / 4);
});
