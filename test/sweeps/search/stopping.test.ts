// Early stopping, beside others: successive halving as in the paper (Li et al. 2018, algorithm 1), and W&B's package.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import type { SpaceSweep } from '../../../lib/sweeps/files/search-space.ts';
import { parseSweepFile } from '../../../lib/sweeps/files/sources.ts';
import { isStopped, rungsUntil, type StopRule } from '../../../lib/sweeps/search/stopping.ts';
import { TrialCourse } from '../../../lib/sweeps/search/trial-course.ts';
import { Random } from '../../support/random.ts';

/** A trial whose value is its best one. */
const at = (value: number) => ({ value, best: value });

/** The trials that are left after each rung: the best n/eta of those before, rounded down. */
function successiveHalving(values: readonly (readonly number[])[], eta: number): number[][] {
  let left = values.map((_, trial) => trial);
  return (values[0] as readonly number[]).map((_, rung) => {
    const order = left.toSorted((a, b) => (values[a]?.[rung] as number) - (values[b]?.[rung] as number));
    left = order.slice(0, Math.max(1, Math.floor(left.length / eta)));
    return left.toSorted((a, b) => a - b);
  });
}

test('where all trials have reached a rung, those are stopped that successive halving stops', () => {
  const random = new Random(1);
  const next = () => random.float();
  for (let round = 0; round < 100; round++) {
    const eta = [2, 3, 4][round % 3] as number;
    const values = Array.from({ length: 4 + (round % 30) }, () => Array.from({ length: 4 }, () => next()));
    let left = values.map((_, trial) => trial);
    const expected = successiveHalving(values, eta);
    for (const [rung, kept] of expected.entries()) {
      const rule: StopRule = { kind: 'hyperband', rungs: [1, 3, 9, 27], eta };
      const lossOf = (trial: number) => values[trial]?.[rung] as number;
      const goesOn = (trial: number) => {
        const others = left.filter((each) => each !== trial).map(lossOf);
        return !isStopped(rule, 'minimize', at(lossOf(trial)), others);
      };
      left = left.filter(goesOn);
      expect(left).toEqual(kept);
    }
  }
});

test('W&B’s rule stops the runs that its package stops', async () => {
  const lines = readFileSync(join(import.meta.dirname, 'fixtures/wandb-stops.jsonl'), 'utf8')
    .trim()
    .split('\n');
  for (const line of lines) {
    const { rule, goal, histories, stopped } = JSON.parse(line);
    const file = `program: a
method: random
metric: {name: loss, goal: ${goal}}
early_terminate: ${JSON.stringify({ type: 'hyperband', ...rule })}
parameters: {a: {value: 1}}
`;
    const [sweep] = parseSweepFile(file, 'sweep.yaml', null, false);
    const stopping = (sweep as SpaceSweep).earlyStopping;
    const search = {
      phase: 'p',
      trials: 9,
      metric: { name: 'loss', goal, pattern: null },
      stopping,
      seed: null,
      left: {},
      isOver: false,
    };
    const values = new Map<string, number>();
    const queue = {
      async report({ id, step, value }: { id: string; step: number; value: number }) {
        values.set(`${step} ${id}`, value);
        return Array.from(values).flatMap(([key, each]) =>
          key.startsWith(`${step} `) && key !== `${step} ${id}` ? [each] : [],
        );
      },
    };
    const look = async () => {
      const bad: number[] = [];
      for (const [id, history] of (histories as number[][]).entries()) {
        const course = new TrialCourse(search, String(id));
        for (const loss of history) course.note(null, { loss });
        if (await course.isBad(queue)) bad.push(id);
      }
      return bad;
    };
    await look(); // the last one to report is known to the first one, too
    expect(await look(), line).toEqual(stopped);
  }
});

test('the median rule waits for four others, and stops what is worse than their median', () => {
  const rule: StopRule = { kind: 'median', first: 5 };
  expect(isStopped(rule, 'minimize', at(100), [1, 2, 3])).toBe(false);
  expect(isStopped(rule, 'minimize', at(2.4), [1, 2, 3, 4])).toBe(false);
  expect(isStopped(rule, 'minimize', at(2.6), [1, 2, 3, 4])).toBe(true);
  expect(isStopped(rule, 'maximize', at(2.4), [1, 2, 3, 4])).toBe(true);
  expect(rungsUntil(rule, 4)).toEqual([]);
  expect(rungsUntil(rule, 16)).toEqual([5, 10, 15]);
});

test('a trial is compared at rungs only: once, or with each of its news where W&B’s rule holds', async () => {
  const asked: { step: number; value: number }[] = [];
  const queue = {
    async report({ step, value }: { step: number; value: number }) {
      asked.push({ step, value });
      return [0.2];
    },
  };
  const course = (stopping: StopRule) =>
    new TrialCourse(
      {
        phase: 'p',
        trials: 10,
        metric: { name: 'loss', goal: 'minimize', pattern: null },
        stopping,
        seed: null,
        left: {},
        isOver: false,
      },
      't-1',
    );
  const own = course({ kind: 'hyperband', rungs: [3, 9], eta: 2 });
  const wandb = course({ kind: 'wandb', rungs: [3, 9], eta: 3, strict: false });
  for (const each of [own, wandb]) {
    each.note(1, { loss: 0.1 });
    each.note(2, { loss: 0.4, accuracy: 1 });
    expect(await each.isBad(queue)).toBe(false);
  }
  expect(asked).toEqual([]); // nothing is stopped before the first rung
  own.note(3, { loss: 0.3 });
  wandb.note(3, { loss: 0.3 });
  expect([await own.isBad(queue), await wandb.isBad(queue)]).toEqual([true, false]);
  expect(asked).toEqual([
    { step: 3, value: 0.3 },
    { step: 3, value: 0.3 },
  ]);
  expect(await wandb.isBad(queue)).toBe(false); // no news
  wandb.note(4, { loss: 0.5 });
  await wandb.isBad(queue);
  expect(asked.slice(2)).toEqual([{ step: 3, value: 0.3 }]); // others may be better by now
  expect(wandb.last).toEqual({ loss: 0.5, accuracy: 1 });
});
