// `npm test`: builds what changed, then everything that must hold before a change is taken, and one line that sums it up.
//
// Usage: node scripts/test.js             everything
//        node scripts/test.js FILTER...   only test files whose path contains a filter (arguments go to vitest)
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { testNative } from './test-native.js';

const root = dirname(import.meta.dirname);
const require = createRequire(import.meta.url);
const total = { passed: 0, failed: 0, skipped: 0 };

function node(...args) {
  return (
    spawnSync(process.execPath, args, { cwd: root, stdio: ['ignore', 'inherit', 'inherit'] }).status === 0
  );
}

function inPackage(name, path) {
  return join(dirname(require.resolve(`${name}/package.json`)), path);
}

function runVitest(args) {
  const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-test-'));
  const report = join(directory, 'vitest.json');
  const reporters = ['--reporter=default', '--reporter=json', `--outputFile.json=${report}`];
  const succeeded = node(inPackage('vitest', 'vitest.mjs'), 'run', ...reporters, ...args);
  try {
    const { numPassedTests, numFailedTests, numPendingTests, numTodoTests } = JSON.parse(
      readFileSync(report, 'utf8'),
    );
    total.passed += numPassedTests;
    total.failed += numFailedTests;
    total.skipped += numPendingTests + numTodoTests;
    // A file that doesn't load and an error outside of tests count for no test.
    if (!succeeded && numFailedTests === 0) total.failed++;
  } catch {
    total.failed++;
  }
  rmSync(directory, { recursive: true });
}

async function runNative() {
  const { passed, failed, skipped } = await testNative();
  total.passed += passed;
  total.failed += failed;
  total.skipped += skipped;
}

async function step(name, succeeds) {
  console.log(`\n== ${name}`);
  const started = Date.now();
  if ((await succeeds()) === false) {
    console.error(`${name}: failed`);
    total.failed++;
  }
  console.log(`   ${((Date.now() - started) / 1000).toFixed(1)} s`);
  return total.failed === 0;
}

const filters = process.argv.slice(2);
const build = [
  ['build, native part', () => node('scripts/install.js')],
  ['build, TypeScript part', () => node('scripts/build.js')],
];
const checks = [
  ['types', () => node(inPackage('typescript', 'bin/tsc'), '--noEmit')],
  ['lint and format', () => node(inPackage('@biomejs/biome', 'bin/biome'), 'check')],
  ['binaries', () => node('scripts/check-binaries.js')],
  ['native tests', runNative],
];
const steps = [...build, ...(filters.length > 0 ? [] : checks), ['tests', () => runVitest(filters)]];
for (const [name, succeeds] of steps) if (!(await step(name, succeeds))) break;

const skipped = total.skipped > 0 ? `, ${total.skipped} skipped` : '';
console.log(`\n${total.passed} passed, ${total.failed} failed${skipped}`);
process.exitCode = total.failed > 0 ? 1 : 0;
