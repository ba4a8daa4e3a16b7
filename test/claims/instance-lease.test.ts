import { mkdtempSync, readdirSync, readFileSync, rmSync, unlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Lease } from '../../lib/claims/locks/lease.ts';
import { findEpochLock } from '../../lib/claims/locks/lease-end.ts';
import { probeLease, probeWhole } from '../../lib/claims/locks/lease-file.ts';
import { LockDirectory } from '../../lib/claims/locks/lock-directory.ts';
import { ownRecord, type RecordContents } from '../../lib/claims/locks/record.ts';

const GPU = 'GPU-00000000-0000-4000-8000-000000000000';
const ONE = 'MIG-11111111-0000-5000-8000-000000000000';
const OTHER = 'MIG-22222222-0000-5000-8000-000000000000';
// As drivers before R470 say it.
const OLDER = `MIG-${GPU}/7/0`;

let base: string;
beforeEach(() => {
  base = mkdtempSync(join(tmpdir(), 'gpu-owner-instances-'));
});
const held: Lease[] = [];
afterEach(() => {
  for (const lease of held.splice(0)) lease.abandon();
  rmSync(base, { recursive: true });
});

const directory = (name = 'locks') => LockDirectory.open(join(base, name), {});

/** A directory that honours leases in another one. */
function beside(name: string, other: string): LockDirectory {
  return Object.defineProperty(directory(name), 'others', { value: [join(base, other)] });
}

function take(where: LockDirectory, uuid: string, command = 'test'): Lease | null {
  const parent = uuid.startsWith('MIG-') ? GPU : null;
  const record: RecordContents = {
    ...ownRecord('boot', command),
    gpus: [parent === null ? { index: 0, uuid, name: '' } : { index: 0, instance: 1, uuid, parent }],
  };
  const lease = Lease.tryTake(where, { uuid, parent }, record);
  if (lease !== null) held.push(lease);
  return lease;
}

function release(lease: Lease | null): void {
  held.splice(held.indexOf(lease as Lease), 1);
  lease?.release();
}

test.each([ONE, OLDER])(
  'the lease of %s excludes its GPU’s, and is excluded by it; instances do not exclude each other',
  (uuid) => {
    const locks = directory();
    const one = take(locks, uuid);
    expect(one).not.toBeNull();
    expect(take(locks, uuid)).toBeNull();
    expect(take(locks, GPU)).toBeNull();
    const other = take(locks, OTHER);
    expect(other).not.toBeNull();
    release(one);
    expect(take(locks, GPU)).toBeNull();
    release(other);
    const whole = take(locks, GPU);
    expect(whole).not.toBeNull();
    expect(take(locks, uuid)).toBeNull();
    release(whole);
    expect(take(locks, uuid)).not.toBeNull();
  },
);

test('a lease that is refused leaves nothing locked', () => {
  const locks = directory();
  const whole = take(locks, GPU);
  expect(take(locks, ONE)).toBeNull();
  expect(probeLease(locks, { uuid: ONE })).toBeNull();
  release(whole);
  expect(take(locks, ONE)).not.toBeNull();
});

test('the holder of an instance is shown for the instance and for its GPU', () => {
  const locks = directory();
  release(take(locks, GPU, 'an earlier job on the whole GPU'));
  const one = take(locks, ONE, 'a job on the instance');
  expect(probeLease(locks, { uuid: GPU })?.info.command).toBe('a job on the instance');
  expect(probeWhole(locks, GPU)).toBeNull();
  expect(probeLease(locks, { uuid: ONE, parent: GPU })?.info.command).toBe('a job on the instance');
  expect(probeLease(locks, { uuid: OTHER, parent: GPU })).toBeNull();
  release(one);
  expect(probeLease(locks, { uuid: GPU })).toBeNull();
  take(locks, GPU, 'a job on the whole GPU');
  expect(probeLease(locks, { uuid: ONE, parent: GPU })?.info.command).toBe('a job on the whole GPU');
  expect(probeLease(locks, { uuid: ONE })).toBeNull();
});

test('the end of each lease can be waited for', () => {
  const locks = directory();
  const one = take(locks, ONE);
  expect(findEpochLock(locks, { uuid: ONE, parent: GPU })).not.toBeNull();
  expect(findEpochLock(locks, { uuid: GPU })).not.toBeNull();
  // This one isn't held, so there is nothing to wait for, though its neighbour is held.
  expect(findEpochLock(locks, { uuid: OTHER, parent: GPU })).toBeNull();
  release(one);
  expect(findEpochLock(locks, { uuid: GPU })).toBeNull();
  take(locks, GPU);
  expect(findEpochLock(locks, { uuid: ONE, parent: GPU })).not.toBeNull();
});

test('the lease of an instance doesn’t write to its GPU’s file, and notices its removal', () => {
  const locks = directory();
  const one = take(locks, ONE) as Lease;
  const file = join(base, 'locks', `${GPU}.lease`);
  expect(readFileSync(file).every((byte) => byte === 0)).toBe(true);
  expect(readdirSync(join(base, 'locks')).sort()).toEqual([`${GPU}.lease`, `${ONE}.lease`]);
  expect(one.isIntact()).toBe(true);
  unlinkSync(file);
  expect(one.isIntact()).toBe(false);
});

test('leases in the other lock directory count: a GPU against its instances, not instances against each other', () => {
  const there = directory('there');
  const here = beside('here', 'there');
  const whole = take(there, GPU);
  expect(take(here, ONE)).toBeNull();
  release(whole);
  take(there, OTHER);
  expect(take(here, ONE)).not.toBeNull();
  expect(take(here, GPU)).toBeNull();
  expect(take(here, OTHER)).toBeNull();
});
