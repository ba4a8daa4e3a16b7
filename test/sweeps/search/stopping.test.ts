// Early stopping, beside plain implementations: successive halving as in the paper (Li et al. 2018, algorithm 1), and W&B's quantile.
import { expect, test } from 'vitest';
import { isStopped, rungsUntil, type StopRule } from '../../../lib/sweeps/search/stopping.ts';
import { TrialCourse } from '../../../lib/sweeps/search/trial-course.ts';
import { Random } from '../../support/random.ts';

const hyperband = (eta: number, strict: boolean): StopRule => ({
  kind: 'hyperband',
  rungs: [1, 3, 9, 27],
  eta,
  strict,
});

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
      const at = (trial: number) => values[trial]?.[rung] as number;
      const goesOn = (trial: number) => {
        const others = left.filter((each) => each !== trial).map(at);
        return !isStopped(hyperband(eta, true), 'minimize', at(trial), others);
      };
      left = left.filter(goesOn);
      expect(left).toEqual(kept);
    }
  }
});

/** NumPy's quantile, as W&B's hyperband_stopping.py takes it. */
function quantile(values: readonly number[], share: number): number {
  const sorted = values.toSorted((a, b) => a - b);
  const at = share * (sorted.length - 1);
  const low = sorted[Math.floor(at)] as number;
  return low + ((sorted[Math.ceil(at)] as number) - low) * (at - Math.floor(at));
}

test.each(['minimize', 'maximize'] as const)(
  'W&B’s rule stops what is worse than the quantile 1/eta: %s',
  (goal) => {
    const random = new Random(2);
    const next = () => random.float();
    const sign = goal === 'minimize' ? 1 : -1;
    for (let round = 0; round < 300; round++) {
      const eta = [2, 3, 4][round % 3] as number;
      const [own = 0, ...others] = Array.from({ length: 1 + (round % 40) }, () => sign * next());
      const threshold = quantile(
        [own, ...others].map((each) => sign * each),
        1 / eta,
      );
      expect(isStopped(hyperband(eta, false), goal, own, others)).toBe(sign * own > threshold);
    }
  },
);

test('the median rule waits for four others, and stops what is worse than their median', () => {
  const rule: StopRule = { kind: 'median', first: 5 };
  expect(isStopped(rule, 'minimize', 100, [1, 2, 3])).toBe(false);
  expect(isStopped(rule, 'minimize', 2.4, [1, 2, 3, 4])).toBe(false);
  expect(isStopped(rule, 'minimize', 2.6, [1, 2, 3, 4])).toBe(true);
  expect(isStopped(rule, 'maximize', 2.4, [1, 2, 3, 4])).toBe(true);
  expect(rungsUntil(rule, 4)).toEqual([]);
  expect(rungsUntil(rule, 16)).toEqual([5, 10, 15]);
});

test('a trial is compared at rungs only: with its best value there, or with the reported one', async () => {
  const asked: { step: number; value: number }[] = [];
  const queue = {
    async report({ step, value }: { step: number; value: number }) {
      asked.push({ step, value });
      return [0.2];
    },
  };
  const course = (strict: boolean) =>
    new TrialCourse(
      {
        phase: 'p',
        trials: 10,
        metric: { name: 'loss', goal: 'minimize', pattern: null },
        stopping: { kind: 'hyperband', rungs: [3, 9], eta: 2, strict },
        isOver: false,
      },
      't-1',
    );
  const [strict, wandb] = [course(true), course(false)];
  for (const each of [strict, wandb]) {
    each.note(1, { loss: 0.1 });
    each.note(2, { loss: 0.4, accuracy: 1 });
    expect(await each.isBad(queue)).toBe(false);
  }
  expect(asked).toEqual([]); // nothing is stopped before the first rung
  strict.note(3, { loss: 0.3 });
  wandb.note(3, { loss: 0.3 });
  expect([await strict.isBad(queue), await wandb.isBad(queue)]).toEqual([true, false]);
  expect(asked).toEqual([
    { step: 3, value: 0.3 },
    { step: 3, value: 0.1 },
  ]);
  expect(await wandb.isBad(queue)).toBe(false); // no news
  wandb.note(4, { loss: 0.3 });
  await wandb.isBad(queue);
  expect(asked.slice(2)).toEqual([{ step: 3, value: 0.1 }]); // others may be better by now
  expect(wandb.last).toEqual({ loss: 0.3, accuracy: 1 });
});
