// Searches beside Optuna's own studies: with the same sampler and four trials at a time, the best values are as good.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { Sampler } from '../../../lib/experiments/search/sampler.ts';

const STUDY = join(import.meta.dirname, 'fixtures/optuna_study.py');
const hasOptuna = spawnSync('python3', ['-c', 'import optuna, cmaes']).status === 0;
const isSoak = process.env.GPU_OWNER_SOAK === '1';
const SEEDS = isSoak ? 20 : 5;
const TRIALS = isSoak ? 100 : 30;
const PARALLEL = 4;

type Function = (x: readonly number[]) => number | null;
const branin = ([x = 0, y = 0]: readonly number[]) => {
  const [u, v] = [x * 15 - 5, y * 15];
  const a = v - (5.1 / (4 * Math.PI ** 2)) * u * u + (5 / Math.PI) * u - 6;
  return a ** 2 + 10 * (1 - 1 / (8 * Math.PI)) * Math.cos(u) + 10;
};
const A = [
  [10, 3, 17, 3.5, 1.7, 8],
  [0.05, 10, 17, 0.1, 8, 14],
  [3, 3.5, 1.7, 10, 17, 8],
  [17, 8, 0.05, 10, 0.1, 14],
];
const P = [
  [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
  [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
  [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.665],
  [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
];
const hartmann = (x: readonly number[]) =>
  -[1, 1.2, 3, 3.2].reduce((sum, c, i) => {
    const distance = x.reduce(
      (all, y, j) => all + (A[i]?.[j] as number) * (y - (P[i]?.[j] as number)) ** 2,
      0,
    );
    return sum + c * Math.exp(-distance);
  }, 0);
const noisy: Function = (x) => {
  const noise = Math.sin(x.reduce((sum, y, i) => sum + (i + 1) * 9999 * y, 0));
  const fails = Math.sin(7777 * (x[0] as number) + 3333 * (x[1] as number)) > 0.95;
  return fails ? null : branin(x) + 5 * noise;
};
const FUNCTIONS: Record<string, [Function, number]> = {
  branin: [branin, 2],
  hartmann: [hartmann, 6],
  noisy: [noisy, 2],
};

/** The best value of a search whose helper process is killed once, half way. */
async function search(method: 'tpe' | 'cmaes', name: string, seed: number): Promise<number> {
  const [evaluate, dimensions] = FUNCTIONS[name] as [Function, number];
  const names = Array.from({ length: dimensions }, (_, i) => `x${i}`);
  const space = names.map((each) => ({
    name: each,
    condition: null,
    kind: 'float' as const,
    low: 0,
    high: 1,
    log: false,
  }));
  const start = async () => {
    const started = new Sampler({ python: 'python3', directory: '.', method, goal: 'minimize', space });
    await started.begin();
    return started;
  };
  const seedOf = (trial: number) => seed * 1_000 + trial;
  type Event = { trial: number; end: number | null | undefined };
  const events: Event[] = [];
  const parameters: Record<string, number>[] = [];
  const running: { trial: number; value: number | null }[] = [];
  let best = Number.POSITIVE_INFINITY;
  let sampler = await start();
  for (let trial = 0; trial < TRIALS; trial++) {
    if (trial === TRIALS / 2) {
      sampler.close();
      sampler = await start();
      for (const { trial: each, end } of events) {
        if (end === undefined) await sampler.ask(seedOf(each), parameters[each] as Record<string, number>);
        else await sampler.tell(each, end, null);
      }
    }
    if (running.length === PARALLEL) {
      const { trial: first, value } = running.shift() as (typeof running)[0];
      await sampler.tell(first, value, null);
      events.push({ trial: first, end: value });
    }
    const chosen = (await sampler.ask(seedOf(trial), null)).parameters;
    parameters.push(chosen);
    events.push({ trial, end: undefined });
    const value = evaluate(names.map((each) => chosen[each] as number));
    running.push({ trial, value });
    best = Math.min(best, value ?? best);
  }
  sampler.close();
  return best;
}

/** Mann and Whitney's rank test, by its normal approximation: how likely values as large as these are, if both are alike. */
function rankTest(one: readonly number[], other: readonly number[]): number {
  const larger = (a: number) => other.filter((b) => b < a).length + other.filter((b) => b === a).length / 2;
  const u = one.reduce((sum, a) => sum + larger(a), 0);
  const [n, m] = [one.length, other.length];
  const z = (u - (n * m) / 2) / Math.sqrt((n * m * (n + m + 1)) / 12);
  // Abramowitz and Stegun 7.1.26
  const t = 1 / (1 + (0.3275911 * Math.abs(z)) / Math.SQRT2);
  const series =
    t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  const tail = (series * Math.exp((-z * z) / 2)) / 2;
  return z > 0 ? tail : 1 - tail;
}

test('the rank test tells samples that differ from those that do not', () => {
  const low = Array.from({ length: 20 }, (_, i) => i);
  const high = low.map((each) => each + 15);
  expect(rankTest(low, low)).toBeCloseTo(0.5, 5);
  expect(rankTest(high, low)).toBeLessThan(0.001);
  expect(rankTest(low, high)).toBeGreaterThan(0.999);
});

/** Six comparisons are made: one of a hundred would fail by chance. */
const LEAST = 0.002;

// Without Optuna there is nothing to compare with: pip install optuna cmaes
test.skipIf(!hasOptuna).for(
  isSoak
    ? ['branin', 'hartmann', 'noisy'].flatMap(
        (name) =>
          [
            ['tpe', name],
            ['cmaes', name],
          ] as const,
      )
    : ([['tpe', 'branin']] as const),
)('a search by %s on %s is as good as a study of Optuna', { timeout: 1_200_000 }, async ([method, name]) => {
  const ours: number[] = [];
  for (let seed = 0; seed < SEEDS; seed++) ours.push(await search(method, name, seed + 100));
  const words = [STUDY, method, name, String(SEEDS), String(TRIALS)];
  const { stdout, stderr, status } = spawnSync('python3', words, { encoding: 'utf8' });
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  expect(rankTest(ours, JSON.parse(stdout)), `${ours} beside ${stdout}`).toBeGreaterThan(LEAST);
});
