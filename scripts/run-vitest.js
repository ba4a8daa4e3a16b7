// Runs vitest, counts its tests, and in CI runs a failed test file once more.
import { spawn } from 'node:child_process';
import {
  copyFileSync,
  createWriteStream,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
} from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

const vitest = join(dirname(createRequire(import.meta.url).resolve('vitest/package.json')), 'vitest.mjs');
const reporter = join(import.meta.dirname, 'vitest-report.js');

/** More failed files in one run of CI are no accident. */
const MAX_FLAKY_FILES = 2;

/** @param copy a file that gets what vitest prints, too; undefined: it is only shown */
async function run(args, cwd, copy) {
  const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-test-'));
  const report = join(directory, 'report.json');
  const output = copy === undefined ? 'inherit' : 'pipe';
  const child = spawn(
    process.execPath,
    [vitest, 'run', '--reporter=default', `--reporter=${reporter}`, ...args],
    { cwd, stdio: ['ignore', output, output], env: { ...process.env, GPU_OWNER_TEST_REPORT: report } },
  );
  const file = copy === undefined ? undefined : createWriteStream(copy);
  for (const name of file ? ['stdout', 'stderr'] : []) {
    child[name].on('data', (bytes) => {
      process[name].write(bytes);
      file.write(bytes);
    });
  }
  const status = await new Promise((resolve) => child.once('close', resolve));
  if (file) await new Promise((resolve) => file.end(resolve));
  try {
    return { succeeded: status === 0, ...JSON.parse(readFileSync(report, 'utf8')) };
  } catch {
    return { succeeded: false, files: [], errorsOutside: 0 };
  } finally {
    rmSync(directory, { recursive: true });
  }
}

function sum({ files, errorsOutside, succeeded }) {
  const total = { passed: 0, failed: errorsOutside, skipped: 0 };
  for (const { isWhole, passed, failed, skipped } of files) {
    total.passed += passed;
    // A file that doesn't load, or with an error outside of its tests, has no failed test.
    total.failed += isWhole ? 0 : Math.max(failed, 1);
    total.skipped += skipped;
  }
  // No test was found, for example.
  if (!succeeded) total.failed = Math.max(total.failed, 1);
  return total;
}

/** Runs failed files again, one after the other, and replaces their results. */
async function runAgain({ files, ...result }, options, cwd, retryOutput) {
  const again = [];
  for (const file of files) {
    if (file.isWhole) {
      again.push(file);
      continue;
    }
    console.log(`\n${file.path} failed: it is run once more, alone`);
    const output = join(retryOutput, file.path);
    mkdirSync(output, { recursive: true });
    copyFileSync(join(retryOutput, 'output.txt'), join(output, 'first.txt'));
    const second = await run([file.path, ...options], cwd, join(output, 'second.txt'));
    again.push(...(second.files.length > 0 ? second.files : [file]));
  }
  return { ...result, succeeded: again.every(({ isWhole }) => isWhole), files: again };
}

/**
 * Runs vitest with these options and filters.
 * @param retryOutput the directory of CI's whole run, which keeps what a file printed that failed and was run again; undefined: no file is
 * @returns how many tests passed, failed and were left out, and which files of the whole run failed first and passed then
 */
export async function runVitest(args, { cwd, retryOutput }) {
  if (retryOutput === undefined) return { ...sum(await run(args, cwd)), flaky: [] };
  mkdirSync(retryOutput, { recursive: true });
  // Flaky files that `npm test` found in this run of CI, before `npm run test:rest`.
  const flaky = readdirSync(retryOutput, { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith('/second.txt'))
    .map(dirname);
  const first = await run(args, cwd, join(retryOutput, 'output.txt'));
  const failed = first.files.filter(({ isWhole }) => !isWhole).map(({ path }) => path);
  const isAccident = first.errorsOutside === 0 && flaky.length + failed.length <= MAX_FLAKY_FILES;
  if (failed.length === 0 || !isAccident) return { ...sum(first), flaky };
  const options = args.filter((argument) => argument.startsWith('-'));
  const second = await runAgain(first, options, cwd, retryOutput);
  return { ...sum(second), flaky: second.succeeded ? [...flaky, ...failed] : flaky };
}
