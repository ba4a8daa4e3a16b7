// A failed test file in CI's whole run has a second try; by hand it has none.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { whyUnchanged } from '../support/changes.ts';

const root = join(import.meta.dirname, '../..');
const unchanged = whyUnchanged([
  'scripts/run-vitest.js',
  'scripts/vitest-report.js',
  'test/setup',
  'package.json',
]);

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'gpu-owner-retry-'));
});
afterEach(() => rmSync(directory, { recursive: true }));

const retryOutput = () => join(directory, 'output');

/** Runs the fixtures whose names contain one of the filters, and the one that always passes. */
function runFixtures(filters: string[], output: string | undefined) {
  const program = `
    import { runVitest } from ${JSON.stringify(join(root, 'scripts/run-vitest.js'))};
    const [retryOutput, ...filters] = process.argv.slice(2);
    const counts = await runVitest(['whole', ...filters], {
      cwd: ${JSON.stringify(join(import.meta.dirname, 'fixtures/retry'))},
      retryOutput: retryOutput || undefined,
    });
    console.log('counts: ' + JSON.stringify(counts));
  `;
  const { VITEST, VITEST_MODE, VITEST_POOL_ID, VITEST_WORKER_ID, NODE_OPTIONS, ...env } = process.env;
  const run = spawnSync(process.execPath, ['--input-type=module', '-', output ?? '', ...filters], {
    input: program,
    encoding: 'utf8',
    env: { ...env, FIXTURE_DIRECTORY: directory },
  });
  const [, counts = run.stderr] = /^counts: (.*)$/m.exec(run.stdout) ?? [];
  return { ...JSON.parse(counts), text: run.stdout };
}

const outputsOf = (name: string) =>
  ['first.txt', 'second.txt'].map((file) => readFileSync(join(retryOutput(), name, file), 'utf8'));

describe.skipIf(unchanged)(`a second try${unchanged ? `: ${unchanged}` : ''}`, () => {
  test('a file that failed and then passes alone is flaky, and both outputs are kept', () => {
    const flaky = ['a-flaky.fixture.ts'];
    expect(runFixtures(['a-flaky'], retryOutput())).toMatchObject({
      passed: 3,
      failed: 0,
      skipped: 1,
      flaky,
    });
    const [first, second] = outputsOf('a-flaky.fixture.ts');
    expect(first).toContain('this is the first run');
    expect(first).toContain('expected true to be false');
    expect(second).toContain('this is the second run');
    expect(second, 'it runs alone').not.toContain('whole.fixture.ts');

    // The findings of the other part of the same run of CI are added, and count.
    const earlier = join(retryOutput(), 'b-flaky.fixture.ts');
    mkdirSync(earlier);
    writeFileSync(join(earlier, 'second.txt'), '');
    const both = [...flaky, 'b-flaky.fixture.ts'];
    expect(runFixtures(['c-flaky'], retryOutput())).toMatchObject({ failed: 1, flaky: both });
  });

  test('a file that fails twice has failed', () => {
    const { text, ...counts } = runFixtures(['broken', 'a-flaky'], retryOutput());
    expect(counts).toEqual({ passed: 3, failed: 1, skipped: 1, flaky: [] });
    expect(text).toContain('broken.fixture.ts failed: it is run once more, alone');
    expect(text).toContain('skipped: whole.fixture.ts: is left out\n');
  });

  test('three failed files fail at once', () => {
    expect(runFixtures(['flaky'], retryOutput())).toMatchObject({ passed: 4, failed: 3, flaky: [] });
    expect(existsSync(join(retryOutput(), 'a-flaky.fixture.ts'))).toBe(false);
  });

  test('nothing is run twice outside of CI', () => {
    expect(runFixtures(['a-flaky'], undefined)).toMatchObject({ passed: 2, failed: 1, flaky: [] });
  });
});
