// A claim waits for the right things when they have changed since it was refused. No timer runs here: a waiter that only a
// timer would wake hangs.
import { chmodSync, mkdtempSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test, vi } from 'vitest';
import { type Claim, claim, type NotGranted, releaseClaim } from '../../lib/claims/claim.ts';
import { runSync } from '../../lib/claims/locks/effects.ts';
import { LockDirectory } from '../../lib/claims/locks/lock-directory.ts';
import { ownRecord } from '../../lib/claims/locks/record.ts';
import { type ClaimRequest, checkOptions } from '../../lib/claims/options.ts';
import { Slot } from '../../lib/claims/queue/slot.ts';
import { claimWhenFree } from '../../lib/claims/wait.ts';
import { bootId } from '../../lib/platform/system.ts';
import { Machine } from '../support/machine.ts';

let machine: Machine;
beforeAll(() => {
  machine = new Machine(1); // one for all: a process keeps its driver
  for (const [name, value] of Object.entries(machine.env)) vi.stubEnv(name, value);
});
afterAll(() => {
  vi.unstubAllEnvs();
  return machine.close();
});

let directory: LockDirectory;
let request: ClaimRequest;
beforeEach(() => {
  const lockDirectory = mkdtempSync(join(machine.directory, 'locks-'));
  chmodSync(lockDirectory, 0o1777);
  directory = LockDirectory.open(lockDirectory, {});
  request = checkOptions({ lockDirectory }).request;
  vi.useFakeTimers({ toFake: ['setTimeout', 'setInterval'] });
});
afterEach(() => {
  vi.useRealTimers();
});

function attempt(): Claim | NotGranted {
  return runSync(claim(request));
}

function granted(result: Claim | NotGranted): Claim {
  if (!result.granted) throw result.error;
  return result;
}

function refused(result: Claim | NotGranted): NotGranted {
  if (result.granted) throw new Error('granted');
  return result;
}

/** A clock that goes on by so many ms whenever it is read. */
function readingsApart(milliseconds: number): void {
  const step = BigInt(milliseconds) * 1_000_000n;
  let time = process.hrtime.bigint();
  vi.spyOn(process.hrtime, 'bigint').mockImplementation(() => (time += step));
}

/** Another process's place in the wait queue, for the machine's only GPU. */
function stand(): Slot {
  const uuids = ['GPU-00000000-0000-4000-8000-000000000000'];
  const place = Slot.join(directory, ownRecord(bootId()), {
    count: 1,
    uuids,
    scope: null,
    class: 'normal' as const,
  });
  if (place === null) throw new Error('no place');
  return place;
}

test('a waiter ahead that has left is not waited for, though its place is reused by the caller', async () => {
  const ahead = stand();
  const notGranted = refused(attempt());
  expect(notGranted.attempt.candidates[0]?.verdict.keptFor).toBe(ahead.number);
  ahead.leave();
  releaseClaim(await claimWhenFree(request, { maxWait: null }, notGranted));
});

test('a claim doesn’t wait for a waiter that has left, even if a later one reuses its slot', async () => {
  const [gone, ahead] = [stand(), stand()];
  gone.leave();
  const notGranted = refused(attempt());
  expect(notGranted.attempt.candidates[0]?.verdict.keptFor).toBe(ahead.number);
  ahead.leave();
  let behind: Slot | undefined;
  const onWaiting = () => {
    behind ??= stand();
  };
  releaseClaim(await claimWhenFree(request, { maxWait: null, onWaiting }, notGranted));
  expect(behind?.number).toBe(ahead.number);
  behind?.leave();
});

test('a lease that has ended since is not waited for', async () => {
  const holder = granted(attempt());
  const notGranted = refused(attempt());
  releaseClaim(holder);
  releaseClaim(await claimWhenFree(request, { maxWait: null }, notGranted));
});

test('a claim waits for a lease, and learns its end', async () => {
  const holder = granted(attempt());
  let attempts = 0;
  const onWaiting = () => {
    attempts++;
    if (attempts === 1) setImmediate(() => releaseClaim(holder));
  };
  releaseClaim(await claimWhenFree(request, { maxWait: null, onWaiting }));
  expect(attempts).toBe(1);
});

test('no timer is asked for a negative time, which Node.js 22 warns of, when time is up between two steps', async () => {
  const ahead = stand();
  const notGranted = refused(attempt());
  const timers = vi.spyOn(globalThis, 'setTimeout');
  readingsApart(100);
  for (let maxWait = 50; maxWait < 1_000; maxWait += 100) {
    const waiting = claimWhenFree(request, { maxWait }, notGranted);
    let isOver = false;
    const outcome = expect(waiting.finally(() => (isOver = true))).rejects.toMatchObject({
      code: 'ERR_TIMEOUT',
    });
    // The clock goes on with each reading, not with the timers: several of them may be needed.
    while (!isOver) await vi.advanceTimersByTimeAsync(maxWait);
    await outcome;
  }
  const delays = timers.mock.calls.map(([, delay]) => delay);
  expect(delays).not.toEqual([]);
  expect(delays.filter((delay) => !(Number(delay) >= 0))).toEqual([]);
  vi.restoreAllMocks();
  ahead.leave();
});
