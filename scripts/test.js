// `npm test`, `npm run test:all`, `npm run test:rest`: builds what changed, runs the tests, and sums them up in the last line.
//
// Usage: node scripts/test.js             the quick part: build, types, lint, unit tests, one path through every command
//        node scripts/test.js --all       everything that must hold before a change is taken
//        node scripts/test.js --rest      what the quick part leaves out
//        node scripts/test.js FILTER...   only test files whose path contains a filter (arguments go to vitest)
import '../bin/gpu-owner.cjs'; // ends this on a Node.js that is too old
import { spawn } from 'node:child_process';
import { createRequire } from 'node:module';
import { dirname, join, relative } from 'node:path';
import { runVitest } from './run-vitest.js';
import { testNative } from './test-native.js';

const root = dirname(import.meta.dirname);
const require = createRequire(import.meta.url);
const total = { passed: 0, failed: 0, skipped: 0 };
/** Set by `.ci/run`: where it keeps what flaky test files printed. Without it no test file has a second try. */
const retryOutput = process.env.GPU_OWNER_TEST_RETRY_OUTPUT;
let flaky = [];

async function node(...args) {
  const child = spawn(process.execPath, args, { cwd: root, stdio: ['ignore', 'inherit', 'inherit'] });
  return (await new Promise((resolve) => child.once('close', resolve))) === 0;
}

function inPackage(name, path) {
  return join(dirname(require.resolve(`${name}/package.json`)), path);
}

function add({ passed, failed, skipped }) {
  total.passed += passed;
  total.failed += failed;
  total.skipped += skipped;
}

async function runTests(args) {
  const { flaky: found, ...counts } = await runVitest(args, { cwd: root, retryOutput });
  add(counts);
  flaky = found;
}

async function check(name, succeeds) {
  if ((await succeeds()) !== false) return;
  console.error(`${name}: failed`);
  total.failed++;
}

async function step(name, work) {
  console.log(`\n== ${name}`);
  const started = Date.now();
  await check(name, work);
  console.log(`   ${((Date.now() - started) / 1000).toFixed(1)} s`);
  return total.failed === 0;
}

const mode = ['--all', '--rest'].includes(process.argv[2]) ? process.argv[2] : '--quick';
/** Set by `.ci/run`, after `npm ci` has compiled all. */
const isBuilt = process.env.GPU_OWNER_TEST_BUILT !== undefined;
const filters = process.argv.slice(2).filter((argument) => argument !== mode);
const isFiltered = filters.length > 0;
const build = [
  ['build, native part', () => node('scripts/install.js')],
  ['build, TypeScript part', () => node('scripts/build.js')],
];
const checks = [
  ['types', () => node(inPackage('typescript', 'bin/tsc'), '--noEmit')],
  ['types of the page', () => node(inPackage('typescript', 'bin/tsc'), '--noEmit', '-p', 'web')],
  ['lint and format', () => node(inPackage('@biomejs/biome', 'bin/biome'), 'check')],
  ['binaries', () => node('scripts/check-binaries.js')],
];
/** The native tests mostly wait: meanwhile the others are checked. */
async function checkAll() {
  const native = testNative(['plain']);
  for (const [name, succeeds] of checks) await check(name, succeeds);
  add(await native);
}
const projects = { '--quick': ['quick', 'quick-alone'], '--rest': ['slow', 'slow-alone'], '--all': ['*'] };
const selected = isFiltered ? filters : projects[mode].map((name) => `--project=${name}`);
const steps = [
  ...(isBuilt ? [] : build),
  ...(isFiltered || mode === '--rest' ? [] : [['native tests, types, lint, binaries', checkAll]]),
  ['tests', () => runTests(selected)],
];
for (const [name, work] of steps) if (!(await step(name, work))) break;

if (flaky.length > 0) console.log('');
for (const path of flaky) {
  const directory = relative(root, join(retryOutput, path));
  console.log(`flaky: ${path} failed, and passed alone: see ${directory}/first.txt and second.txt`);
}
const skipped = total.skipped > 0 ? `, ${total.skipped} skipped` : '';
console.log(`\n${total.passed} passed, ${total.failed} failed${skipped}`);
process.exitCode = total.failed > 0 ? 1 : 0;
