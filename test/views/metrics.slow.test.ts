// `gpu-owner metrics` on machines as they are: known values have a sample, unknown ones have none, and no record breaks the
// text.
import { spawnSync } from 'node:child_process';
import {
  chmodSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { request } from 'node:http';
import { userInfo } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { type ReadSample, readExposition, valuesOf } from '../support/exposition.ts';
import { command, type Machine, output, type Starting, until, uuidOf } from '../support/machine.ts';
import { signalLiving } from '../support/processes.ts';
import { machineOf, serveMetrics } from '../support/prometheus.ts';
import { soakTest } from '../support/time.ts';

async function metricsOf(machine: Machine, starting: Starting = {}): Promise<ReadSample[]> {
  const { code, stdout, stderr } = await machine.runCommand(['metrics'], starting);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  return readExposition(stdout);
}

const userName = userInfo().username;
const GiB = 2 ** 30;

/** A job on GPU 0, or on these. */
async function lease(machine: Machine, devices = '0', ...options: string[]): Promise<void> {
  await output(
    machine.startCommand(['run', '--devices', devices, ...options, '--', 'sh', '-c', 'echo runs; sleep 600']),
    /runs/,
  );
}

/** A claim that waits for all GPUs. */
async function wait(machine: Machine, count: number): Promise<number> {
  machine.startCommand(['run', '-n', String(count), '--', 'true']);
  let pid = 0;
  await until(async () => {
    const { stdout } = await machine.runCommand(['queue', '--json']);
    pid = JSON.parse(stdout)[0]?.pid ?? 0;
    return pid > 0;
  });
  return pid;
}

test('metrics show a lease, a program without a claim, and a wait', async () => {
  const machine = machineOf(3);
  const began = Date.now() / 1_000;
  await lease(machine, '0', '--for', '1h');
  await output(machine.startCommand(['simulate', 'occupy', '1']), /ready/);
  const waiter = await wait(machine, 3);
  const samples = await metricsOf(machine);
  const values = (name: string, ...by: string[]) => valuesOf(samples, name, ...by);

  expect(values('driver_up')).toEqual({ '': 1 });
  expect(values('gpu_info', 'gpu', 'uuid', 'name')).toMatchObject({ [`2 ${uuidOf(2)} Simulated GPU`]: 1 });
  expect(values('gpu_up', 'gpu')).toEqual({ 0: 1, 1: 1, 2: 1 });
  const states = values('gpu_state', 'gpu', 'state');
  expect(Object.keys(states)).toHaveLength(18);
  expect(states).toMatchObject({ '0 leased': 1, '0 free': 0, '1 busy': 1, '2 free': 1, '2 excluded': 0 });
  expect(values('gpu_memory_total_bytes', 'gpu')).toEqual({ 0: 80 * GiB, 1: 80 * GiB, 2: 80 * GiB });
  expect(values('gpu_memory_used_bytes', 'gpu')).toMatchObject({ 1: 416 * 2 ** 20, 2: 0 });
  expect(values('gpu_utilization_ratio', 'gpu')).toMatchObject({ 2: 0 });
  expect(values('gpu_power_watts', 'gpu')).toMatchObject({ 2: 60 });
  expect(values('gpu_temperature_celsius', 'gpu')).toMatchObject({ 2: 30 });
  expect(values('gpu_processes_without_claim', 'gpu')).toEqual({ 0: 0, 1: 1, 2: 0 });

  expect(values('gpu_leased', 'gpu', 'user')).toEqual({ [`0 ${userName}`]: 1 });
  const { 0: leased = -1 } = values('gpu_leased_seconds', 'gpu');
  expect(leased).toBeGreaterThan(0);
  expect(leased).toBeLessThanOrEqual(Date.now() / 1_000 - began);

  expect(values('waiting_claims')).toEqual({ '': 1 });
  expect(values('waiting_gpus')).toEqual({ '': 3 });
  expect(values('suspended_claims')).toEqual({ '': 0 });
  expect(values('longest_wait_seconds')['']).toBeGreaterThan(0);

  signalLiving(waiter, 'SIGSTOP');
  await until(async () => valuesOf(await metricsOf(machine), 'suspended_claims')[''] === 1);
  const suspended = await metricsOf(machine);
  expect(valuesOf(suspended, 'waiting_claims')).toEqual({ '': 1 });
  expect(valuesOf(suspended, 'longest_wait_seconds')).toEqual({ '': 0 });
});

test('a leased GPU that does nothing is idle, and one that works or is free is not', async () => {
  const machine = machineOf(2);
  await lease(machine);
  const idle = async () => valuesOf(await metricsOf(machine), 'gpu_idle_seconds', 'gpu', 'user');
  await until(async () => Object.keys(await idle()).length > 0);
  const leased = valuesOf(await metricsOf(machine), 'gpu_leased_seconds', 'gpu');
  const { [`0 ${userName}`]: seconds, ...others } = await idle();
  expect(others).toEqual({});
  expect(seconds).toBeGreaterThanOrEqual(0);
  expect(seconds).toBeLessThan((leased[0] ?? 0) + 60);
  machine.set('gpu=0', 'utilization=50');
  expect(await idle()).toEqual({});
});

test('values that the driver does not tell are absent (WSL)', async () => {
  const machine = machineOf('wsl');
  const [gpu] = await machine.status();
  expect(gpu).toMatchObject({ processes: null });
  const samples = await metricsOf(machine);
  expect(valuesOf(samples, 'gpu_memory_total_bytes', 'gpu')).toEqual({ 0: gpu.memory.totalBytes });
  const unknown = {
    processes_without_claim: gpu.processes,
    power_watts: gpu.powerWatts,
    utilization_ratio: gpu.utilizationPercent,
  };
  for (const [name, value] of Object.entries(unknown)) {
    expect([name, valuesOf(samples, `gpu_${name}`, 'gpu')[0] === undefined]).toEqual([name, value === null]);
  }
});

test('a GPU that hangs is down, and the others are told of', async () => {
  const machine = machineOf(2);
  machine.set('gpu=0', 'hang=memory');
  const samples = await metricsOf(machine);
  expect(valuesOf(samples, 'gpu_up', 'gpu')).toEqual({ 0: 0, 1: 1 });
  expect(valuesOf(samples, 'gpu_state', 'gpu', 'state')).toMatchObject({ '0 unavailable': 1, '1 free': 1 });
  for (const name of ['memory_used_bytes', 'power_watts', 'processes_without_claim'])
    expect(Object.keys(valuesOf(samples, `gpu_${name}`, 'gpu'))).toEqual(['1']);
});

test('without a driver, the locks alone are reported', async () => {
  const machine = machineOf(1);
  await lease(machine);
  await wait(machine, 1);
  const env = {
    GPU_OWNER_SIMULATE: undefined,
    GPU_OWNER_NVML_LIBRARY: '/nonexistent/libnvidia-ml.so.1',
    GPU_OWNER_LOCK_DIR: machine.lockDirectory,
  };
  const { code, stdout, stderr } = await machine.runCommand(['metrics'], { env });
  expect({ code, stderr }).toEqual({ code: 0, stderr: expect.stringMatching(/no NVIDIA driver found/) });
  const samples = readExposition(stdout);
  expect(valuesOf(samples, 'driver_up')).toEqual({ '': 0 });
  expect(valuesOf(samples, 'gpu_up')).toEqual({});
  expect(valuesOf(samples, 'waiting_claims')).toEqual({ '': 1 });
});

test('MIG instances have a label of their own, and their processes count once as without a claim', async () => {
  const machine = machineOf('a100x4-mig');
  await output(
    machine.startCommand(['run', '--devices', '1:0', '--', 'sh', '-c', 'echo runs; sleep 600']),
    /runs/,
  );
  await output(machine.startCommand(['simulate', 'occupy', '1:2']), /ready/);
  const samples = await metricsOf(machine);
  expect(valuesOf(samples, 'gpu_leased', 'gpu', 'mig', 'user')).toEqual({ [`1 0 ${userName}`]: 1 });
  const alone = valuesOf(samples, 'gpu_processes_without_claim', 'gpu', 'mig');
  expect(Object.entries(alone).filter(([, count]) => count > 0)).toEqual([['1 2', 1]]);
  expect(valuesOf(samples, 'gpu_state', 'gpu', 'mig', 'state')).toMatchObject({
    '1 - unavailable': 1,
    '1 0 leased': 1,
    '1 1 free': 1,
    '1 2 busy': 1,
  });
});

test('hostile records of leases break nothing', async () => {
  const records: Record<string, object | string> = {
    'labels that end the line': { user: 'a"} 1\ngpu_owner_gpu_up{gpu="9"} 1\n\\', until: 'soon' },
    'controls and a huge name': { user: `\u0000\u001b[31m\u202e${'x'.repeat(3_000)}`, since: 12, until: {} },
    'absurd times': { user: ['root'], since: '+275760-09-13T00:00:00.000Z', until: 8.64e15, uid: -1 },
    'times before the machine': { user: 'old', since: '0001-01-01T00:00:00Z', until: -8.64e15 },
    'no record': 'x'.repeat(4096),
    'numbers beyond JSON': '{"user":1e999,"since":1e999,"until":1e999,"generation":1e999}',
  };
  const names = Object.keys(records);
  const machine = machineOf(names.length + 1);
  await lease(machine, names.map((_, gpu) => gpu).join(), '-n', String(names.length));
  for (const [gpu, record] of Object.values(records).entries()) {
    const text = typeof record === 'string' ? record : JSON.stringify({ generation: 1, ...record });
    const file = join(machine.lockDirectory, `${uuidOf(gpu)}.lease`);
    writeFileSync(file, text.padEnd(4096).slice(0, 4096), { flag: 'r+' });
  }
  const samples = await metricsOf(machine);
  expect(valuesOf(samples, 'gpu_up', 'gpu')).toEqual({ 0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1 });
  const leased = Object.keys(valuesOf(samples, 'gpu_leased', 'gpu', 'user'));
  expect(leased).toEqual(names.map((_, gpu) => expect.stringMatching(new RegExp(`^${gpu} `))));
  for (const [gpu, name] of names.entries())
    expect(leased[gpu]?.slice(2), name).toMatch(/^[\p{L}\p{N}.@\\_+$-]{1,64}$/u);
  expect(valuesOf(samples, 'gpu_leased_seconds', 'gpu')).toEqual({});
});

test('--output replaces a file that everybody may read, and leaves nothing beside it', async () => {
  const machine = machineOf(1);
  const directory = join(machine.directory, 'textfile');
  mkdirSync(directory);
  const file = join(directory, 'gpu-owner.prom');
  writeFileSync(file, 'old', { mode: 0o600 });
  const run = await machine.runCommand(['metrics', '--output', file], { umask: '077' });
  expect(run).toMatchObject({ code: 0, stdout: '', stderr: '' });
  expect(valuesOf(readExposition(readFileSync(file, 'utf8')), 'driver_up')).toEqual({ '': 1 });
  expect(statSync(file).mode & 0o7777).toBe(0o644);
  expect(readdirSync(directory)).toEqual(['gpu-owner.prom']);
});

test('--output refuses what it would harm', async () => {
  const machine = machineOf(1);
  const at = (name: string) => join(machine.directory, name);
  mkdirSync(at('directory'));
  writeFileSync(at('target'), 'target');
  symlinkSync('target', at('link'));
  const refused = async (path: string, why: RegExp) => {
    const { code, stdout, stderr } = await machine.runCommand(['metrics', '-o', path]);
    expect({ code, stdout }).toEqual({ code: 64, stdout: '' });
    expect(stderr).toMatch(why);
  };
  await refused(at('directory'), /directory can't be written: it is a directory; name a file in it/);
  await refused(at('link'), /it is not a regular file/);
  expect(readFileSync(at('target'), 'utf8')).toBe('target');
  expect(readdirSync(machine.directory).filter((name) => name.endsWith('.tmp'))).toEqual([]);
});

function statusFor(url: string, host: string): Promise<number | undefined> {
  return new Promise((resolve, reject) => {
    const asked = request(url, { headers: { host } }, (response) => {
      response.resume();
      resolve(response.statusCode);
    });
    asked.on('error', reject).end();
  });
}

test('--listen serves this machine, under its own names only', async () => {
  const url = await serveMetrics(machineOf(1));
  expect(url).toMatch(/^http:\/\/127\.0\.0\.1:\d+\/metrics$/);
  const response = await fetch(url);
  expect(response.headers.get('content-type')).toBe('text/plain; version=0.0.4; charset=utf-8');
  expect(valuesOf(readExposition(await response.text()), 'gpu_up', 'gpu')).toEqual({ 0: 1 });
  for (const host of ['localhost', 'LOCALHOST:9106', '127.0.0.1:1', '127.1.2.3', '[::1]:9106'])
    expect([host, await statusFor(url, host)]).toEqual([host, 200]);
  for (const host of ['example.com', 'localhost.example.com:9106', '127.0.0.1.example.com', '10.0.0.1'])
    expect([host, await statusFor(url, host)]).toEqual([host, 403]);
});

soakTest('the driver is asked once a second at most, however many scrape', async () => {
  const machine = machineOf(1);
  machine.set('count=on');
  const url = await serveMetrics(machine);
  const scrape = async () => (await fetch(url)).text();
  const total = () => {
    const { stdout } = spawnSync(process.execPath, [command, 'simulate', 'show', '--json'], {
      env: machine.env as NodeJS.ProcessEnv,
      encoding: 'utf8',
    });
    const { calls } = JSON.parse(stdout) as { calls: Record<string, number> };
    return Object.values(calls).reduce((sum, each) => sum + each, 0);
  };
  const fresh = async () => {
    const before = await scrape();
    await until(async () => (await scrape()) !== before);
  };
  await fresh(); // the first look asks for more
  const start = total();
  await fresh();
  const once = total() - start;
  expect(once).toBeGreaterThan(0);
  const began = performance.now();
  const texts = new Set<string>();
  for (let i = 0; i < 20; i++) {
    for (const text of await Promise.all(Array.from({ length: 20 }, scrape))) texts.add(text);
  }
  const seconds = (performance.now() - began) / 1_000;
  expect(texts.size).toBeLessThanOrEqual(seconds + 2);
  expect((total() - start - once) / once).toBeLessThanOrEqual(seconds + 2);
});

test('an ordinary user reads what root leases', async () => {
  const machine = machineOf(1);
  chmodSync(machine.directory, 0o755);
  await lease(machine);
  if (process.getuid?.() !== 0) return;
  const samples = await metricsOf(machine, { uid: 65_534 });
  expect(valuesOf(samples, 'gpu_leased', 'gpu', 'user')).toEqual({ '0 root': 1 });
});
