// The parts of a real machine are found, and missing ones are named. The driver's library is the simulated one, under the name
// and by the way by which NVIDIA's is found; nvidia-smi and Python are scripts.
import { spawnSync } from 'node:child_process';
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { built } from '../../bench/measure.js';

const bench = join(import.meta.dirname, '../../bench');
let directory: string;

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'gpu-owner-test-'));
  mkdirSync(join(directory, 'bin'));
});

afterEach(() => {
  rmSync(directory, { recursive: true });
});

function program(name: string, script: string) {
  writeFileSync(join(directory, 'bin', name), `#!/bin/sh\n${script}\n`);
  chmodSync(join(directory, 'bin', name), 0o755);
}

function asked(expression: string, more: NodeJS.ProcessEnv = {}) {
  const script = `
    import { nvidiaSmi, pythonWith, realDriver } from ${JSON.stringify(join(bench, 'real.js'))};
    import { smiPoll } from ${JSON.stringify(join(bench, 'smi.js'))};
    const leftOut = [];
    const bench = { directory: ${JSON.stringify(directory)}, leaveOut: (...words) => leftOut.push(words) };
    console.log(JSON.stringify(${expression}));`;
  const PATH = `${join(directory, 'bin')}:${process.env.PATH}`;
  const env = { ...process.env, PATH, GPU_OWNER_SIMULATE: '2', GPU_OWNER_SIMULATE_DIR: directory, ...more };
  const { stdout, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', script], {
    env,
    encoding: 'utf8',
  });
  expect(stderr).toBe('');
  return JSON.parse(stdout);
}

const LD_LIBRARY_PATH = join(built, 'simulator');

test('the version and the GPUs of a real driver are found', () => {
  const { available, version, gpus } = asked('realDriver()', { LD_LIBRARY_PATH });
  expect({ available, count: gpus.length }).toEqual({ available: true, count: 2 });
  expect(version).toMatch(/^\d+\.\d+/);
});

test('the reason is told why a driver cannot be asked', () => {
  writeFileSync(join(directory, 'libnvidia-ml.so.1'), 'not a library');
  const { available, why } = asked('realDriver()', { LD_LIBRARY_PATH: directory });
  expect(available).toBe(false);
  expect(why).toContain('libnvidia-ml.so.1');
});

test('nvidia-smi and Python modules are found, or the reason is told', () => {
  program('nvidia-smi', 'echo 575.1');
  program(
    'python3',
    'case "$*" in *torch*) echo "No CUDA runtime is found" >&2; exit 1;; *) echo 13.5;; esac',
  );
  expect(asked('[nvidiaSmi(), pythonWith("pynvml"), pythonWith("torch")]')).toEqual([
    { available: true, version: '575.1', program: 'nvidia-smi' },
    { available: true, version: '13.5', program: 'python3' },
    { available: false, why: 'No CUDA runtime is found' },
  ]);
});

test('a poll asks which GPUs there are, and what computes on them', () => {
  const simulated = asked(
    '[smiPoll(bench).poll(), smiPoll(bench).times(3), smiPoll(bench).times(2, "apps"), leftOut]',
  );
  expect(simulated[0]).toMatch(/^0, GPU-\S+, \d+ MiB\n1, GPU-\S+, \d+ MiB\n$/);
  expect(simulated[1]).toHaveLength(3);
  for (const milliseconds of [...simulated[1], ...simulated[2]]) expect(milliseconds).toBeGreaterThan(0);

  program('nvidia-smi', 'echo "$1"');
  const real = asked('[smiPoll(bench, { real: true }), smiPoll(bench, { real: true }).poll()]', {
    LD_LIBRARY_PATH,
  });
  expect(real[0].label).toBe('nvidia-smi');
  expect(real[1]).toMatch(/^--query-gpu=.*\n--query-compute-apps=.*\n$/);
});

test('without nvidia-smi a real driver is asked by the stand-in, and that is said', () => {
  program('nvidia-smi', 'echo "it has failed" >&2; exit 9');
  const [{ label }, leftOut] = asked('[smiPoll(bench, { real: true }), leftOut]', { LD_LIBRARY_PATH });
  expect(label).toBe('a process that asks NVML (no less than nvidia-smi)');
  expect(leftOut).toEqual([['nvidia-smi', 'it has failed']]);
});
