// A sweep of commands that misbehave, on a machine where managers, workers, keepers and commands are killed and stopped at random.
// Whether all promises are kept is told by witnesses of which gpu-owner knows nothing.
import { afterEach, expect, test } from 'vitest';
import { until } from '../support/machine.ts';
import { Random } from '../support/random.ts';
import { ChaosRun } from './chaos-run.ts';
import { violationsIn, violationsOfTables } from './witness.ts';
import { CHAOTIC, range, WitnessedExperiment } from './witnessed.ts';

const SOAK = Boolean(process.env.GPU_OWNER_SOAK);
const [QUICK, STUBBORN] = SOAK ? [1_900, 100] : [35, 5];
const TASKS = QUICK + STUBBORN;
const GPUS = 4;
const SETTINGS = SOAK
  ? { gpus: GPUS, workers: 4, rest: 400, mischief: 600_000, patience: 900_000 }
  : { gpus: GPUS, workers: 4, rest: 200, mischief: 3_000, patience: 180_000 };

const given = process.env.GPU_OWNER_CHAOS_SEED;
const first = given === undefined ? Math.floor(Math.random() * 1e6) : Number(given);
const SEEDS = Array.from({ length: SOAK && given === undefined ? 10 : 1 }, (_, i) => first + i);

let experiment: WitnessedExperiment;
afterEach(() => experiment.close());

test.each(SEEDS)(
  `${TASKS} tasks on ${GPUS} GPUs, GPU_OWNER_CHAOS_SEED=%i: each is done once or fails, no GPU is used twice, nothing is left`,
  {
    timeout: SETTINGS.mischief + SETTINGS.patience + 60_000,
  },
  async (seed) => {
    experiment = new WitnessedExperiment(GPUS, { seed });
    const { machine } = experiment;
    experiment.sweep(CHAOTIC, {
      chaos: { dataset: 'mnist', seed: range(TASKS - 10) },
      // Equal tasks run once, and have a row in either table.
      again: { dataset: 'mnist', seed: range(TASKS, TASKS - 20) },
    });
    const chaos = new ChaosRun(experiment, new Random(seed), SETTINGS);
    await chaos.pass();

    await until(() => experiment.left().length === 0).catch(() => {});
    expect(experiment.left()).toEqual([]);
    const log = experiment.testimony();
    const { tasks, givenBack, check, living } = await experiment.outcomes();
    const rows = await experiment.rows();
    const violations = [
      ...violationsIn(log),
      ...violationsOfTables(log, tasks, rows),
      ...chaos.watch.violations(log),
    ];
    expect(violations.slice(0, 20)).toEqual([]);
    expect(chaos.complaints).toEqual([]);
    // Whatever else happens here is the task's own fault.
    expect(givenBack.filter(({ why }) => !why.startsWith('exit code 75'))).toEqual([]);
    expect({ check, living, tasks: tasks.length }).toEqual({ check: 'ok', living: 0, tasks: TASKS });
    expect(await machine.states()).toEqual(Array(GPUS).fill('free'));
    expect(machine.allProcesses()).toEqual(Array(GPUS).fill([]));
    expect(JSON.parse((await machine.runCommand(['queue', '--json'])).stdout)).toEqual([]);

    const completed = tasks.filter(({ state }) => state === 'completed').length;
    const commands = log.filter(({ role, kind }) => role === 'command' && kind === 'start').length;
    console.log(
      `seed ${seed}: ${completed} of ${TASKS} tasks completed in ${commands} attempts; ${chaos.starts} managers, workers and ` +
        `claimants; ${chaos.watch.looks} looks at the driver; ${JSON.stringify(chaos.monkey.deeds)}`,
    );
    expect(completed).toBeGreaterThan(TASKS / 2);
  },
);

test.each(SEEDS)(
  'commands that go on for seconds after their worker was killed, GPU_OWNER_CHAOS_SEED=%i: idle workers wait for their end',
  {
    timeout: 180_000,
  },
  async (seed) => {
    experiment = new WitnessedExperiment(8, { seed });
    // Fewer than workers, so that there is always one that would take a task at once.
    experiment.sweep(CHAOTIC, { stubborn: { stubborn: 3, seed: range(4) } });
    const chaos = new ChaosRun(experiment, new Random(seed), {
      gpus: 2,
      workers: 5,
      rest: 400,
      shares: { manager: 1, worker: 3 },
      mischief: SOAK ? 30_000 : 4_000,
      patience: 120_000,
    });
    await chaos.pass();
    const log = experiment.testimony();
    const { tasks } = await experiment.outcomes();
    expect(violationsIn(log)).toEqual([]);
    expect(violationsOfTables(log, tasks, await experiment.rows())).toEqual([]);
    expect(chaos.complaints).toEqual([]);
  },
);
