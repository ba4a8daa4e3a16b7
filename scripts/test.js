// `npm test`, `npm run test:all`, `npm run test:rest`: builds what changed, runs the tests, and sums them up in the last line.
//
// Usage: node scripts/test.js             the quick part: build, types, lint, unit tests, one path through every command
//        node scripts/test.js --all       everything that must hold before a change is taken
//        node scripts/test.js --rest      what the quick part leaves out
//        node scripts/test.js FILTER...   only test files whose path contains a filter (arguments go to vitest)
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { patternsOf, SLICES, testNative } from './test-native.js';

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

async function runNative(variants) {
  const { passed, failed, skipped } = await testNative(variants);
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

const mode = ['--all', '--rest'].includes(process.argv[2]) ? process.argv[2] : '--quick';
const filters = process.argv.slice(2).filter((argument) => argument !== mode);
const isFiltered = filters.length > 0;
const build = [
  ['build, native part', () => node('scripts/install.js')],
  ['build, TypeScript part', () => node('scripts/build.js')],
];
const quickChecks = [
  ['types', () => node(inPackage('typescript', 'bin/tsc'), '--noEmit')],
  ['types of the page', () => node(inPackage('typescript', 'bin/tsc'), '--noEmit', '-p', 'web')],
  ['lint and format', () => node(inPackage('@biomejs/biome', 'bin/biome'), 'check')],
  ['binaries', () => node('scripts/check-binaries.js')],
  ['native tests', () => runNative({ plain: /./ })],
];
const slowChecks = [['native tests, sanitizers', () => runNative(patternsOf(SLICES))]];
const projects = { '--quick': ['quick'], '--rest': ['slow'], '--all': ['quick', 'slow'] };
const selected = isFiltered ? filters : projects[mode].map((name) => `--project=${name}`);
const steps = [
  ...build,
  ...(isFiltered || mode === '--rest' ? [] : quickChecks),
  ...(isFiltered || mode === '--quick' ? [] : slowChecks),
  ['tests', () => runVitest(selected)],
];
for (const [name, succeeds] of steps) if (!(await step(name, succeeds))) break;

const skipped = total.skipped > 0 ? `, ${total.skipped} skipped` : '';
console.log(`\n${total.passed} passed, ${total.failed} failed${skipped}`);
process.exitCode = total.failed > 0 ? 1 : 0;
