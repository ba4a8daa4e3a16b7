import { expect, test } from 'vitest';
import { limitOf } from '../../../lib/claims/rules/limits.ts';

const HOUR = 3_600_000;
const NONE = Number.POSITIVE_INFINITY;
const limits = {
  everybody: { gpus: 4, ms: 24 * HOUR },
  users: new Map([
    ['alice', { gpus: 8 }],
    ['1003', { ms: NONE }],
  ]),
  groups: new Map([
    ['students', { gpus: 1 }],
    ['staff', { gpus: NONE }],
    ['night', { ms: HOUR }],
  ]),
};
const who = (user: string, uid: number, ...groups: string[]) => ({ user, uid, groups });

test.each([
  ['everybody', who('bob', 1000), { gpus: 4, ms: 24 * HOUR }],
  ['a user, by name', who('alice', 1001, 'students'), { gpus: 8, ms: 24 * HOUR }],
  ['a user, by number', who('dave', 1003), { gpus: 4, ms: NONE }],
  ['a group', who('carol', 1002, 'students'), { gpus: 1, ms: 24 * HOUR }],
  [
    'the most generous of several groups',
    who('carol', 1002, 'students', 'staff', 'night'),
    { gpus: NONE, ms: HOUR },
  ],
  ['root', who('root', 0, 'students'), { gpus: NONE, ms: NONE }],
])('the limits of %s', (_, user, expected) => {
  expect(limitOf(user, limits)).toEqual(expected);
});

test('a user’s own limits only lower the machine’s, root’s too', () => {
  expect(limitOf(who('bob', 1000), limits, { gpus: 2, ms: NONE })).toEqual({ gpus: 2, ms: 24 * HOUR });
  expect(limitOf(who('root', 0), limits, { gpus: 2 })).toEqual({ gpus: 2, ms: NONE });
  expect(limitOf(who('bob', 1000), undefined)).toEqual({ gpus: NONE, ms: NONE });
});
