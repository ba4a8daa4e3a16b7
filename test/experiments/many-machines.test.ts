// A sweep on three machines with a Redis on a fourth, whose network is cut for a while and for too long.
// What has run where is told by witnesses of which gpu-owner knows nothing.
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { type Finished, finished, pause, python, until } from '../machine.ts';
import { Cluster, type Cut, noCluster, type Place } from './cluster.ts';
import { miscounted } from './redis-fates.ts';
import { violationsIn, violationsOfTables } from './witness.ts';

const SOAK = Boolean(process.env.GPU_OWNER_SOAK);
/** Seconds; as people have it, or a fraction. */
const { query, shortCut, longCut, long, short, tasks } = SOAK
  ? { query: '', shortCut: 15, longCut: 90, long: 110, short: 2, tasks: 500 }
  : { query: 'patience=3&margin=2', shortCut: 0.8, longCut: 7.5, long: 5, short: 0.5, tasks: 70 };
const LONG = 5;
const HONEST = [python, '-S', join(import.meta.dirname, 'fixtures/honest_task.py'), '{seconds}'];

let cluster: Cluster | null = null;
afterEach(async () => {
  await cluster?.close();
  cluster = null;
});

const range = (count: number) => Array.from({ length: count }, (_, i) => i);
const seconds = (count: number) => count * 1000;

test.skipIf(noCluster !== null)(
  `${tasks} tasks on three machines that lose each other${noCluster === null ? '' : `: ${noCluster}`}`,
  { timeout: SOAK ? 900_000 : 90_000, retry: 0 },
  async () => {
    cluster = await Cluster.start(3, 2, query);
    const [first, second, third] = cluster.places as [Place, Place, Place];
    first.experiment.sweep(HONEST, {
      long: { seconds: long, seed: range(LONG) },
      short: { seconds: short, seed: range(tasks - LONG) },
    });
    const testimony = () => first.experiment.testimony();
    const startsOn = ({ name }: Place) =>
      testimony().filter(({ kind, gpus }) => kind === 'start' && gpus[0]?.startsWith(`${name}-`));
    const ends: Promise<Finished>[] = [finished(first.experiment.start(['run', '--gpus', 'all']))];
    await until(() => startsOn(first).length > 0, 20_000);
    for (const { experiment } of [second, third]) {
      ends.push(finished(experiment.start(['worker', '--gpus', 'all'])));
    }
    await until(() => startsOn(second).length > 0 && startsOn(third).length > 0, 20_000);

    const cuts: [Place, Cut][] = [
      [second, 'down'],
      [third, 'silence'],
      [first, 'silence'],
    ];
    for (const [place, how] of cuts) {
      place.cut(how);
      await pause(seconds(shortCut));
      place.mend();
    }
    third.cut('silence');
    const cut = performance.now();
    const ended = new Set(
      testimony()
        .filter(({ kind }) => kind === 'end')
        .map(({ attempt }) => attempt),
    );
    const running = startsOn(third).filter(({ attempt }) => !ended.has(attempt));
    expect(running.length).toBeGreaterThan(0);
    await pause(seconds(longCut) - (performance.now() - cut));
    third.mend();

    const outcomes = await Promise.all(ends);
    const said = outcomes.map(({ stdout, stderr }) => stdout + stderr);
    expect(
      outcomes.map(({ code }) => code),
      said.join('\n'),
    ).toEqual([0, 0, 0]);
    const log = testimony();
    const fates = cluster.fates();
    expect([
      ...violationsIn(log, { givenBack: 3 }),
      ...violationsOfTables(log, fates.tasks, await first.experiment.rows()),
      ...miscounted(fates),
    ]).toEqual([]);
    expect(fates).toMatchObject({ check: 'ok', living: 0 });
    expect(fates.tasks.filter(({ state }) => state === 'completed')).toHaveLength(tasks);
    expect(
      fates.tasks.filter(({ starts }) => starts !== 1),
      'an outage is not counted as a start',
    ).toEqual([]);
    // What it ran when it was cut off for so long is all that was run again.
    const again = [...fates.attempts].filter(([, all]) => all.length > 1);
    expect(again.map(([name]) => name).sort(), said.join('\n')).toEqual(
      running.map(({ name }) => name).sort(),
    );
    expect(said[2]).toMatch(/could not be reached for|came too late/);
    for (const { experiment } of cluster.places) {
      await until(() => experiment.left().length === 0, 15_000);
      expect(await experiment.machine.states()).toEqual(['free', 'free']);
    }
    console.log(
      `${tasks} tasks in ${log.filter(({ kind }) => kind === 'start').length} attempts; run again after ` +
        `${longCut} s: ${JSON.stringify(again)}`,
    );
  },
);
