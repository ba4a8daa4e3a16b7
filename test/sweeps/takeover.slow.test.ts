// How long a task waits whose worker has died: until something of it may live, and not much longer.
import type { ChildProcess } from 'node:child_process';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { pause, python, until } from '../support/machine.ts';
import { sendSignal } from '../support/processes.ts';
import { Cluster, type Host, noCluster } from './cluster.ts';
import { processesOf } from './processes.ts';
import { type Testimony, violationsIn } from './witness.ts';
import { range, WitnessedExperiment } from './witnessed.ts';

const SOAK = Boolean(process.env.GPU_OWNER_SOAK);
/** In seconds: what docs/many-machines.md says; or as much for less patience: 4 + 0.8 + 1, and 2 as there. */
const { query, most } = SOAK ? { query: '', most: 75 } : { query: 'patience=4&margin=1', most: 7.8 };
const ROUNDS = SOAK ? 3 : 1;
const HONEST = [python, '-S', join(import.meta.dirname, 'fixtures/honest_task.py'), '{seconds}'];
/** As the log has it, in ms. */
const clock = () => Number(process.hrtime.bigint()) / 1e6;

let close: () => Promise<void> = async () => {};
afterEach(async () => {
  await close();
  close = async () => {};
});

const starts = (log: Testimony[]) => log.filter(({ kind, role }) => kind === 'start' && role === 'command');

/** The task that a worker runs. */
function taskOf(experiment: WitnessedExperiment, worker: ChildProcess): string {
  const line = starts(experiment.testimony()).find(({ pid }) =>
    ancestors(experiment, pid).includes(worker.pid as number),
  );
  if (line === undefined) throw new Error('the worker runs nothing');
  return line.name as string;
}

function ancestors(experiment: WitnessedExperiment, pid: number): number[] {
  const all = processesOf(experiment.machine);
  const found: number[] = [];
  for (let next = all.find((each) => each.pid === pid); next !== undefined; ) {
    const { parent } = next;
    found.push(parent);
    next = all.find((each) => each.pid === parent);
  }
  return found;
}

function killKeeper(experiment: WitnessedExperiment, worker: ChildProcess): void {
  const keeper = processesOf(experiment.machine).find(
    ({ kind, pid }) => kind === 'keeper' && ancestors(experiment, pid).includes(worker.pid as number),
  );
  worker.kill('SIGKILL');
  sendSignal(keeper?.pid, 'SIGKILL'); // the worker's death has ended it, if it is quick
}

async function busy(experiment: WitnessedExperiment, worker: ChildProcess): Promise<void> {
  await until(
    () => {
      try {
        return taskOf(experiment, worker) !== '';
      } catch {
        return false;
      }
    },
    () => {
      const { pid, exitCode, signalCode } = worker;
      const outcome = exitCode ?? signalCode ?? 'it runs';
      const processes = experiment.left().join('\n  ');
      return `worker ${pid} to run a task (${outcome}). Processes:\n  ${processes}\nStarted: ${JSON.stringify(starts(experiment.testimony()))}`;
    },
    60_000,
  );
}

/** Seconds until each task runs again, by what was killed. */
async function untilAgain(
  experiment: WitnessedExperiment,
  struck: Map<string, { name: string; at: number }>,
  limit: number,
): Promise<Record<string, number>> {
  const again = (name: string) =>
    starts(experiment.testimony()).filter((line) => line.name === name && line.start === 2)[0];
  await until(
    () => [...struck.values()].every(({ name }) => again(name) !== undefined),
    'every struck task to be started again',
    limit * 1000 + 20_000,
  );
  return Object.fromEntries(
    [...struck].map(([what, { name, at }]) => [what, ((again(name)?.at ?? Infinity) - at) / 1000]),
  );
}

test.skipIf(noCluster !== null).for(range(ROUNDS))(
  `a killed worker’s task runs elsewhere within ${most} s on Redis, round %i${noCluster === null ? '' : `: ${noCluster}`}`,
  { timeout: 180_000 },
  async (round) => {
    const cluster = await Cluster.start(3, 4, query);
    close = () => cluster.close();
    const [first, second, third] = cluster.hosts as [Host, Host, Host];
    first.experiment.sweep(HONEST, { long: { seconds: 600, seed: range(4) } });
    const { experiment } = second;
    first.experiment.start(['run', '--gpus', '1']);
    await until(() => starts(experiment.testimony()).length === 1);
    const workers = range(3).map(() => experiment.start(['worker']));
    for (const worker of workers) await busy(experiment, worker);
    third.experiment.start(['worker', '--gpus', '3']);
    await pause(1_000 + 600 * round); // signs of life come every 2 s
    const [worker, withKeeper, machine] = workers as [ChildProcess, ChildProcess, ChildProcess];
    const struck = new Map<string, { name: string; at: number }>();
    const strike = async (what: string, victim: ChildProcess, act: () => unknown) => {
      const name = taskOf(experiment, victim);
      struck.set(what, { name, at: clock() });
      await act();
    };
    await strike('the worker', worker, () => worker.kill('SIGKILL'));
    await pause(500);
    await strike('worker and keeper', withKeeper, () => killKeeper(experiment, withKeeper));
    await pause(500);
    await strike('the machine', machine, () => second.die());
    const seconds = await untilAgain(experiment, struck, most);
    console.log(`on Redis, s until the task runs elsewhere: ${JSON.stringify(seconds)}`);
    expect(violationsIn(experiment.testimony())).toEqual([]);
    for (const each of Object.values(seconds)) {
      expect(each).toBeGreaterThan(most / 2); // processes of another machine weren't looked at
      expect(each).toBeLessThan(SOAK ? most : most + 20); // a busy machine starts processes late
    }
  },
);

test.for(range(ROUNDS))(
  'a killed worker’s task runs again as soon as its command has ended on SQLite, round %i',
  async () => {
    const experiment = new WitnessedExperiment(5);
    close = () => experiment.close();
    experiment.sweep(HONEST, { long: { seconds: 600, seed: range(3) } });
    experiment.start(['run', '--gpus', '1']);
    await until(() => starts(experiment.testimony()).length === 1);
    const [worker, withKeeper] = range(2).map(() => experiment.start(['worker'])) as [
      ChildProcess,
      ChildProcess,
    ];
    await busy(experiment, worker);
    await busy(experiment, withKeeper);
    experiment.start(['worker', '--gpus', '2']);
    await pause(1_500);
    const struck = new Map([['the worker', { name: taskOf(experiment, worker), at: clock() }]]);
    worker.kill('SIGKILL');
    await pause(300);
    struck.set('worker and keeper', { name: taskOf(experiment, withKeeper), at: clock() });
    killKeeper(experiment, withKeeper);
    const seconds = await untilAgain(experiment, struck, 5);
    console.log(`on SQLite, s until the task runs again: ${JSON.stringify(seconds)}`);
    expect(violationsIn(experiment.testimony())).toEqual([]);
  },
);
