// `npm run bench`, as a whole process.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { names } from '../../bench/benchmarks.js';
import { leftovers } from '../../bench/leftovers.js';
import { until } from '../support/simulated.ts';

const script = join(import.meta.dirname, '../../bench/run.js');
let directory: string;
let temporary: string;
let env: NodeJS.ProcessEnv;
let running: ChildProcess | null = null;

beforeEach(() => {
  directory = mkdtempSync(join(realpathSync(tmpdir()), 'gpu-owner-test-'));
  temporary = join(directory, 'tmp');
  mkdirSync(temporary);
  env = { ...process.env, TMPDIR: temporary };
});

afterEach(async () => {
  if (running !== null && running.exitCode === null) {
    const ended = new Promise((resolve) => running?.once('exit', resolve));
    running.kill('SIGTERM');
    await ended;
  }
  rmSync(directory, { recursive: true });
});

function bench(...args: string[]) {
  return spawnSync(process.execPath, [script, ...args], { env, encoding: 'utf8' });
}

test('benchmarks take nothing from the variables of their caller', () => {
  mkdirSync(join(directory, 'locks'));
  Object.assign(env, {
    GPU_OWNER_LOCK_DIR: join(directory, 'locks'),
    GPU_OWNER_SIMULATE: 'nothing',
    GPU_OWNER_CONVENTIONS: 'unheard',
    GPU_OWNER_STOP_AT: 'lease',
  });
  const { status, stderr } = bench('--quick', '--json', join(directory, 'results.json'), 'handover');
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  expect(readdirSync(join(directory, 'locks'))).toEqual([]);
});

test('a benchmark measures, prints and writes its results', () => {
  const file = join(directory, 'results.json');
  const { status, stdout, stderr } = bench('--quick', '--json', file, 'idle');
  expect(status, stderr).toBe(0);
  expect(stdout).toMatch(/Memory of each claimant, in MB\n.+\n.+ {2}that nobody shares +\d+\.\d/);
  expect(stdout).toContain('Targets: 2 met, 0 missed');
  expect(
    Math.max(
      ...stdout
        .replace(/^.*; written: .*$/m, '')
        .split('\n')
        .map((line) => line.length),
    ),
  ).toBeLessThan(101);
  const results = JSON.parse(readFileSync(file, 'utf8'));
  expect(results).toMatchObject({
    quick: true,
    date: expect.stringMatching(/^20/),
    machine: { node: process.versions.node, gpuOwner: expect.any(String), kernel: expect.any(String) },
    load: { before: [expect.any(Number), expect.any(Number), expect.any(Number)], after: expect.any(Array) },
  });
  expect(Object.keys(results.benchmarks)).toEqual(['idle']);
  expect(results.benchmarks.idle.tables[1].rows[0].series['that nobody shares'].median).toBeGreaterThan(0);
  expect(readdirSync(temporary)).toEqual([]);
});

test('a benchmark that fails is reported, and the others go on', () => {
  // Nothing can be compiled, so one fails.
  const file = join(directory, 'results.json');
  env.PATH = join(directory, 'nothing');
  const { status, stdout } = bench('--quick', '--json', file, 'claim', 'queues');
  expect(status).toBe(1);
  expect(stdout).toMatch(/Failed:\n {2}claim: claim\.c can't be compiled: cc is not installed/);
  const { benchmarks } = JSON.parse(readFileSync(file, 'utf8'));
  expect(benchmarks.claim.error).toContain('cc is not installed');
  expect(benchmarks.queues.leftOut).toHaveLength(1);
  expect(readdirSync(temporary)).toEqual([]);
});

test('Ctrl-C leaves no process, no directory, and no results', async () => {
  const file = join(directory, 'results.json');
  running = spawn(process.execPath, [script, '--json', file, 'idle'], { env });
  let at = '';
  await until(() => {
    at = join(temporary, readdirSync(temporary)[0] ?? 'none', 'idle');
    return existsSync(join(at, 'machines')) && leftovers(at).length > 3;
  });
  const ended = new Promise((resolve) => running?.once('exit', (...how) => resolve(how)));
  running.kill('SIGINT');
  expect(await ended).toEqual([130, null]);
  expect(leftovers(at)).toEqual([]);
  expect(readdirSync(temporary)).toEqual([]);
  expect(existsSync(file)).toBe(false);
});

describe('arguments', () => {
  test('--list names all, --help fits in 80 columns', () => {
    const list = bench('--list');
    for (const name of names) expect(list.stdout).toMatch(new RegExp(`^${name} +\\S`, 'm'));
    const help = bench('--help');
    expect(help.stdout).toMatch(/^Usage: npm run bench/);
    for (const line of (help.stdout + list.stdout).split('\n')) expect(line.length).toBeLessThanOrEqual(80);
    expect([list.status, help.status]).toEqual([0, 0]);
  });

  test.each([
    [['nothing'], /there is no benchmark 'nothing'; there are snapshot, /],
    [['--docs', '--quick'], /leave out --quick and names/],
    [['--docs', 'idle'], /leave out --quick and names/],
    [['--json'], /--json/],
    [['--json', '/nowhere/results.json', 'idle'], /ENOENT.+\/nowhere/],
    [['--fast'], /'--fast'/],
  ])('%j are refused before anything is measured', (args, message) => {
    const { status, stdout, stderr } = bench(...args);
    expect(status).toBe(64);
    expect(stdout).toBe('');
    expect(stderr).toMatch(message);
    expect(stderr).toContain('npm run bench -- --help');
  });
});

describe('paired', () => {
  const root = join(import.meta.dirname, '../..');

  test('compares two checkouts and prints the difference with its interval', () => {
    const { status, stdout, stderr } = bench('paired', '--against', root, '--rounds', '2');
    expect(status, stderr).toBe(0);
    expect(stdout).toMatch(/^difference: median -?\d+\.\d\d ms, 95 % \[-?[\d.]+, -?[\d.]+\], 2 pairs$/m);
    expect(readdirSync(temporary)).toEqual([]);
  });

  test.each([
    ['no other checkout', [], '--against is missing'],
    ['a directory without gpu-owner', ['--against', '/'], '/ is no checkout'],
    [
      'an unknown measure',
      ['--against', root, '--measure', 'luck'],
      '--measure takes run, snapshot, claim, acquire',
    ],
  ])('%s is refused', (_, args, message) => {
    const { status, stderr } = bench('paired', ...args);
    expect(status).toBe(64);
    expect(stderr).toContain(message);
  });
});
