import { defineConfig } from 'vitest/config';
import { LongestFirst } from './test/setup/longest-first.ts';
import { PATIENCE } from './test/support/time.ts';

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    globalSetup: ['test/setup/built.ts', 'test/setup/bundles.ts'],
    // Each test file is a process of its own: the addon, `CUDA_VISIBLE_DEVICES` and locks are process-wide state.
    pool: 'forks',
    // The tests start many processes themselves, and wait for them a third of the time: a file more than there are processors
    // where CI runs is what keeps those busy. More only make the timing of all worse.
    maxWorkers: 3,
    sequence: { sequencer: LongestFirst },
    // Tests that are marked as concurrent do little but wait.
    maxConcurrency: 3,
    // For what hangs. A test that takes 10 s on a machine of its own takes a minute on a busy one, or with sanitizers.
    testTimeout: 120_000,
    hookTimeout: 60_000,
    teardownTimeout: 10_000,
    expect: { poll: { timeout: PATIENCE } },
  },
});
