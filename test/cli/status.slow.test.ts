import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { binaries } from '../support/binaries.ts';
import { command, finished, Machine, output, python } from '../support/machine.ts';
import { TestTerminal } from '../support/terminal.ts';

const MACHINES = ['a100x4-mig', 'wsl', '64'];
const pty = join(import.meta.dirname, '../jobs/fixtures/pty_bridge.py');

let machine: Machine;
afterEach(() => machine.close());

function expectToFit(text: string, columns = 80): void {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  expect(text).not.toMatch(/\x1b/);
  for (const line of text.trimEnd().split('\n'))
    expect([line, [...line].length <= columns]).toEqual([line, true]);
}

/** Every member of the contract is there, null where the driver can’t tell. */
function expectContract(gpu: unknown): void {
  const numberOrNull = expect.toSatisfy((value) => value === null || (Number.isFinite(value) && value >= 0));
  expect(gpu).toEqual({
    index: 0,
    instance: null,
    parent: null,
    uuid: expect.stringMatching(/^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/),
    name: expect.stringMatching(/./),
    pciBusId: expect.stringMatching(/^[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.0$/),
    state: expect.stringMatching(/^(free|unavailable)$/),
    reason: expect.toSatisfy((reason) => reason === null || /^MIG is on/.test(reason)),
    memory: {
      totalBytes: expect.any(Number),
      usedBytes: expect.any(Number),
      freeBytes: expect.any(Number),
      reservedBytes: numberOrNull,
    },
    powerWatts: numberOrNull,
    powerLimitWatts: numberOrNull,
    utilizationPercent: numberOrNull,
    temperatureCelsius: numberOrNull,
    memoryRepairPending: expect.toSatisfy((value) => [true, false, null].includes(value)),
    computeMode: expect.stringMatching(/^default$/),
    displayActive: expect.toSatisfy((value) => [true, false, null].includes(value)),
    migEnabled: expect.toSatisfy((value) => [true, false, null].includes(value)),
    migInstances: expect.any(Array),
    processes: expect.toSatisfy((value) => value === null || Array.isArray(value)),
    lease: null,
    shares: [],
    idle: null,
    booking: null,
    suspect: null,
  });
}

describe.each(MACHINES)('the table of machine %s', (name) => {
  test('fits 80 columns, whatever goes on, and has a line for each GPU that --json has', async () => {
    machine = new Machine(name);
    const before = await machine.status();
    expectContract(before[0]);
    if (name === 'wsl') expect(before[0]).toMatchObject({ processes: null, utilizationPercent: null });
    if (name === 'a100x4-mig')
      expect(before[0]).toMatchObject({ migEnabled: true, utilizationPercent: null });
    const look = async () => {
      const { code, stdout, stderr } = await machine.runCommand(['status']);
      expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
      expectToFit(stdout);
      expect(stdout.match(/^ *\d+(?::\d)? {2}.* (free|leased|busy|unavailable)$/gm)).toHaveLength(
        (await machine.status()).length,
      );
      return stdout;
    };
    const busy = machine.start([
      join(binaries(), 'gpu-owner-simulator'),
      'occupy',
      String(name === 'a100x4-mig' ? 3 : before.length - 1),
      '--memory',
      '3GiB',
      '--name',
      'a-process-with-a-very-long-name',
    ]);
    await output(busy, /ready|cannot|error/);
    const holder = machine.startCommand(['hold', '--force', '--placeholder', 'none']);
    await Promise.race([output(holder, /visibleDevices/), finished(holder)]).catch(() => {});
    machine.set('gpu=all', 'utilization=100', 'power=9999', 'temperature=105');
    await look();
    machine.set('gpu=all', 'lost=on');
    await look();
    busy.kill('SIGKILL');
    holder.kill('SIGKILL');
  });
});

test('status --json has processes and lease with all their members', async () => {
  machine = new Machine(2);
  await machine.status();
  const stranger = machine.start([
    join(binaries(), 'gpu-owner-simulator'),
    'occupy',
    '1',
    '--memory',
    '2GiB',
    '--type=graphics',
  ]);
  const pid = Number(await output(stranger, /ready (\d+)/));
  const holder = machine.startCommand(['hold']);
  await output(holder, /visibleDevices/);
  const [held, other] = await machine.status();
  expect(held).toMatchObject({
    state: 'leased',
    reason: expect.stringMatching(/^leased by \w+ since \d\d:\d\d \(pid \d+: .*hold\)$/),
    processes: [{ pid: expect.any(Number), type: 'compute', usedBytes: expect.any(Number) }],
  });
  expect(held.lease).toEqual({
    user: expect.any(String),
    uid: process.getuid?.(),
    pid: holder.pid,
    host: expect.any(String),
    command: expect.stringMatching(/hold$/),
    since: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/),
    convention: 'gpu-owner',
  });
  expect(Math.abs(Date.now() - Date.parse(held.lease.since))).toBeLessThan(30_000);
  expect(other.processes).toEqual([{ pid, type: 'graphics', usedBytes: expect.any(Number) }]);
});

test('a reason with words longer than the line is broken, not cut', async () => {
  machine = new Machine(1);
  const name = join(machine.directory, 'a'.repeat(120));
  writeFileSync(name, 'exclude: [0]\n');
  const { stdout } = await machine.runCommand(['status'], { env: { GPU_OWNER_MACHINE_CONFIG: name } });
  expectToFit(stdout);
  expect(stdout.replaceAll(/\s/g, '')).toContain(`bannedby${name}`);
});

test('the table is as wide as its terminal', async () => {
  machine = new Machine(1);
  const name = join(machine.directory, 'a'.repeat(120));
  writeFileSync(name, 'exclude: [0]\n');
  const env = { ...process.env, ...machine.env, GPU_OWNER_MACHINE_CONFIG: name };
  const terminal = new TestTerminal([process.execPath, command, 'status'], { columns: 250, env });
  await terminal.shows(/banned by/);
  expect(terminal.lines.find((line) => line.includes('banned by'))).toContain(name);
  terminal.close();
});

describe('colours and terminals', () => {
  const inTerminal = (args: string[], env = {}) =>
    machine.start([python, pty, process.execPath, command, ...args], {
      env: { TERM: 'xterm', NO_COLOR: undefined, ...env },
    });

  test('status has colours on a terminal, and none with NO_COLOR, on a dumb one or in a pipe', async () => {
    machine = new Machine(1);
    await machine.status();
    for (const [env, coloured] of [
      [{}, true],
      [{ NO_COLOR: '1' }, false],
      [{ TERM: 'dumb' }, false],
    ] as const) {
      const child = inTerminal(['status'], env);
      const text = await output(child, /GPU[\s\S]*free/);
      expect(text.includes('\u001b[32mfree')).toBe(coloured);
      child.kill('SIGKILL');
    }
    expectToFit(
      (await machine.runCommand(['status'], { env: { FORCE_COLOR: '1', CLICOLOR_FORCE: '1' } })).stdout,
    );
  });
});

describe('find', () => {
  test('prints what CUDA_VISIBLE_DEVICES would be, and takes nothing', async () => {
    machine = new Machine('mixed');
    const uuids = machine.uuids();
    expect((await machine.runCommand(['find'])).stdout).toBe(`${uuids[2]}\n`); // most free memory
    expect((await machine.runCommand(['find', '-n', '3'])).stdout).toBe(`${uuids.join(',')}\n`);
    expect((await machine.runCommand(['find', '-n', '2', '--visible-devices', 'index'])).stdout).toBe(
      '1,2\n',
    );
    expect(
      (
        await machine.runCommand(['find', '--devices', '0'], {
          env: { CUDA_VISIBLE_DEVICES: '0', CUDA_DEVICE_ORDER: 'PCI_BUS_ID' },
        })
      ).stdout,
    ).toBe(`${uuids[0]}\n`);
    const json = JSON.parse((await machine.runCommand(['find', '-n', '2', '--json'])).stdout);
    expect(json).toEqual((await machine.status()).slice(1));
    await expect.poll(() => machine.states()).toEqual(['free', 'free', 'free']);
  });
});
