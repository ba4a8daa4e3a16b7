// The tests of the Python helper are Python's own, in python/tests. This runs them with every Python in PATH.
import { spawn, spawnSync } from 'node:child_process';
import { delimiter, join } from 'node:path';
import { expect, test } from 'vitest';
import { finished, root } from '../support/machine.ts';

const directory = join(root, 'python/tests');
const MODULES = ['executor', 'gpu_owner', 'jobs', 'jupyter', 'originals', 'submitit', 'tasks'];

/** For what hangs, in ms: a module's tests may start Node.js hundreds of times. */
const PROGRAM_TIMEOUT_MS = 900_000;
/** The program's own timeout comes first. */
const TEST_TIMEOUT_MS = PROGRAM_TIMEOUT_MS + 60_000;

/** What Pythons besides the first run: versions differ in how processes start, fork and end. */
const OTHERS = `
  test_gpu_owner.Releasing test_gpu_owner.Children test_gpu_owner.Packaging test_originals.Signatures test_originals.Lock test_tasks.Tasks
  test_jobs.Jobs.test_a_wait_can_end_before_the_job test_jobs.Jobs.test_where_it_runs test_tasks.Results.test_what_can_be_written
  test_executor.Executors.test_ctrl_c_ends_calls test_executor.Executors.test_errors_come_with_the_traceback_of_the_worker`;

/** By version, as '3.11'; the one that `python3` means is the first. Some in PATH may be empty promises (pyenv's shims). */
function pythons(): Map<string, string> {
  const directories = (process.env.PATH ?? '').split(delimiter).filter(Boolean);
  const names = ['python3', ...Array.from({ length: 13 }, (_, i) => `python3.${8 + i}`)];
  const found = new Map<string, string>();
  for (const path of names.flatMap((name) => directories.map((directory) => join(directory, name)))) {
    const script = 'import sys; print("%d.%d" % sys.version_info[:2])';
    const { status, stdout } = spawnSync(path, ['-c', script], { encoding: 'utf8' });
    const version = status === 0 ? stdout.trim() : '';
    if (/^3\.([89]|\d\d)$/.test(version) && !found.has(version)) found.set(version, path);
  }
  return found;
}

const [[first, python] = ['', ''], ...others] = pythons();

test.skipIf(python === '').concurrent.each(MODULES)(
  `the tests of Python pass with ${first || '(needs 3.8 or newer)'}: %s`,
  { timeout: TEST_TIMEOUT_MS },
  (module) => check(python, [`test_${module}`]),
);

test.each(others)('the tests pass with Python %s', { timeout: TEST_TIMEOUT_MS }, (_, path) =>
  check(
    path,
    process.env.GPU_OWNER_SOAK ? MODULES.map((module) => `test_${module}`) : OTHERS.trim().split(/\s+/),
  ),
);

async function check(program: string, names: string[]): Promise<void> {
  const child = spawn(program, ['-W', 'error', '-m', 'unittest', ...names], {
    cwd: directory,
    stdio: ['ignore', 'ignore', 'pipe'],
    timeout: PROGRAM_TIMEOUT_MS,
    killSignal: 'SIGKILL',
  });
  const { code, signal, stderr } = await finished(child);
  expect({ code, signal }, stderr).toEqual({ code: 0, signal: null });
  expect(stderr).toMatch(/^Ran [1-9]\d* tests? in/m);
}
