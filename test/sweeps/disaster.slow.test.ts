// Events on machines where sweeps run for days: kill -9, a full disk, everything stopped, other programs and people.
import { spawnSync } from 'node:child_process';
import { mkdirSync, rmdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, type TestContext, test } from 'vitest';
import {
  canMount,
  finished,
  NOBODY,
  output,
  pause,
  python,
  until,
  whyNotNobody,
} from '../support/machine.ts';
import { sendSignal } from '../support/processes.ts';
import { type Kind, processesOf } from './processes.ts';
import { violationsIn } from './witness.ts';
import { range, type Setting, WitnessedExperiment } from './witnessed.ts';

const fixture = (name: string) => join(import.meta.dirname, 'fixtures', name);
const honest = (seconds: number, lines = 1) => [
  python,
  '-S',
  fixture('honest_task.py'),
  String(seconds),
  String(lines),
];

function newExperiment({ onTestFinished }: TestContext, gpus: number, setting: Setting = {}) {
  const experiment = new WitnessedExperiment(gpus, setting);
  onTestFinished(() => experiment.close());
  return experiment;
}

const starts = (experiment: WitnessedExperiment) =>
  experiment.testimony().filter(({ kind, role }) => kind === 'start' && role === 'command').length;

const strike = (experiment: WitnessedExperiment, kinds: readonly Kind[], signal: NodeJS.Signals) => {
  for (const { pid, kind } of processesOf(experiment.machine)) {
    if (kinds.includes(kind)) sendSignal(pid, signal);
  }
};

/** Every task of the sweep has one row, from one attempt that ended well; nothing is left, nothing was wrong. */
async function expectWhole(
  experiment: WitnessedExperiment,
  tasks: number,
  tables = ['results_exp1_vary_width'],
  before = 0,
) {
  expect(experiment.tables()).toEqual([...tables].sort());
  const rows = await experiment.rows();
  expect(rows).toHaveLength(tasks);
  expect(new Set(rows.map(({ attempt }) => attempt).filter(Boolean)).size).toBe(tasks - before);
  const log = experiment.testimony();
  expect(violationsIn(log)).toEqual([]);
  const done = new Set(log.filter(({ kind }) => kind === 'end').map(({ task }) => task));
  expect(done.size).toBe(tasks - before);
  await until(() => experiment.left().length === 0).catch(() => {});
  expect(experiment.left()).toEqual([]);
}

describe('a sweep of which 45 tasks are done is killed -9 in the middle and started again: one row for each task', () => {
  const KEEPERS: Kind[] = ['keeper', 'watchdog'];
  const some = process.env.GPU_OWNER_SOAK ? 6 : 2;
  const ways: [string, number, readonly Kind[]][] = [
    ['the whole tree', some, ['manager', ...KEEPERS, 'command', 'child', 'other']],
    ['only the manager', some, ['manager']],
    ['manager and keepers', some, ['manager', ...KEEPERS]],
  ];
  test.for(ways)('after kill -9 of %s', async ([, widths, kinds], context) => {
    const tasks = widths * 3 * 10;
    const experiment = newExperiment(context, 4);
    experiment.sweep(honest(0.02), {
      exp1_vary_width: { dataset: 'mnist', width_factor: range(widths), depth: range(3), seed: range(10) },
    });
    const table = join(experiment.project, 'results_exp1_vary_width');
    mkdirSync(table);
    const known = range(45).map(
      (i) => `mnist,${Math.floor(i / 30)}.0,${Math.floor(i / 10) % 3},${i % 10},0.9`,
    );
    writeFileSync(
      join(table, 'final_results.csv'),
      `dataset,width_factor,depth,seed,accuracy\n${known.join('\n')}\n`,
    );
    // So that the sweep isn't over before it is struck, whatever else the machine does.
    const slow = join(experiment.machine.directory, 'slow');
    writeFileSync(slow, '600');
    Object.assign(experiment.env, { HONEST_SLOW: slow, HONEST_SLOW_AFTER: String(tasks - 45 - 5) });
    const first = experiment.start(['run', '--gpus', '4']);
    const end = finished(first, 'exit');
    await until(() => starts(experiment) > (tasks - 45) / 3);
    strike(experiment, kinds, 'SIGKILL');
    expect((await end).signal).toBe('SIGKILL');
    rmSync(slow);
    const { code, stderr, stdout } = await experiment.run(['run', '--gpus', '4']);
    expect({ code, stderr, stdout }).toMatchObject({ code: 0 });
    await expectWhole(experiment, tasks, undefined, 45);
    const [header = [], ...cells] = await experiment.cells('results_exp1_vary_width');
    expect(cells.slice(0, 45).map((row) => row.slice(0, 5).join(','))).toEqual(
      expect.arrayContaining(known.map((row) => expect.stringContaining(row))),
    );
    const combinations = cells.map((row) =>
      ['width_factor', 'depth', 'seed'].map((key) => Number(row[header.indexOf(key)])).join(),
    );
    expect(new Set(combinations).size).toBe(tasks);
    expect(experiment.log()).toMatch(/Marked 45 tasks as already completed/);
  });
});

describe('a full disk', () => {
  let disk: string | null = null;
  afterEach(() => {
    if (disk === null) return;
    spawnSync('umount', ['-l', disk]);
    rmdirSync(disk);
    disk = null;
  });

  test.skipIf(!canMount())(
    'loses nothing in the middle of a sweep, which goes on when there is space again [needs root, to mount a small one]',
    async (context) => {
      disk = `/tmp/gpu-owner-disk-${process.pid}`;
      mkdirSync(disk);
      expect(spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=24m,mode=755', 'none', disk]).status).toBe(0);
      const experiment = newExperiment(context, 2, { project: disk });
      experiment.sweep(honest(0.02, 20), { exp1_vary_width: { seed: range(20) } });
      const first = experiment.start(['run', '--gpus', '2']);
      const end = finished(first);
      await until(() => starts(experiment) > 5);
      const ballast = join(disk, 'ballast');
      spawnSync('sh', ['-c', 'cat /dev/zero > "$1"', 'sh', ballast]);
      await pause(3_000);
      rmSync(ballast);
      const { code, stderr } = await end;
      // The run may wait for space, or end saying so: then it is started again.
      if (code !== 0) {
        expect(stderr).toMatch(/space|full/i);
        const again = await experiment.run(['run', '--gpus', '2']);
        expect(again).toMatchObject({ code: 0 });
      }
      await expectWhole(experiment, 20);
    },
  );
});

// These wait more than they work, each on a machine of its own.

test.concurrent('a sweep goes on after all of it was stopped for some seconds, and starts no task twice', async (context) => {
  const experiment = newExperiment(context, 2);
  experiment.sweep(honest(0.1), { exp1_vary_width: { seed: range(16) } });
  const end = finished(experiment.start(['run', '--gpus', '2']));
  await until(() => starts(experiment) > 4);
  const all: Kind[] = ['manager', 'worker', 'keeper', 'watchdog', 'command', 'child', 'other'];
  strike(experiment, all, 'SIGSTOP');
  await pause(3_000);
  strike(experiment, all, 'SIGCONT');
  expect(await end).toMatchObject({ code: 0 });
  await expectWhole(experiment, 16);
  expect(starts(experiment)).toBe(16);
});

const user = whyNotNobody() === null ? { uid: NOBODY } : {};

test.concurrent(`a waiter${'uid' in user ? ', another user,' : ''} gets a GPU between two tasks`, async (context) => {
  const experiment = newExperiment(context, 1);
  experiment.sweep(honest(0.3), { exp1_vary_width: { seed: range(12) } });
  const end = finished(experiment.start(['run', '--gpus', '1']));
  await until(() => starts(experiment) > 2);
  const waiter = experiment.machine.startCommand(['run', '--wait=1m', '--', 'true'], { ...user, cwd: '/' });
  const waited = finished(waiter);
  // Not while it starts: or it has met a free GPU.
  await output(waiter, /in the queue/).catch(() => waited);
  const before = starts(experiment);
  expect(await waited).toMatchObject({ code: 0 });
  expect(starts(experiment) - before).toBeLessThan(7);
  expect(await end).toMatchObject({ code: 0 });
  await expectWhole(experiment, 12);
});

test.concurrent('somebody who deletes .gpu-owner while tasks run ends them, and loses nothing that a table has', async (context) => {
  const experiment = newExperiment(context, 4);
  experiment.sweep(honest(0.1), { exp1_vary_width: { dataset: 'mnist', seed: range(6) } });
  const slow = join(experiment.machine.directory, 'slow');
  writeFileSync(slow, '600');
  Object.assign(experiment.env, { HONEST_SLOW: slow, HONEST_SLOW_AFTER: '2' });
  const first = experiment.start(['run', '--gpus', '2']);
  const firstEnd = finished(first);
  await until(async () => starts(experiment) === 4 && (await experiment.rows()).length === 2);
  rmSync(join(experiment.project, '.gpu-owner'), { recursive: true });
  const { code, stdout, stderr } = await firstEnd;
  expect(code).toBe(69);
  expect(stdout + stderr).toMatch(/was removed or replaced while it was in use/);
  const before = await experiment.rows();
  rmSync(slow);
  expect(await experiment.run(['run', '--gpus', '2'])).toMatchObject({ code: 0 });
  expect((await experiment.rows()).slice(0, before.length)).toEqual(before);
  await expectWhole(experiment, 6);
});
