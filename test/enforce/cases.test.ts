import { expect, test } from 'vitest';
import { type Case, type Cases, decideActions } from '../../lib/enforce/cases.ts';
import { Random } from '../support/random.ts';

const TIMES = { graceMs: 100, killMs: 30 };
const LOOK = 10;

/** The actions of looks, one every ten ms: a text of processes for each; 'ab' are two processes of one case. */
function actionsOf(looks: readonly string[], cases: Cases = {}, from = 0): string[] {
  let state = cases;
  return looks.map((text, i) => {
    const sightings = [...text].map((process) => ({ case: 'bob on GPU 0', process }));
    const { cases: after, actions } = decideActions(state, sightings, from + i * LOOK, TIMES);
    state = after;
    return actions.map(({ kind, sighting }) => `${kind} ${sighting.process}`).join(', ');
  });
}
const repeat = (text: string, times: number) => Array.from({ length: times }, () => text);
const NOTHING = (times: number) => repeat('', times);

test('a process is warned, and gets SIGTERM after the grace and SIGKILL after that', () => {
  expect(actionsOf(repeat('a', 16))).toEqual([
    'warn a',
    ...NOTHING(9),
    'terminate a',
    ...NOTHING(2),
    'kill a',
    ...NOTHING(2),
  ]);
});

test('a process that ends, or stops computing there, is forgotten', () => {
  expect(actionsOf(['a', 'a', '', 'a', 'a'])).toEqual(['warn a', '', '', 'warn a', '']);
});

test('another process of the same user there has the grace of the first, but one look at least', () => {
  expect(actionsOf(['a', ...repeat('', 10), 'b', 'b', 'b', 'b', 'b'])).toEqual([
    'warn a',
    ...NOTHING(10),
    'warn b',
    'terminate b',
    ...NOTHING(2),
    'kill b',
  ]);
});

test('once one was killed, others get SIGKILL in the next look: they would start others on SIGTERM', () => {
  const looks = [...repeat('a', 10), 'a', 'ab', 'ab', 'ab', 'bc', 'c', 'd', 'd'];
  expect(actionsOf(looks).slice(10)).toEqual([
    'terminate a',
    'warn b',
    'terminate b',
    'kill a',
    'warn c',
    'kill c',
    'warn d',
    'kill d',
  ]);
});

test('one who starts another process each time that SIGTERM has ended one gets SIGKILL', () => {
  const looks = [...repeat('a', 10), 'a', 'b', 'b', 'bc', 'cd', 'd'];
  expect(actionsOf(looks).slice(10)).toEqual([
    'terminate a',
    'warn b',
    'kill b',
    'warn c',
    'kill c, warn d',
    'kill d',
  ]);
  // Who ends on SIGTERM, and comes back later, doesn't.
  expect(actionsOf([...repeat('a', 11), '', 'b', 'b']).slice(10)).toEqual([
    'terminate a',
    '',
    'warn b',
    'terminate b',
  ]);
});

test('a user who comes back much later is warned again', () => {
  const later = decideActions(
    { 'bob on GPU 0': { warnedAt: 0, lastSeenAt: 0, isStubborn: true, processes: {} } },
    [{ case: 'bob on GPU 0', process: 'a' }],
    700_000,
    TIMES,
  );
  expect(later.cases['bob on GPU 0']).toMatchObject({ warnedAt: 700_000, isStubborn: false });
});

test('nothing comes sooner because the state was lost, or because nobody looked for a while', () => {
  const before = decideActions({}, [{ case: 'bob on GPU 0', process: 'a' }], 0, TIMES).cases;
  // The state is there: the grace goes on. Without it, the user is warned again.
  expect(actionsOf(['a', 'a'], before, 90)).toEqual(['', 'terminate a']);
  expect(actionsOf(['a', 'a'], {}, 90)).toEqual(['warn a', '']);
});

test('whatever comes and goes: no signal before the grace, in the first look, or out of order', () => {
  const random = new Random(3);
  let state: Cases = {};
  const history = new Map<string, { look: number; kind: string; at: number }[]>();
  const warnedAt = (key: string) => (state[key] as Case).warnedAt;
  let signals = 0;
  let at = 0;
  for (let look = 0; look < 10_000; look++) {
    at += random.integer(20);
    const sightings = Array.from({ length: random.integer(4) }, () => ({
      case: `case ${random.integer(2)}`,
      process: `${random.integer(4)} of ${Math.floor(look / 40)}`,
    }));
    const unique = [...new Map(sightings.map((each) => [`${each.case} ${each.process}`, each])).values()];
    const { cases, actions } = decideActions(state, unique, at, TIMES);
    state = cases;
    for (const { kind, sighting } of actions) {
      const key = `${sighting.case} ${sighting.process}`;
      const earlier = history.get(key) ?? [];
      if (kind === 'warn') history.set(key, []);
      else {
        signals++;
        expect(at - warnedAt(sighting.case)).toBeGreaterThanOrEqual(TIMES.graceMs);
        expect(earlier[0]).toMatchObject({ kind: 'warn' });
        expect(earlier[0]?.look).toBeLessThan(look);
        expect(earlier.map((each) => each.kind)).not.toContain(kind);
        const terminated = earlier.find((each) => each.kind === 'terminate');
        if (kind === 'kill' && terminated !== undefined)
          expect(at - terminated.at).toBeGreaterThanOrEqual(TIMES.killMs);
      }
      history.get(key)?.push({ look, kind, at });
    }
  }
  expect(signals).toBeGreaterThan(500);
});
