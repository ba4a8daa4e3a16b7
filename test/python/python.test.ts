// The tests of the Python helper are Python's own, in python/tests. This runs them with every Python in PATH.
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { expect, test } from 'vitest';
import { root } from '../machine.ts';

const file = join(root, 'python/tests/test_gpu_owner.py');
const classes = [
  ...readFileSync(file, 'utf8').matchAll(/^class (\w+)\((?:OnMachine|unittest\.TestCase)\):/gm),
]
  .map(([, name]) => name as string)
  .filter((name) => name !== 'OnMachine');

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

test.skipIf(python === '').each(classes)(`with Python ${first || '(needs 3.8 or newer)'}: %s`, (name) => {
  check(python, [name]);
});

// What differs from one version to the next is how processes start, fork and end.
test.each(others)(
  'with Python %s',
  (_, path) => {
    check(path, process.env.GPU_OWNER_SOAK ? [] : ['Releasing', 'Children', 'Packaging']);
  },
  120_000,
);

function check(program: string, names: string[]): void {
  const { status, stderr, error } = spawnSync(program, ['-W', 'error', file, ...names], { encoding: 'utf8' });
  if (error) throw error;
  expect(status, stderr).toBe(0);
  expect(stderr).toMatch(/^Ran [1-9]\d* tests? in/m);
}
