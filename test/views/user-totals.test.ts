import { expect, test } from 'vitest';
import type { MachineSnapshot } from '../../lib/views/machine-view.ts';
import { userTotals } from '../../lib/views/user-totals.ts';

type Person = { user: string | null; uid: number | null };

/** A machine on which each of `holders` has a GPU, and so on. */
function snapshot(holders: Person[], waiting: Person[] = [], intruders: Person[] = []): MachineSnapshot {
  return {
    gpus: holders.map((lease) => ({
      lease,
      shares: [],
      instance: null,
      memory: { usedBytes: 1 },
      utilizationPercent: null,
    })),
    queue: waiting,
    intruders: intruders.map((each, pid) => ({ ...each, pid })),
  } as unknown as MachineSnapshot;
}

const totals = (...snapshots: MachineSnapshot[]) =>
  Object.fromEntries(
    [...userTotals(snapshots, () => false, 'unknown')].map(([name, { gpus, waiting, unclaimed }]) => [
      name,
      [gpus, waiting, unclaimed],
    ]),
  );

test('user totals: two users with one name are two, with their uids', () => {
  const [first, second] = [
    { user: 'alice', uid: 1000 },
    { user: 'alice', uid: 2000 },
  ];
  expect(totals(snapshot([first, first, second], [second], [first]))).toEqual({
    'alice (uid 1000)': [2, 0, 1],
    'alice (uid 2000)': [1, 1, 0],
  });
});

test('user totals: a uid with two names, as in a container without accounts, is one user', () => {
  const [known, unnamed] = [
    { user: 'bob', uid: 1001 },
    { user: 'uid 1001', uid: 1001 },
  ];
  expect(totals(snapshot([known, unnamed], [unnamed]))).toEqual({ bob: [2, 1, 0] });
});

test('user totals: machines share names, whatever their uids are, and users without a uid count by name', () => {
  expect(
    totals(
      snapshot([{ user: 'alice', uid: 1000 }]),
      snapshot(
        [
          { user: 'alice', uid: 7 },
          { user: 'alice', uid: null },
        ],
        [],
        [{ user: null, uid: null }],
      ),
    ),
  ).toEqual({ alice: [3, 0, 0], unknown: [0, 0, 1] });
});

test('user totals: shares count apart from GPUs, with the memory that they use', () => {
  const bob = { user: 'bob', uid: 1 };
  const machine = snapshot([bob]);
  const shared = {
    lease: null,
    shares: [bob, { user: 'ann', uid: 2 }].map((who) => ({ ...who, usedBytes: 7 })),
  };
  Object.assign(machine.gpus[0] as object, shared);
  const all = userTotals([machine], () => false, 'unknown');
  expect([...all].map(([name, { gpus, shares, memory }]) => [name, gpus, shares, memory])).toEqual([
    ['bob', 0, 1, 7],
    ['ann', 0, 1, 7],
  ]);
});
