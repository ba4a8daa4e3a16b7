// A command starts with the environment that gpu-owner was started with, byte for byte, whatever shell the launcher's is.
import { spawnSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { launcher, Machine, python } from '../support/machine.ts';

const shells = [['dash'], ['bash'], ['busybox', 'sh']].filter(
  ([file = '']) => spawnSync(file, ['-c', ':']).error === undefined,
);

let machine: Machine;
let file: string;
beforeEach(() => {
  machine = new Machine(1);
  file = join(machine.directory, 'environ');
});
afterEach(() => machine.close());

const dump = (to: string) => [
  python,
  '-c',
  `open(${JSON.stringify(to)}, "wb").write(open("/proc/self/environ", "rb").read())`,
];

/** @param count so many variables of 1000 bytes come on top */
function changed(words: string[], count: number) {
  const fixture = join(import.meta.dirname, 'fixtures/environment.py');
  return machine.run([python, fixture, file, String(count), ...words]);
}

const UNCHANGED = { code: 0, signal: null, stdout: 'left: 0\n', stderr: '' };
/** Some shells export what they know about where they are, and a job has a PYTHONPATH of its own. */
const expected = (stdout: string) =>
  stdout.replace(/^new: b'(PYTHONPATH|PWD|OLDPWD|SHLVL|_|LOGNAME)'\n/gm, '');

describe.each(shells.map((words) => [words.join(' '), words] as const))('under %s', (_, words) => {
  test('every byte of 400 long variables and of odd ones stays under run', async () => {
    const { stdout, ...rest } = await changed([...words, launcher, 'run', '--', ...dump(file)], 400);
    expect({ ...rest, stdout: expected(stdout) }).toEqual(UNCHANGED);
  });
});

test('every byte stays on the way to a task of a sweep', async () => {
  const project = join(machine.directory, 'project');
  mkdirSync(project);
  const words = ['exp', 'run', '-n', '1', '--project', project, '--grid', 'x=1', '--'];
  const { code, stdout } = await changed([launcher, ...words, ...dump(file)], 400);
  expect(stdout).toMatch(/left: 0\n$/);
  expect(stdout).not.toMatch(/^changed/m);
  expect(code).toBe(0);
});

test('a text of others in the launcher’s variables reaches the command', async () => {
  const env = { GPU_OWNER_DROPPED_0: '413d3100', GPU_OWNER_DROPPED_7: 'x' };
  const { code, stdout } = await machine.run([launcher, 'run', '--', 'env'], { env });
  expect(code).toBe(0);
  expect(stdout).toContain('\nGPU_OWNER_DROPPED_0=413d3100\n');
  expect(stdout).toContain('\nGPU_OWNER_DROPPED_7=x\n');
  expect(stdout).not.toMatch(/^A=1$/m);
});
