// The tests of the Python helper are Python's own, in python/tests. This runs them with every Python in PATH.
import { spawn, spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { expect, test } from 'vitest';
import { finished, root } from '../support/machine.ts';

const directory = join(root, 'python/tests');
const [claims, jobs, tasks, originals, executors, submitit, jupyter] = [
  'test_gpu_owner',
  'test_jobs',
  'test_tasks',
  'test_originals',
  'test_executor',
  'test_submitit',
  'test_jupyter',
] as const;

/** For what hangs, in ms: a class of tests may start Node.js a hundred times. */
const PROGRAM_TIMEOUT_MS = 600_000;
/** The program's own timeout comes first. */
const TEST_TIMEOUT_MS = PROGRAM_TIMEOUT_MS + 60_000;

/** The classes of tests in a module, each with its module. */
function classesOf(module: string): [name: string, module: string][] {
  const source = readFileSync(join(directory, `${module}.py`), 'utf8');
  const names = source.matchAll(/^class (\w+)\((?:OnMachine|WithFiles|unittest\.TestCase)\):/gm);
  return [...names]
    .map(([, name]): [string, string] => [name as string, module])
    .filter(([name]) => !['OnMachine', 'WithFiles'].includes(name));
}

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

// The classes mostly wait.
test
  .skipIf(python === '')
  .concurrent.each([executors, submitit, jupyter, claims, jobs, tasks, originals].flatMap(classesOf))(
  `tests of Python pass with ${first || '(needs 3.8 or newer)'}: %s`,
  { timeout: TEST_TIMEOUT_MS },
  (name, module) => check(python, module, [name]),
);

// Versions differ in how processes start, fork and end.
test.each(others)('the tests pass with Python %s', { timeout: 4 * TEST_TIMEOUT_MS }, async (_, path) => {
  await check(path, claims, process.env.GPU_OWNER_SOAK ? [] : ['Releasing', 'Children', 'Packaging']);
  await check(
    path,
    jobs,
    process.env.GPU_OWNER_SOAK ? [] : ['Jobs.test_a_wait_can_end_before_the_job', 'Jobs.test_where_it_runs'],
  );
  await check(
    path,
    executors,
    process.env.GPU_OWNER_SOAK
      ? []
      : ['Executors.test_ctrl_c_ends_calls', 'Executors.test_errors_come_with_the_traceback_of_the_worker'],
  );
  await check(path, originals, process.env.GPU_OWNER_SOAK ? [] : ['Signatures', 'Lock']);
  await check(path, tasks, process.env.GPU_OWNER_SOAK ? [] : ['Tasks', 'Results.test_what_can_be_written']);
});

async function check(program: string, module: string, names: string[]): Promise<void> {
  const words = names.length > 0 ? names.map((name) => `${module}.${name}`) : [module];
  const child = spawn(program, ['-W', 'error', '-m', 'unittest', ...words], {
    cwd: directory,
    stdio: ['ignore', 'ignore', 'pipe'],
    timeout: PROGRAM_TIMEOUT_MS,
    killSignal: 'SIGKILL',
  });
  const { code, signal, stderr } = await finished(child);
  expect({ code, signal }, stderr).toEqual({ code: 0, signal: null });
  expect(stderr).toMatch(/^Ran [1-9]\d* tests? in/m);
}
