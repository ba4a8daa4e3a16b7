import { existsSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { makeDirectory } from '../lib/make-directory.ts';

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'gpu-owner-make-directory-'));
});
afterEach(() => rmSync(directory, { recursive: true }));

test('it is made with those above it, by several at once, and again', async () => {
  const path = join(directory, 'a/b/c');
  await Promise.all([makeDirectory(path), makeDirectory(path), makeDirectory(join(directory, 'a/d'))]);
  await makeDirectory(path);
  expect([existsSync(path), existsSync(join(directory, 'a/d'))]).toEqual([true, true]);
});

test('where there can be none, it says so', async () => {
  writeFileSync(join(directory, 'file'), '');
  symlinkSync(join(directory, 'nowhere'), join(directory, 'link'));
  await expect(makeDirectory(join(directory, 'file'))).rejects.toThrow(/EEXIST/);
  await expect(makeDirectory(join(directory, 'file/a/b'))).rejects.toThrow(/ENOTDIR/);
  await expect(makeDirectory(join(directory, 'link/a'))).rejects.toThrow(/EEXIST.*link/);
});

// Made recursively by Node.js, this never ends.
test('below a directory that takes none', async () => {
  await expect(makeDirectory('/proc/gpu-owner/results')).rejects.toThrow(/ENOENT.*\/proc\/gpu-owner/);
});
