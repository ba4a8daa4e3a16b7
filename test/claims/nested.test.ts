import { closeSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Lease } from '../../lib/claims/locks/lease.ts';
import { findEpochLock } from '../../lib/claims/locks/lease-end.ts';
import { probeLease } from '../../lib/claims/locks/lease-file.ts';
import { LockDirectory } from '../../lib/claims/locks/lock-directory.ts';
import { ownRecord } from '../../lib/claims/locks/record.ts';
import { native, OFD, SHARED } from '../../lib/native.ts';

const GPU = 'GPU-00000000-0000-4000-8000-000000000000';

let path: string;
let directory: LockDirectory;
let held: Lease[];
beforeEach(() => {
  path = mkdtempSync(join(tmpdir(), 'gpu-owner-test-'));
  directory = LockDirectory.open(path, {});
  held = [];
});
afterEach(() => {
  for (const lease of held) lease.release();
  rmSync(path, { recursive: true });
});

/** @param job within which the lease is taken */
function take(command: string, job: Lease | null = null): Lease | null {
  const lease = Lease.tryTake(
    directory,
    { uuid: GPU, job: job?.record.generation ?? null },
    ownRecord('boot', command),
  );
  if (lease !== null) held.push(lease);
  return lease;
}

function taken(command: string, job: Lease | null = null): Lease {
  const lease = take(command, job);
  if (lease === null) throw new Error(`${command} can't be had`);
  return lease;
}

function end(lease: Lease): void {
  held = held.filter((each) => each !== lease);
  lease.release();
}

describe('a lease within a job', () => {
  test('can be nested 64 deep, and each level excludes for itself', () => {
    const chain = [taken('job')];
    for (let i = 0; i < 64; i++) chain.push(taken(`level ${i + 1}`, chain.at(-1)));
    expect(take('one too many', chain.at(-1))).toBeNull();
    for (const lease of chain) expect(take('another', lease)).toBeNull();
    expect(JSON.stringify(probeLease(directory, { uuid: GPU })?.info).match(/"nested"/g)).toHaveLength(64);
  });

  test('can’t be had within a job that has another GPU, none, or has ended', () => {
    const job = taken('job');
    const stranger = { record: ownRecord('boot', 'stranger') } as Lease;
    expect(take('forged', stranger)).toBeNull();
    end(job);
    expect(take('late', job)).toBeNull();
    expect(take('next')).not.toBeNull();
  });

  test('a holder of the second level that outlives its job keeps the GPU from its siblings', () => {
    const job = taken('job');
    const inner = taken('inner', job);
    const innermost = taken('innermost', inner);
    end(inner);
    expect(take('sibling', job)).toBeNull();
    expect(probeLease(directory, { uuid: GPU, job: job.record.generation })?.info).toMatchObject({
      command: 'innermost',
    });
    end(innermost);
    expect(take('sibling', job)).not.toBeNull();
  });
});

describe('waiters inside a job', () => {
  /** Which lease it is whose end is waited for. */
  function awaited(job: Lease | null): Lease | undefined {
    const epochLock = findEpochLock(directory, { uuid: GPU, job: job?.record.generation ?? null });
    if (epochLock === null) return undefined;
    expect(native().lockProbe(epochLock.descriptor, OFD, SHARED, epochLock.byte, 1)).toBe(epochLock.byte);
    closeSync(epochLock.descriptor);
    return held.find(({ record }) => record.generation === epochLock.byte - 1);
  }

  test('a waiter waits for the lease of its own level, and else for one below', () => {
    const job = taken('job');
    expect(awaited(job)).toBeUndefined();
    const inner = taken('inner', job);
    const innermost = taken('innermost', inner);
    expect(awaited(null)).toBe(job);
    expect(awaited(job)).toBe(inner);
    expect(awaited(inner)).toBe(innermost);
    end(inner);
    expect(awaited(job)).toBe(innermost);
    expect(awaited(inner)).toBeUndefined();
    end(job);
    expect(awaited(null)).toBe(innermost);
  });
});
