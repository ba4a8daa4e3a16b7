// A claimant waits for each holder of the decision lock, and as long for one that hasn't written its record. No time passes here.
import { chmodSync, closeSync, mkdtempSync, openSync, rmSync, truncateSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { AcquisitionLock } from '../../lib/claims/locks/acquisition-lock.ts';
import { LockDirectory } from '../../lib/claims/locks/lock-directory.ts';
import { ownRecord } from '../../lib/claims/locks/record.ts';
import { EXCLUSIVE, native, OFD } from '../../lib/native.ts';
import { bootId } from '../../lib/platform/system.ts';

const TIMEOUT_MS = 2_000;

let path: string;
let directory: LockDirectory;
/** The lock's file, with the locks of holders that write nothing. */
let holders: number;
let passed: (milliseconds: number) => void;
beforeEach(() => {
  path = mkdtempSync(join(tmpdir(), 'gpu-owner-test-'));
  chmodSync(path, 0o1777);
  directory = LockDirectory.open(path, {});
  closeSync(directory.openFile('acquisition.lock'));
  holders = openSync(join(path, 'acquisition.lock'), 'r+');
  let time = process.hrtime.bigint();
  vi.spyOn(process.hrtime, 'bigint').mockImplementation(() => time);
  passed = (milliseconds) => {
    time += BigInt(milliseconds) * 1_000_000n;
  };
});
afterEach(() => {
  vi.restoreAllMocks();
  closeSync(holders);
  rmSync(path, { recursive: true });
});

const hold = () => expect(native().lockTry(holders, OFD, EXCLUSIVE, 0, 1)).toBe(0);
const take = () => AcquisitionLock.take(directory, TIMEOUT_MS, ownRecord(bootId()));

test('the holder is waited for, also if its file is empty, and then the claim goes on', () => {
  truncateSync(join(path, 'acquisition.lock'));
  hold();
  const taking = take();
  expect(taking.next().value).toMatchObject({ kind: 'lock', byte: 0, milliseconds: TIMEOUT_MS });
  passed(TIMEOUT_MS);
  expect(taking.next(false).done).toBe(true);
});

test('another holder is waited for as long, and no third one', () => {
  hold();
  const taking = take();
  taking.next();
  for (const record of ['second', 'third']) {
    passed(TIMEOUT_MS);
    writeSync(holders, record, 0);
    if (record === 'second')
      expect(taking.next(false).value).toMatchObject({ kind: 'lock', milliseconds: TIMEOUT_MS });
  }
  expect(taking.next(false).done).toBe(true);
});
