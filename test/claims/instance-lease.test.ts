import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Lease } from '../../lib/claims/locks/lease.ts';
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
