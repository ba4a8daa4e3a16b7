// `npm run bench`, as a whole process, and the page that it writes.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { figures } from '../../bench/figures.js';
import { leftovers } from '../../bench/leftovers.js';
import { fill } from '../../bench/run.js';
import { whyUnchanged } from '../support/changes.ts';
import { until } from '../support/simulated.ts';

const root = join(import.meta.dirname, '../..');
const script = join(root, 'bench/run.js');
const why = whyUnchanged(['bench', 'test/bench']);
let directory: string;
let temporary: string;
let running: ChildProcess | null = null;

beforeEach(() => {
  directory = mkdtempSync(join(realpathSync(tmpdir()), 'gpu-owner-test-'));
  temporary = join(directory, 'tmp');
  mkdirSync(temporary);
  // Other users' jobs write into it.
  chmodSync(directory, 0o755);
});

afterEach(async () => {
  if (running !== null && running.exitCode === null) {
    const ended = new Promise((resolve) => running?.once('exit', resolve));
    running.kill('SIGTERM');
    await ended;
  }
  rmSync(directory, { recursive: true });
});

function bench(args: string[], variables: NodeJS.ProcessEnv = {}) {
  const env = { ...process.env, TMPDIR: temporary, ...variables };
  return spawnSync(process.execPath, [script, ...args], { env, encoding: 'utf8' });
}

test('bench/README.md has the figures of the last full run', () => {
  const page = readFileSync(join(root, 'bench/README.md'), 'utf8');
  const results = JSON.parse(readFileSync(join(root, 'bench/results.json'), 'utf8'));
  expect(fill(page, results)).toBe(page);
  expect(results.quick).toBe(false);
  expect(Object.keys(results.figures)).toEqual(Object.keys(figures));
  for (const { error, rows } of Object.values<{ error?: string; rows: unknown[] }>(results.figures)) {
    expect(error).toBeUndefined();
    expect(rows).not.toEqual([]);
  }
});

test.skipIf(why !== null).for(Object.keys(figures))(
  '%s is measured whatever the caller has set, and nothing is left behind',
  { timeout: 120_000 },
  (name, { skip }) => {
    skip(name === 'fair' && process.geteuid?.() !== 0, 'needs root, to act as several users');
    const file = join(directory, 'results.json');
    mkdirSync(join(directory, 'locks'));
    const { status, stdout, stderr } = bench(['--quick', '--json', file, name], {
      GPU_OWNER_LOCK_DIR: join(directory, 'locks'),
      GPU_OWNER_SIMULATE: 'nothing',
      GPU_OWNER_CONVENTIONS: 'unheard',
      GPU_OWNER_STOP_AT: 'lease',
    });
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    const { rows } = JSON.parse(readFileSync(file, 'utf8')).figures[name];
    for (const { label, unit, median } of rows) {
      expect(stdout).toContain(`  ${label}\n`);
      if (unit !== '') expect(median).toBeGreaterThan(0);
    }
    expect(rows.length).toBeGreaterThan(0);
    expect(readdirSync(join(directory, 'locks'))).toEqual([]);
    expect(readdirSync(temporary)).toEqual([]);
  },
);

test('a benchmark that fails is reported, and the others go on', () => {
  const { status, stdout, stderr } = bench(['--quick', 'snapshot', 'start'], {
    GPU_OWNER_BUILD: join(directory, 'none'),
  });
  expect(status).toBe(1);
  expect(stderr.match(/ {2}failed: /g)).toHaveLength(2);
  expect(stdout).toContain('start: ');
  expect(readdirSync(temporary)).toEqual([]);
});

test('Ctrl-C leaves no process, no directory, and no results', async () => {
  const file = join(directory, 'results.json');
  running = spawn(process.execPath, [script, '--json', file, 'waiting'], {
    env: { ...process.env, TMPDIR: temporary },
    stdio: 'ignore',
  });
  await until(() => leftovers(temporary).length > 3);
  const ended = new Promise((resolve) => running?.once('exit', (...how) => resolve(how)));
  running.kill('SIGINT');
  expect(await ended).toEqual([130, null]);
  expect(leftovers(join(temporary, 'gpu-owner-bench-'))).toEqual([]);
  expect(readdirSync(temporary)).toEqual([]);
  expect(readFileSync(file, 'utf8')).toBe('');
});

test.each([
  [['nothing'], /there is no 'nothing'/],
  [['--docs', '--quick'], /leave out --quick and names/],
  [['--docs', 'start'], /leave out --quick and names/],
  [['--json', '/nowhere/results.json', 'start'], /ENOENT.+\/nowhere/],
  [['--fast'], /'--fast'/],
])('%j are refused before anything is measured', (args, message) => {
  const { status, stdout, stderr } = bench(args);
  expect({ status, stdout }).toEqual({ status: 64, stdout: '' });
  expect(stderr).toMatch(message);
  expect(bench(['--help']).stdout).toContain(Object.keys(figures).join(', '));
});
