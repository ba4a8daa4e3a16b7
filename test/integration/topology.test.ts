// GPUs that belong together: every kind of claim takes connected ones, never later than others, and believes only what the driver,
// root, or its own user says about connections.
import { execFileSync } from 'node:child_process';
import { chownSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { cpus } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { binaries } from '../support/binaries.ts';
import { alice, bob, endHolder, startHolder } from '../support/holders.ts';
import { command, Machine, type Starting, whyNotNobody } from '../support/machine.ts';

/** NVLink bridges between GPUs 0 and 2, and 1 and 3. */
const MACHINE = 'a100x4-bridges';
const noSecondUser = whyNotNobody();

let machine: Machine;
let uuids: string[];
beforeEach(() => {
  machine = new Machine(MACHINE);
  uuids = machine.uuids();
});
afterEach(() => machine.close());

const SHOW = ['sh', '-c', 'echo "on $CUDA_VISIBLE_DEVICES"'];
const on = (...indices: number[]) => `on ${indices.map((index) => uuids[index]).join(',')}\n`;
const files = () => readdirSync(machine.lockDirectory).filter((name) => name.startsWith('topology-'));
const fileOf = (uid: number | undefined) =>
  join(machine.lockDirectory, files().find((name) => name.startsWith(`topology-${uid}-`)) as string);
const simulator = (...args: string[]) =>
  execFileSync(join(binaries(), 'gpu-owner-simulator'), args, { env: machine.env as NodeJS.ProcessEnv });
/** How often a command asks the driver about NVLinks and distances. */
async function asks(options: string[] = [], starting: Starting = {}): Promise<number> {
  simulator('set', 'count=on');
  expect(await machine.runCommand(['run', ...options, '--', 'true'], starting)).toMatchObject({ code: 0 });
  const { nvlink = 0, topology = 0 } = JSON.parse(simulator('show', '--json').toString()).calls;
  return nvlink + topology;
}

test('two GPUs with NVLink between them are taken together, and a lone one leaves the pair', async () => {
  expect(await machine.runCommand(['run', '-n', '2', '--', ...SHOW])).toMatchObject({ stdout: on(0, 2) });
  expect(await machine.runCommand(['find', '-n', '2'])).toMatchObject({ stdout: on(0, 2).slice(3) });
  const first = await startHolder(machine, ['--devices', '1']);
  expect(await machine.runCommand(['run', '--', ...SHOW])).toMatchObject({ stdout: on(3) });
  expect(
    await machine.runScript('console.log(new GPUOwner(2).devices.map(({ index }) => index).join())'),
  ).toMatchObject({
    stdout: '0,2\n',
  });
  const second = await startHolder(machine, ['-n', '2']);
  // Connections are preferred, and not waited for.
  const last = await startHolder(machine);
  await endHolder(second);
  expect(await machine.runCommand(['run', '-n', '2', '--no-wait', '--', ...SHOW])).toMatchObject({
    stdout: on(0, 2),
  });
  await endHolder(first);
  const third = await startHolder(machine, ['--devices', '2']);
  expect(await machine.runCommand(['run', '-n', '2', '--no-wait', '--', ...SHOW])).toMatchObject({
    stdout: on(0, 1),
  });
  await endHolder(third);
  await endHolder(last);
});

test('the driver is asked once per boot and user, and only where there is a choice', async () => {
  expect(await asks(['-n', '4'])).toBe(0);
  expect(await asks(['--memory', '20GiB'])).toBe(0);
  expect(await asks()).toBeGreaterThan(6);
  expect(files()).toHaveLength(1);
  expect(await asks()).toBe(0);
  writeFileSync(fileOf(process.geteuid?.()), 'not JSON');
  expect(await asks()).toBeGreaterThan(6);
  expect(await asks()).toBe(0);
  const path = fileOf(process.geteuid?.());
  writeFileSync(path, readFileSync(path, 'utf8').replace(/"boot":"[^"]*"/, '"boot":"another"'));
  expect(await asks()).toBeGreaterThan(6);
  expect(await asks()).toBe(0);
});

test.skipIf(noSecondUser !== null)(
  `a user believes root, and no other user${noSecondUser === null ? '' : `: ${noSecondUser}`}`,
  async () => {
    await asks([], alice); // the lock directory is alice's: bob can't remove files of others there
    expect(await asks([], bob)).toBeGreaterThan(6);
    expect(await asks([], bob)).toBe(0);
    // Another user has made a file of bob's name, which says that GPUs 0 and 1 are connected.
    const path = fileOf(bob.uid);
    const lie = JSON.parse(readFileSync(path, 'utf8'));
    lie.links = lie.links.map((value: number, i: number) => (i === 1 ? 12 : i % 3 === 1 ? 0 : value));
    writeFileSync(path, JSON.stringify(lie));
    chownSync(path, bob.uid - 1, bob.uid - 1);
    expect(await machine.runCommand(['run', '-n', '2', '--', ...SHOW], bob)).toMatchObject({
      stdout: on(0, 2),
    });
    expect(await asks([], bob)).toBeGreaterThan(6);
    await asks();
    expect(await asks([], bob)).toBe(0);
  },
);

test('status shows the connections, what is near each GPU, and who has it', async () => {
  const holder = await startHolder(machine, ['-n', '2']);
  const { stdout } = await machine.runCommand(['status', '--topology']);
  expect(stdout).toMatch(/^GPU +0 +1 +2 +3 +NUMA +CPUS +STATE$/m);
  expect(stdout).toMatch(/^ +0 +X +PIX +NV12 +NODE +0 +\S+ +leased by \w+$/m);
  expect(stdout).toMatch(/^ +3 +NODE +NV12 +PIX +X +0 +\S+ +free$/m);
  expect(stdout).toMatch(/^NV#: that many NVLinks; PIX: one PCIe switch; NODE: one NUMA node$/m);
  const { gpus, links } = JSON.parse((await machine.runCommand(['status', '--topology', '--json'])).stdout);
  expect(gpus[0]).toEqual({
    index: 0,
    uuid: uuids[0],
    cpus: expect.stringMatching(/^\d+/),
    numaNode: 0,
    nvlinks: { active: 12, inactive: 0 },
  });
  expect(links).toContainEqual({ a: 0, b: 2, kind: 'nvlink', links: 12 });
  expect(links).toContainEqual({ a: 0, b: 1, kind: 'pcie-switch', links: null });
  expect(links).toHaveLength(6);
  await endHolder(holder);
});

describe.skipIf(cpus().length < 2)('a command that is bound to processors', () => {
  // Two NUMA nodes, which share out the processors.
  const nodes = ['two', 'nodes']
    .map((name, node) => `[gpu]\nname = NVIDIA H200\nnuma = ${node}\n# ${name}\n`)
    .join('');
  const PROGRAM = ['python3', '-c', 'import os; print("cpus", *sorted(os.sched_getaffinity(0)))'];
  const half = Math.floor(cpus().length / 2);
  const range = (first: number, last: number) =>
    `cpus ${Array.from({ length: last - first }, (_, i) => first + i).join(' ')}\n`;
  let env: Record<string, string>;
  beforeEach(() => {
    env = { GPU_OWNER_SIMULATE: join(machine.directory, 'nodes.conf') };
    writeFileSync(join(machine.directory, 'nodes.conf'), nodes);
  });
  const bound = (options: string[]) => machine.runCommand(['run', ...options, '--', ...PROGRAM], { env });

  test('runs near its GPU', async () => {
    expect(await bound(['--devices', '0', '--cpu-bind'])).toMatchObject({
      stdout: range(0, half),
      stderr: '',
    });
    expect(await bound(['--devices', '1', '--cpu-bind'])).toMatchObject({
      stdout: range(half, cpus().length),
    });
    expect(await bound(['-n', '2', '--cpu-bind'])).toMatchObject({ stdout: range(0, cpus().length) });
    expect(await bound(['--devices', '1'])).toMatchObject({ stdout: range(0, cpus().length) });
    expect(await bound(['--devices', '1', '--memory', '20GiB', '--cpu-bind'])).toMatchObject({
      stdout: range(half, cpus().length),
    });
  });
});

test('a bridge that is down connects nothing, and is shown', async () => {
  const path = join(machine.directory, 'down.conf');
  writeFileSync(
    path,
    'bridge = 0-2 4 down\nbridge = 1-3 4\n[gpu]\nname = NVIDIA A100 80GB PCIe\ncount = 4\n',
  );
  const env = { GPU_OWNER_SIMULATE: path };
  const { stdout } = await machine.runCommand(['status', '--topology'], { env });
  expect(stdout).toMatch(/^ +0 +X +PIX +NODE +NODE /m);
  expect(stdout).toContain('warning: GPU 2: 4 of its 4 NVLinks are down');
  const { devices } = JSON.parse(
    (
      await machine.run(['sh', '-c', `exec "$0" "$1" hold -n 2 </dev/null`, process.execPath, command], {
        env,
      })
    ).stdout,
  );
  expect(devices.map(({ index }: { index: number }) => index)).toEqual([1, 3]);
});
