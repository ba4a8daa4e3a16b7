// Whether binaries are older than their sources, which would fail many tests that don't name the cause.
import { mkdirSync, mkdtempSync, rmSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { newerSource } from './built.ts';

let clone: string;
beforeEach(() => {
  clone = mkdtempSync(join(tmpdir(), 'gpu-owner-built-'));
  for (const path of [...SOURCES, 'native/tests/main.cc', 'simulator/README.md']) write(path, 100);
  for (const name of ['gpu_owner.node', 'gpu-owner-keeper']) write(`build/Release/${name}`, 200);
});
afterEach(() => rmSync(clone, { recursive: true }));

const SOURCES = [
  ...['binding.gyp', 'native/sources.json', 'native/exports/addon.map'],
  ...['native/keeper/keeper.h', 'simulator/tool.cc'],
];

/** @param seconds when it was changed, since 1970 */
function write(path: string, seconds: number): void {
  mkdirSync(dirname(join(clone, path)), { recursive: true });
  writeFileSync(join(clone, path), '');
  utimesSync(join(clone, path), seconds, seconds);
}

test.each(SOURCES)('a change of %s after the binaries were compiled is noticed', (path) => {
  expect(newerSource(clone)).toBeNull();
  write(path, 300);
  expect(newerSource(clone)).toBe(path);
});

test.each(SOURCES)(
  'npm run install makes up for a change of %s, also where nothing is linked again',
  (path) => {
    write(path, 300);
    write('build/installed', 400);
    expect(newerSource(clone)).toBeNull();
    write(path, 500);
    expect(newerSource(clone)).toBe(path);
  },
);

test('files that no binary is made of may be newer', () => {
  for (const path of ['native/tests/main.cc', 'simulator/README.md']) write(path, 300);
  expect(newerSource(clone)).toBeNull();
});
