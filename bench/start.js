// What `gpu-owner run` costs over starting Node.js at all.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { describe, environment, median } from './measure.js';

const root = dirname(import.meta.dirname);
const ROUNDS = 60;

export function start() {
  const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-bench-'));
  const env = environment({ GPU_OWNER_SIMULATE: '8', GPU_OWNER_SIMULATE_DIR: directory });
  const launcher = join(root, 'bin/gpu-owner.cjs');
  const pairs = {
    'node -e 0': [process.execPath, '-e', '0'],
    'gpu-owner run -- true': [launcher, 'run', '--', 'true'],
    'gpu-owner run --placeholder none -- true': [launcher, 'run', '--placeholder', 'none', '--', 'true'],
    'gpu-owner status': [launcher, 'status'],
  };
  const times = Object.fromEntries(Object.keys(pairs).map((name) => [name, []]));
  try {
    for (let i = 0; i < ROUNDS; i++) {
      for (const [name, [program, ...args]] of Object.entries(pairs)) {
        const begin = performance.now();
        const { status } = spawnSync(program, args, { env, stdio: 'ignore' });
        if (status !== 0) throw new Error(`${name} exited with ${status}`);
        times[name].push(performance.now() - begin);
      }
    }
  } finally {
    rmSync(directory, { recursive: true });
  }
  console.log('From start to end, in turn (simulated driver without latency):');
  const base = median(times['node -e 0']);
  for (const [name, list] of Object.entries(times)) {
    console.log(`  ${name}: ${describe(list, 'ms')}, ${(median(list) - base).toFixed(1)} ms over node -e 0`);
  }
  return Object.fromEntries(Object.entries(times).map(([name, list]) => [name, median(list)]));
}
