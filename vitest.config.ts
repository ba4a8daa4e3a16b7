import { defineConfig } from 'vitest/config';
import { WAIT_TIMEOUT_MS } from './test/support/time.ts';

/** `npm test` leaves these to `npm run test:all`: folders that test the whole from outside, and files that take longer than a few seconds. */
const SLOW = [
  'test/{docs,examples,fuzz,integration,packaging,python}/**/*.test.ts',
  'test/**/*.slow.test.ts',
];

/** Files that mostly wait for processes, and take a tenth of a processor: more of them run at a time, after the others. */
const WAITING = {
  quick: ['test/jobs/*.test.ts'],
  slow: [
    'test/jobs/!(costs|killed-submit|random-kills|waiting).slow.test.ts',
    'test/integration/time-limit.test.ts',
  ],
};
const MANY_WORKERS = { maxWorkers: 8, sequence: { groupOrder: 1 } };

const project = (name: string, include: string[], exclude: string[], more = {}) => ({
  extends: true as const,
  test: { name, include, exclude, ...more },
});

// Node.js reads this file at each start, for 30 ms. Tests that ask a registry give it back: `registryEnv` in test/support/packages.ts.
const { NODE_EXTRA_CA_CERTS } = process.env;
if (NODE_EXTRA_CA_CERTS) process.env.GPU_OWNER_TEST_CA_CERTS = NODE_EXTRA_CA_CERTS;
delete process.env.NODE_EXTRA_CA_CERTS;

export default defineConfig({
  test: {
    projects: [
      project('quick', ['test/**/*.test.ts'], [...SLOW, ...WAITING.quick]),
      project('slow', SLOW, WAITING.slow),
      project('quick-waiting', WAITING.quick, SLOW, MANY_WORKERS),
      project('slow-waiting', WAITING.slow, [], MANY_WORKERS),
    ],
    globalSetup: ['test/setup/built.ts', 'test/setup/bundles.ts'],
    setupFiles: ['test/setup/limits.ts'],
    // Each test file is a process of its own: the addon, `CUDA_VISIBLE_DEVICES` and locks are process-wide state.
    pool: 'forks',
    // The tests start many processes themselves, and wait for them a third of the time: a file more than there are processors
    // where CI runs is what keeps those busy. More only make the timing of all worse.
    maxWorkers: 3,
    // Tests that are marked as concurrent do little but wait.
    maxConcurrency: 3,
    // For what hangs. A test that takes 10 s on a machine of its own takes a minute on a busy one, or with sanitizers.
    testTimeout: 120_000,
    hookTimeout: 60_000,
    teardownTimeout: 10_000,
    expect: { poll: { timeout: WAIT_TIMEOUT_MS } },
  },
});
