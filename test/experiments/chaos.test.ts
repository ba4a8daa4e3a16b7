// A sweep of commands that misbehave, on a machine where managers, workers, keepers and commands are killed and stopped at random.
// Whether all promises are kept is told by witnesses of which gpu-owner knows nothing.
import type { ChildProcess } from 'node:child_process';
import { afterEach, expect, test } from 'vitest';
import { command, finished, pause, until } from '../machine.ts';
import { DriverWatch } from './driver-watch.ts';
import { CHAOTIC, Experiment } from './experiment.ts';
import { Monkey } from './monkey.ts';
import { Random } from './random.ts';
import { violationsIn, violationsOfTables } from './witness.ts';

const SOAK = Boolean(process.env.GPU_OWNER_SOAK);
const TASKS = SOAK ? 2_000 : 120;
const GPUS = 4;
/** Beside those of the manager. */
const WORKERS = 4;
/** After so long nothing is killed any more: what is left must come to its end. */
const MISCHIEF = SOAK ? 600_000 : 8_000;
const PATIENCE = SOAK ? 900_000 : 60_000;
/** Between two deeds, in ms. */
const REST = SOAK ? 400 : 200;

const given = process.env.GPU_OWNER_CHAOS_SEED;
const first = given === undefined ? Math.floor(Math.random() * 1e6) : Number(given);
const SEEDS = Array.from({ length: SOAK && given === undefined ? 10 : 1 }, (_, i) => first + i);

let experiment: Experiment;
afterEach(() => experiment.close());

test.each(SEEDS)(
  `${TASKS} tasks on ${GPUS} GPUs, GPU_OWNER_CHAOS_SEED=%i: each done once or failed, no GPU used twice, nothing left`,
  {
    timeout: MISCHIEF + PATIENCE + 60_000,
    retry: 0,
  },
  async (seed) => {
    experiment = new Experiment(GPUS, { seed });
    const { machine } = experiment;
    const numbers = (from: number, to: number) => Array.from({ length: to - from }, (_, i) => from + i);
    experiment.sweep(CHAOTIC, {
      chaos: { dataset: 'mnist', seed: numbers(0, TASKS) },
      // Equal tasks run once, and have a row in either table.
      again: { dataset: 'mnist', seed: numbers(TASKS - 10, TASKS + 10) },
    });

    const random = new Random(seed);
    const monkey = new Monkey(machine, random, REST);
    const watch = new DriverWatch(machine);
    const watching = watch.run();
    const raging = monkey.run();
    setTimeout(() => monkey.end(), MISCHIEF).unref();

    const said: string[] = [];
    let isOver = false;
    let starts = 0;
    const keepStarting = async (start: () => ChildProcess, onEnd: (code: number | null) => void) => {
      while (!isOver) {
        starts++;
        const { code, signal, stderr } = await finished(start());
        if (signal === null && ![0, 1, 75].includes(code ?? -1)) said.push(`code ${code}: ${stderr}`);
        onEnd(code);
        await pause(random.float(300));
      }
    };
    const over = (code: number | null) => {
      // 1: some have failed, or it has stopped because so many did. The next one lifts that.
      if (code === 0 || (code === 1 && / (\d+)\/\1 \(100/.test(experiment.log()))) isOver = true;
    };
    const actors = [
      keepStarting(() => experiment.start(['run', '--gpus', String(GPUS)]), over),
      ...Array.from({ length: WORKERS }, () =>
        keepStarting(
          () => experiment.start(['worker']),
          () => {},
        ),
      ),
      // Others who want GPUs.
      keepStarting(
        () =>
          machine.start([process.execPath, command, 'run', '--', ...CHAOTIC, 'claimant', '0.1'], experiment),
        () => {},
      ),
    ];
    await until(() => isOver, MISCHIEF + PATIENCE).catch(async (error) => {
      throw new Error(
        `${error}\n${(await experiment.run(['status'])).stdout}\n${experiment.left().join('\n')}`,
      );
    });
    monkey.end();
    await raging;
    // Workers end by themselves when nothing can come any more.
    await Promise.all(actors);
    watch.end();
    await watching;

    await until(() => experiment.left().length === 0, 15_000).catch(() => {});
    expect(experiment.left()).toEqual([]);
    const log = experiment.testimony();
    const { tasks: fates, givenBack, check, counts, living } = await experiment.fates();
    expect({ check, living, tasks: fates.length }).toEqual({ check: 'ok', living: 0, tasks: TASKS + 10 });
    for (const [state, count] of Object.entries(counts)) {
      expect([state, fates.filter((each) => each.state === state).length]).toEqual([state, count]);
    }
    const violations = [
      ...violationsIn(log),
      ...violationsOfTables(log, fates, await experiment.rows()),
      ...watch.violations(log),
    ];
    expect(violations).toEqual([]);
    expect(said).toEqual([]);
    // Nothing else happens here that isn't a task's own fault.
    expect(givenBack.filter(({ why }) => !why.startsWith('exit code 75'))).toEqual([]);
    expect(await machine.states()).toEqual(Array(GPUS).fill('free'));
    expect(machine.allProcesses()).toEqual(Array(GPUS).fill([]));
    expect(JSON.parse((await machine.runCommand(['queue', '--json'])).stdout)).toEqual([]);

    const completed = fates.filter(({ state }) => state === 'completed').length;
    const commands = log.filter(({ role, kind }) => role === 'command' && kind === 'start').length;
    console.log(
      `seed ${seed}: ${completed} of ${fates.length} tasks completed in ${commands} attempts; ${starts} starts of managers, ` +
        `workers and claimants; ${watch.looks} looks at the driver; ${JSON.stringify(monkey.deeds)}`,
    );
    expect(completed).toBeGreaterThan(TASKS / 2);
  },
);
