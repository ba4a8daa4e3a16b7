// The queue in which a job is expected to start first, as leases, bookings and the job's own conditions tell.
import { expect, test } from 'vitest';
import { byExpectedWait, wantedOf } from '../../lib/fleet/expected-wait.ts';
import type { LeaseInfo } from '../../lib/gpus/types.ts';
import { isoTime } from '../../lib/platform/index.ts';
import type { ShownGPU } from '../../lib/shapes/index.ts';
import { GIB, makeGPU } from '../support/snapshots.ts';

const inMinutes = (minutes: number) => isoTime(Date.now() + minutes * 60_000);
const leased = (lease: Partial<LeaseInfo>) => ({ state: 'leased', lease, booking: null });
const free = { state: 'free', lease: null, booking: null };
const booked = (from: number, until: number) => ({
  ...free,
  booking: {
    id: 1,
    user: 'somebody-else',
    group: null,
    from: inMinutes(from),
    until: inMinutes(until),
    note: null,
  },
});

/** The hosts' names, the best one first. Each has GPUs as given, and an empty queue. */
function order(hosts: Record<string, object[]>, words: string[]): string[] {
  const known = Object.entries(hosts).map(([host, gpus]) => ({
    host,
    snapshot: {
      gpus: gpus.map((each, index) => ({ ...makeGPU(index), ...each }) as object as ShownGPU),
      queue: [],
    },
  }));
  return byExpectedWait(known, wantedOf(words, 1));
}

const RIVALS: [string, Record<string, object[]>, string[]][] = [
  [
    'a preemptible lease gives way at once',
    { first: [leased({ preemptible: true })], second: [leased({ until: inMinutes(28) })] },
    [],
  ],
  [
    'but not to a preemptible request',
    { first: [leased({ until: inMinutes(28) })], second: [leased({ preemptible: true })] },
    ['--preemptible'],
  ],
  [
    'a GPU that another user has booked is taken',
    { first: [leased({ until: inMinutes(28) })], second: [booked(-1, 90)] },
    [],
  ],
  [
    'also from a time at which the job would still run',
    { first: [leased({ until: inMinutes(28) })], second: [booked(30, 90)] },
    ['--for=2h'],
  ],
  [
    'but not from a later one',
    { first: [booked(30, 90)], second: [leased({ until: inMinutes(28) })] },
    ['--for=10m'],
  ],
  [
    'other GPUs than those asked for don’t count',
    {
      first: [leased({}), leased({ until: inMinutes(28) })],
      second: [free, leased({ until: inMinutes(50) })],
    },
    ['--devices=1'],
  ],
  [
    'nor do those with too little memory',
    { first: [leased({ until: inMinutes(28) })], second: [{ ...free, memory: { totalBytes: 24 * GIB } }] },
    ['--min-free-memory=40GiB'],
  ],
];

test.each(RIVALS)('%s', (_, hosts, words) => {
  const all = [...words, '--', 'train', '--devices=0', '--for=1m'];
  expect(order(hosts, all)).toEqual(['first', 'second']);
});
