// `npm run bench`, as a whole process.
import { spawn, spawnSync } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { names } from '../../bench/benchmarks.js';
import { leftovers } from '../../bench/leftovers.js';
import { until } from '../simulator/simulated.ts';

const script = join(import.meta.dirname, '../../bench/run.js');
let directory: string;
let env: Record<string, string | undefined>;

beforeEach(() => {
  directory = mkdtempSync(join(realpathSync(tmpdir()), 'gpu-owner-test-'));
  env = { ...process.env, TMPDIR: join(directory, 'tmp'), GPU_OWNER_BENCH_RESULTS: undefined };
  mkdirSync(join(directory, 'tmp'));
});

afterEach(() => {
  rmSync(directory, { recursive: true });
});

function bench(...args: string[]) {
  return spawnSync(process.execPath, [script, ...args], { env, encoding: 'utf8' });
}
