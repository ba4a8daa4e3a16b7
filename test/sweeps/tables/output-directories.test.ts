import { chmodSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import type { GPUOwnerError } from '../../../lib/errors.ts';
import { openSweep } from '../../../lib/sweeps/files/index.ts';
import { refuseUnusable } from '../../../lib/sweeps/tables/output-directories.ts';

let project: string;

beforeEach(() => {
  project = mkdtempSync(join(tmpdir(), 'gpu-owner-directories-'));
});

afterEach(() => {
  chmodSync(project, 0o755);
  rmSync(project, { recursive: true, force: true });
});

const sweepTo = (outputDirectory: string) =>
  openSweep({ project, grid: ['seed=1..3'], command: ['true'], outputDirectory });

const check = async (outputDirectory: string) => {
  try {
    refuseUnusable((await sweepTo(outputDirectory)).tasks(), project);
    return 'well';
  } catch (error) {
    return `${(error as GPUOwnerError).code}: ${(error as GPUOwnerError).message}`;
  }
};

test('a directory that is there, or can be made, will do, and is not made', async () => {
  mkdirSync(join(project, 'there'));
  symlinkSync('there', join(project, 'link'));
  const before = readdirSync(project);
  for (const directory of ['there', 'link', 'new', 'there/a/{seed}', join(project, 'absolute')])
    expect(await check(directory)).toBe('well');
  expect(readdirSync(project)).toEqual(before);
});

test('a file in place of a directory, or above it, is refused with cause and remedy', async () => {
  writeFileSync(join(project, 'file'), '');
  symlinkSync('nowhere', join(project, 'dangling'));
  expect(await check('file')).toMatch(
    /^ERR_CONFIGURATION: .*output_dir 'file' \(\S+\/file is not a directory\)\. Nothing was added\. Name another/,
  );
  expect(await check('file/a/b')).toMatch(/'file\/a\/b' \(\S+\/file is not a directory/);
  expect(await check('dangling')).toMatch(/is a symbolic link that leads nowhere/);
  expect(await check('file/{seed}')).toMatch(/'file\/1' \(.*'file\/2'.*'file\/3'/);
});

test.skipIf(process.getuid?.() === 0)('a read-only directory is refused [not as root]', async () => {
  const directory = join(project, 'kept');
  mkdirSync(directory);
  chmodSync(directory, 0o555);
  expect(await check('kept')).toMatch(/'kept' \(\S+\/kept: permission denied\)/);
  chmodSync(directory, 0o755);
});
