import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import { defineConfig } from 'vitest/config';
import { LongestFirst } from './test/setup/order.ts';
import { WAIT_TIMEOUT_MS } from './test/support/time.ts';

/** `npm test` leaves these to `npm run test:all`: folders that test the whole from outside, and files that take longer than a few seconds. */
const SLOW = /^test\/(docs|examples|fuzz|integration|packaging|python)\/|\.slow\.test\.ts$/;

/**
 * What a test file has in it that needs a process of its own: replaced modules, another environment, helpers that tidy up after each test.
 * The others share processes: they load the modules that they test once, not 250 times.
 */
const ALONE =
  /\bvi\.(mock|stub)|process\.env[.[].* = |\/(supervising|stuck-machine|keeper|fixture|cluster)\.ts'/;

const files = readdirSync(join(import.meta.dirname, 'test'), { recursive: true, encoding: 'utf8' })
  .filter((path) => path.endsWith('.test.ts'))
  .map((path) => {
    const isAlone = ALONE.test(readFileSync(join(import.meta.dirname, 'test', path), 'utf8'));
    return { path: join('test', path), isSlow: SLOW.test(join('test', path)), isAlone };
  });

const project = (name: string, isSlow: boolean, isAlone: boolean) => ({
  extends: true as const,
  test: {
    name,
    include: files
      .filter((file) => file.isSlow === isSlow && file.isAlone === isAlone)
      .map(({ path }) => path),
    isolate: isAlone,
  },
});

// Node.js reads this file at each start, for 30 ms. Tests that ask a registry give it back: `registryEnv` in test/support/packages.ts.
const { NODE_EXTRA_CA_CERTS } = process.env;
if (NODE_EXTRA_CA_CERTS) process.env.GPU_OWNER_TEST_CA_CERTS = NODE_EXTRA_CA_CERTS;
delete process.env.NODE_EXTRA_CA_CERTS;

// A shim of pyenv's takes ten times as long to start as the Python that it stands for.
const { stdout: python } = spawnSync('python3', ['-c', 'import sys; print(sys.executable)'], {
  encoding: 'utf8',
});
const { PATH = '' } = process.env;
if (python && !PATH.split(delimiter).includes(dirname(python)))
  process.env.PATH = [dirname(python), PATH].join(delimiter);

export default defineConfig({
  test: {
    projects: [
      project('quick', false, false),
      project('quick-alone', false, true),
      project('slow', true, false),
      project('slow-alone', true, true),
    ],
    sequence: { sequencer: LongestFirst },
    globalSetup: ['test/setup/built.ts', 'test/setup/bundles.ts'],
    setupFiles: ['test/setup/limits.ts'],
    pool: 'forks',
    // What esbuild makes of a file is kept: four projects in two runs would each compile nearly all files. Not by hand: errors of the
    // global setup can't be printed then.
    experimental: { fsModuleCache: process.env.CI === 'true' },
    // Most tests wait for processes, two thirds of the time: this many keep the two processors busy on which CI runs.
    maxWorkers: 5,
    // Tests that are marked as concurrent do little but wait.
    maxConcurrency: 3,
    // For what hangs. A test that takes 10 s on a machine of its own takes a minute on a busy one, or with sanitizers.
    testTimeout: 120_000,
    hookTimeout: 60_000,
    teardownTimeout: 10_000,
    expect: { poll: { timeout: WAIT_TIMEOUT_MS } },
  },
});
