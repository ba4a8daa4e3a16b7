// Searches beside Optuna's own studies: with the same sampler and four trials at a time, the best values are as good.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { Experiment } from '../../support/experiment.ts';
import { finished, until } from '../../support/machine.ts';
import { childrenOf, sendSignal, wordsOf } from '../../support/processes.ts';

const STUDY = join(import.meta.dirname, 'fixtures/optuna_study.py');
const FUNCTIONS = join(import.meta.dirname, 'fixtures/functions.py');
// Without Optuna there is nothing to compare with: pip install optuna cmaes
const { stdout: python } = spawnSync(
  'python3',
  ['-c', 'import optuna, cmaes, sys; print(sys.executable, end="")'],
  { encoding: 'utf8' },
);
const isSoak = process.env.GPU_OWNER_SOAK === '1';
const SEEDS = 20;
const TRIALS = 100;
const METHODS = ['tpe', 'cmaes'] as const;
const DIMENSIONS = { branin: 2, hartmann: 6, noisy: 2 };

/** The best value of each seed. @param who study: of Optuna; helper: ours, in the same process, which starts anew half way */
function bestOf(
  who: 'study' | 'helper',
  method: string,
  name: string,
  seeds: number,
  trials: number,
): number[] {
  const words = [STUDY, who, method, name, String(seeds), String(trials)];
  const { stdout, stderr, status } = spawnSync(python, words, { encoding: 'utf8' });
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  return JSON.parse(stdout);
}

/** The best value of a sweep with a manager that has two GPUs, and a worker that has two: each of them, and the helper, is killed thrice. */
async function bestOfKilled(method: string, name: keyof typeof DIMENSIONS, seed: number): Promise<number> {
  const experiment = new Experiment(4);
  try {
    const grid = Array.from({ length: DIMENSIONS[name] }, (_, i) => `x${i}=0.0..1.0`);
    const search = [
      '--method',
      method,
      '--trials',
      String(TRIALS),
      '--metric',
      'loss',
      '--search-seed',
      String(seed),
    ];
    const command = ['--', python, '-S', FUNCTIONS, name];
    const startRun = () => experiment.start(['run', '--gpus', '2', '--grid', ...grid, ...search, ...command]);
    const startWorker = () => experiment.start(['worker', '--gpus', '2']);
    let run = startRun();
    let end = finished(run);
    await experiment.untilStarted(1);
    let worker = startWorker();
    for (const [at, who] of [
      'helper',
      'worker',
      'run',
      'helper',
      'worker',
      'run',
      'helper',
      'worker',
      'run',
    ].entries()) {
      await experiment.untilStarted((at + 1) * 10);
      if (who === 'helper') {
        const isHelper = (pid: number) => wordsOf(pid).some((word) => word.endsWith('search_helper.py'));
        const find = () => childrenOf(run.pid as number).find(isHelper);
        await until(() => find() !== undefined);
        sendSignal(find(), 'SIGKILL');
      } else if (who === 'worker') {
        worker.kill('SIGKILL');
        await finished(worker, 'exit');
        worker = startWorker();
      } else {
        run.kill('SIGKILL');
        await end;
        run = startRun();
        end = finished(run);
      }
    }
    const { code, stdout, stderr } = await end;
    expect(code, stdout + stderr).toBe(name === 'noisy' ? 1 : 0);
    await finished(worker, 'exit');
    const { total, search: found } = await experiment.status();
    expect(total).toBe(TRIALS);
    return found.best[0].value;
  } finally {
    await experiment.close();
  }
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

const median = (values: readonly number[]) =>
  values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] as number;

test('the rank test tells samples that differ from those that do not', () => {
  const low = Array.from({ length: 20 }, (_, i) => i);
  const high = low.map((each) => each + 15);
  expect(rankTest(low, low)).toBeCloseTo(0.5, 5);
  expect(rankTest(high, low)).toBeLessThan(0.001);
  expect(rankTest(low, high)).toBeGreaterThan(0.999);
});

/** Six comparisons are made: one of a hundred would fail by chance. */
const LEAST = 0.002;

test.skipIf(python === '')('a helper that starts anew is as good as a study of Optuna', () => {
  const [ours, theirs] = [bestOf('helper', 'tpe', 'branin', 5, 30), bestOf('study', 'tpe', 'branin', 5, 30)];
  expect(rankTest(ours, theirs), `${ours} beside ${theirs}`).toBeGreaterThan(LEAST);
});

test
  .skipIf(python === '' || !isSoak)
  .for(
    METHODS.flatMap((method) =>
      Object.keys(DIMENSIONS).map((name) => [method, name as keyof typeof DIMENSIONS] as const),
    ),
  )(
  'a sweep by %s on %s, whose processes are killed, is as good as a study of Optuna',
  { timeout: 3_600_000 },
  async ([method, name]) => {
    const ours: number[] = [];
    for (let seed = 0; seed < SEEDS; seed++) ours.push(await bestOfKilled(method, name, seed + 100));
    const theirs = bestOf('study', method, name, SEEDS, TRIALS);
    const probability = rankTest(ours, theirs);
    console.info(
      `${method} on ${name}: medians ${median(ours)} and ${median(theirs)}, p = ${probability.toFixed(3)}`,
    );
    expect(probability, `${ours} beside ${theirs}`).toBeGreaterThan(LEAST);
  },
);
