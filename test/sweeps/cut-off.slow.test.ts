// A sweep on three machines with a Redis on a fourth, whose network is cut for a while and for too long. Witnesses of which
// gpu-owner knows nothing tell which task has run where.
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { type Finished, finished, pause, python, until } from '../support/machine.ts';
import { Cluster, type Cut, type Host, noCluster } from './cluster.ts';
import { miscounted } from './redis-assertions.ts';
import { violationsIn, violationsOfTables } from './witness.ts';
import { range } from './witnessed.ts';

const SOAK = Boolean(process.env.GPU_OWNER_SOAK);
/** Seconds; as people have it, or a fraction. */
const { query, shortCut, longCut, quick, tasks } = SOAK
  ? { query: '', shortCut: 15, longCut: 90, quick: 2, tasks: 500 }
  : { query: 'patience=8&margin=2', shortCut: 0.8, longCut: 15, quick: 0.8, tasks: 36 };
const HONEST = [python, '-S', join(import.meta.dirname, 'fixtures/honest_task.py'), String(quick)];

let cluster: Cluster | null = null;
afterEach(async () => {
  await cluster?.close();
  cluster = null;
});

const seconds = (count: number) => count * 1000;

test.skipIf(noCluster !== null)(
  `${tasks} tasks complete on three machines that lose each other${noCluster === null ? '' : `: ${noCluster}`}`,
  { timeout: SOAK ? 900_000 : 180_000 },
  async () => {
    cluster = await Cluster.start(3, 2, query);
    const [first, second, third] = cluster.hosts as [Host, Host, Host];
    first.experiment.sweep(HONEST, { sweep: { seed: range(tasks) } });
    // So slow that its commands must be ended: otherwise they would run there and elsewhere.
    const slow = join(third.experiment.machine.directory, 'slow');
    writeFileSync(slow, '600');
    third.experiment.env.HONEST_SLOW = slow;
    const testimony = () => first.experiment.testimony();
    const startsOn = ({ name }: Host) =>
      testimony().filter(({ kind, gpus }) => kind === 'start' && gpus[0]?.startsWith(`${name}-`));
    const ends: Promise<Finished>[] = [finished(first.experiment.start(['run', '--gpus', 'all']))];
    await until(() => startsOn(first).length > 0);
    for (const { experiment } of [second, third]) {
      ends.push(finished(experiment.start(['worker', '--gpus', 'all'])));
    }
    await until(() => startsOn(second).length > 0 && startsOn(third).length > 0);

    const briefly = async (host: Host, how: Cut) => {
      host.cut(how);
      await pause(seconds(shortCut));
      host.mend();
    };
    await briefly(third, 'down');
    third.cut('silence');
    const cut = Number(process.hrtime.bigint()) / 1e6; // as the witnesses have it
    // Meanwhile the others have outages that are outlived.
    await briefly(second, 'down');
    await briefly(second, 'silence');
    await briefly(first, 'silence');
    await pause(seconds(longCut) + cut - Number(process.hrtime.bigint()) / 1e6);
    const onThird = new Set(startsOn(third).map(({ attempt }) => attempt));
    rmSync(slow);
    third.mend();

    const exits = await Promise.all(ends);
    const said = exits.map(({ stdout, stderr }) => stdout + stderr);
    expect(
      exits.map(({ code }) => code),
      said.join('\n'),
    ).toEqual([0, 0, 0]);
    const log = testimony();
    const outcomes = cluster.outcomes();
    expect([
      ...violationsIn(log, { givenBack: 3 }),
      ...violationsOfTables(log, outcomes.tasks, await first.experiment.rows()),
      ...miscounted(outcomes),
    ]).toEqual([]);
    expect(outcomes).toMatchObject({ check: 'ok', living: 0 });
    expect(outcomes.tasks.filter(({ state }) => state === 'completed')).toHaveLength(tasks);
    // Only tasks that ran on it when it was cut off were run again, or that had ended without a Redis to tell.
    const over = new Set(
      log.filter(({ kind, at }) => kind === 'end' && at < cut - 1_000).map(({ attempt }) => attempt),
    );
    const theirs = log.filter(({ attempt }) => onThird.has(attempt) && !over.has(attempt));
    const names = new Set(theirs.map(({ name }) => name));
    const again = [...outcomes.attempts].filter(([, all]) => all.length > 1);
    expect(
      again.filter(([name]) => !names.has(name)),
      said.join('\n'),
    ).toEqual([]);
    expect(again.length).toBeGreaterThan(0);
    expect(again.length).toBeLessThanOrEqual(2);
    expect(said[2]).toMatch(/could not be reached for|no heartbeat for too long|its end came too late/);
    for (const { experiment } of cluster.hosts) {
      await until(() => experiment.left().length === 0);
      expect(await experiment.machine.states()).toEqual(['free', 'free']);
    }
    console.log(
      `${tasks} tasks in ${log.filter(({ kind }) => kind === 'start').length} attempts; run again after ` +
        `${longCut} s: ${JSON.stringify(again)}`,
    );
  },
);
