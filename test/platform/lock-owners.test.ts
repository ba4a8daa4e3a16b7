import { closeSync, fstatSync, openSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { expect, test } from 'vitest';
import { ownersOf } from '../../lib/platform/kernel-locks.ts';

test('an open file whose status can’t be had makes no process an owner, and ends no search', () => {
  const descriptor = openSync(import.meta.filename, 'r');
  const { ino } = fstatSync(descriptor);
  const lock = {
    kind: 'OFDLCK',
    exclusive: true,
    pid: null,
    device: '0:0',
    inode: ino,
    start: 0,
    last: 0,
  } as const;
  // File systems of users may refuse even root; here it is a name that no file system takes.
  const files = [`../../..${tmpdir()}/${'x'.repeat(300)}`, String(descriptor)].map((number) => ({
    pid: process.pid,
    number,
    locks: [lock],
  }));
  expect(ownersOf(descriptor, 0, files).map(({ pid }) => pid)).toEqual([process.pid]);
  closeSync(descriptor);
});
