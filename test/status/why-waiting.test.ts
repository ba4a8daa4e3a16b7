import { expect, test } from 'vitest';
import { RequestsAhead, whyWaiting } from '../../lib/status/why-waiting.ts';

const MINE = ['a', 'b', 'c'];
const SINCE = '2026-01-01T00:00:00.000Z';
const info = (user: string, name?: string) => ({ user, uid: 1, pid: 7, since: SINCE, ...(name && { name }) });
const gpu = (index: number, more: object = {}) => ({
  index,
  instance: null,
  uuid: MINE[index],
  reason: null,
  shares: [],
  booking: null,
  state: 'free',
  lease: null,
  ...more,
});
const leased = (index: number, user: string, name?: string) =>
  gpu(index, { state: 'leased', lease: info(user, name) });
const busy = (index: number) => gpu(index, { state: 'busy', reason: 'python' });
const ahead = (user: string, name?: string, uuids = ['a']) => ({
  uuids,
  scope: null,
  info: info(user, name),
});
const booking = { id: 3, user: 'cara', from: '2020-01-01T00:00:00.000Z', until: '2999-01-01T00:00:00.000Z' };
const shares = (...users: string[]) => gpu(0, { state: 'shared', shares: users.map((user) => info(user)) });

const CASES: [sentence: string, waiter: object, circumstances: object][] = [
  ['suspended: skipped until it resumes', { isSuspended: true }, {}],
  [
    "at its user's limit (ana holds 2 of 2), so others go first",
    { reached: { group: null, most: 2, held: 2, uuids: [] } },
    {},
  ],
  [
    "at its group's limit (students hold 8 of 8 together), so others go first",
    { reached: { group: 'students', most: 8, held: 8, uuids: [] } },
    {},
  ],
  ["after ben's vit-large", {}, { ahead: [ahead('ben', 'vit-large')] }],
  [
    "after ben's vit-large and cara's full",
    {},
    { ahead: [ahead('ben', 'vit-large'), ahead('cara', 'full', ['c'])] },
  ],
  ['after 2 requests of ben', {}, { ahead: [ahead('ben', 'x'), ahead('ben', 'y')] }],
  ['after 1 request of ben and 1 of cara', {}, { ahead: [ahead('ben'), ahead('cara', 'x')] }],
  ['after 4 requests of 4 users', {}, { ahead: ['k', 'l', 'm', 'n'].map((user) => ahead(user)) }],
  // One that wants other GPUs isn't in the way.
  ['ben has GPU 0', {}, { ahead: [ahead('dev', 'x', ['z'])], gpus: [leased(0, 'ben')] }],
  ["ben's pretrain has GPUs 0,1", {}, { gpus: [leased(0, 'ben', 'pretrain'), leased(1, 'ben', 'pretrain')] }],
  [
    'needs a GPU: ben has 2 and cara 1',
    {},
    { gpus: [leased(0, 'ben'), leased(1, 'cara'), leased(2, 'ben')] },
  ],
  [
    'needs 1 more of 2 GPUs: ben has 1 and cara 1',
    { count: 2 },
    { gpus: [leased(0, 'ben'), leased(1, 'cara'), gpu(2)] },
  ],
  ['needs a GPU: ben has 1 and cara 1', {}, { gpus: [shares('ben', 'cara')] }],
  ['needs a GPU: k has 1, l 1 and others 2', {}, { gpus: [shares('k', 'l', 'm', 'n')] }],
  ['needs a GPU: ben has 1; 1 is used without a claim', {}, { gpus: [leased(0, 'ben'), busy(1)] }],
  ['GPU 1 is used without a claim', {}, { gpus: [busy(1)] }],
  ['ben has GPU 0', { count: 2, sets: [MINE] }, { gpus: [leased(0, 'ben'), gpu(1)] }],
  [
    'needs 1 more of 2 connected GPUs: ben has 1 and cara 1',
    { count: 2, sets: [MINE] },
    { gpus: [leased(0, 'ben'), leased(1, 'cara'), gpu(2)] },
  ],
  ['preemptible jobs give way to it', { preempts: [5] }, { gpus: [leased(0, 'ben')] }],
  [
    'GPUs 0,1 are booked by cara until 00:00 2999-01-01',
    { booked: ['a', 'b'] },
    { gpus: [gpu(0, { booking }), gpu(1, { booking })] },
  ],
  ['starts in a moment', {}, { gpus: [gpu(0)] }],
];

test.each(CASES)('why a request waits, in one sentence: %s', (sentence, more, circumstances) => {
  const waiter = {
    ...{
      slot: 1,
      count: 1,
      size: 1,
      uuids: MINE,
      scope: null,
      info: info('ana'),
      limitMs: null,
    },
    ...{ waitUntil: null, preempts: [], isSuspended: false, isIdle: false, tag: null, most: null },
    ...{ reached: null, booked: [], ...more },
  };
  const { ahead: requests = [], ...others } = circumstances as { ahead?: [] };
  const rest = { ahead: new RequestsAhead(requests), gpus: [], latestStart: null, ...others };
  const said = whyWaiting(waiter as never, rest as never);
  expect(said.replace(/until .*/, 'until')).toBe(sentence.replace(/until .*/, 'until'));
});

test('why a request waits: the latest start follows, and a long name is cut', () => {
  const waiter = {
    count: 1,
    uuids: MINE,
    scope: null,
    info: info('ana'),
    preempts: [],
    booked: [],
    reached: null,
  };
  const circumstances = {
    ahead: new RequestsAhead([ahead('ben', 'x'.repeat(64)) as never]),
    gpus: [],
    latestStart: booking.until,
  };
  expect(whyWaiting(waiter as never, circumstances as never)).toMatch(
    /^after ben's x{23}…; by .*2999.* at the latest$/,
  );
});
