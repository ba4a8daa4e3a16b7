// How long a user's jobs last, as far as the ledger tells.
import { chownSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { Directory } from '../../lib/platform/index.ts';
import { meanHours } from '../../lib/usage/index.ts';

const HOUR = 3_600_000;
const DAY = 24 * HOUR;
const uid = process.geteuid?.() ?? 0;

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'gpu-owner-hours-'));
  mkdirSync(join(directory, 'usage'));
});
afterEach(() => rmSync(directory, { recursive: true }));

/** Leases of so many hours, which ended one after the other, the last one at this time. */
function write(user: number, hours: number[], last = Date.now() - DAY, owner = user) {
  const month = new Date(last).toISOString().slice(0, 7);
  const lines = hours.map((each, i) => {
    const since = Math.round(last - (hours.length - i) * 1_000 - each * HOUR);
    const lease = { since, waited: 0, gpus: [{ index: 0, uuid: 'GPU-0' }], program: 'python' };
    return JSON.stringify({ ...lease, held: each * HOUR, ended: true }).padEnd(300);
  });
  const path = join(directory, 'usage', `${user}-${month}.jsonl`);
  writeFileSync(path, `${lines.join('\n')}\n`);
  chownSync(path, owner, owner);
}
const hours = (user: number) => meanHours(join(directory, 'usage'), user);

test('the last twenty leases of a user count, and no older ones', () => {
  write(uid, [...Array(30).fill(9), ...Array(10).fill(1), ...Array(10).fill(2)]);
  expect(hours(uid)).toBeCloseTo(1.5);
});

test('without a ledger, or with leases of more than a month ago only, nothing is known', () => {
  expect(meanHours(join(directory, 'missing'), uid)).toBeNull();
  expect(hours(uid)).toBeNull();
  write(uid, [3], Date.now() - 40 * DAY);
  expect(hours(uid)).toBeNull();
});

test.skipIf(uid !== 0)('a user without leases has the mean of the others’', () => {
  write(1000, [4, 6]);
  write(1001, [5, 9]);
  expect(hours(1000)).toBeCloseTo(5);
  expect(hours(1002)).toBeCloseTo(6);
});

test.skipIf(uid !== 0)('the ledger is listed once for a user without leases', () => {
  write(1000, [4, 6]);
  const names = vi.spyOn(Directory.prototype, 'names');
  expect(hours(1002)).toBeCloseTo(5);
  expect(names).toHaveBeenCalledTimes(1);
  names.mockRestore();
});

test.skipIf(uid !== 0)('a file that somebody else has made for a user doesn’t count', () => {
  write(1000, [24, 24], undefined, 1001);
  expect(hours(1000)).toBeNull();
});

test.skipIf(uid !== 0)(
  'files that others plant under a user’s name are opened up to a bound, after the user’s own',
  () => {
    write(1000, [4, 6]);
    const month = new Date(Date.now() - DAY).toISOString().slice(0, 7);
    for (let i = 0; i < 2_000; i++) {
      const path = join(directory, 'usage', `1000-${month}.${String(i).padStart(16, '0')}.jsonl`);
      writeFileSync(path, '');
      chownSync(path, 1001, 1001);
    }
    const opened = vi.spyOn(Directory.prototype, 'openForProbe');
    expect(hours(1000)).toBeCloseTo(5);
    expect(opened.mock.calls.length).toBeLessThan(300);
    opened.mockRestore();
  },
);

test('a file of any length is read from its end only, and lines that make no sense don’t count', () => {
  write(uid, [...Array(5_000).fill(9), ...Array(20).fill(2)]);
  expect(hours(uid)).toBeCloseTo(2);
  const month = new Date().toISOString().slice(0, 7);
  writeFileSync(join(directory, 'usage', `${uid}-${month}.jsonl`), 'x'.repeat(1_000_000));
  expect(hours(uid) ?? 2).toBe(2);
});
