// The chaos run of chaos.slow.test.ts with the queue on a Redis that is killed, stopped and cut off as well.
import { afterEach, expect, test } from 'vitest';
import { until } from '../support/machine.ts';
import { Random } from '../support/random.ts';
import { noRedis, RedisServer } from '../support/redis-server.ts';
import { ChaosRun } from './chaos-run.ts';
import { Network } from './queue/network.ts';
import { miscounted, redisOutcomes } from './redis-assertions.ts';
import { RedisFaults } from './redis-faults.ts';
import { violationsIn, violationsOfTables } from './witness.ts';
import { CHAOTIC, range, WitnessedExperiment } from './witnessed.ts';

const SOAK = Boolean(process.env.GPU_OWNER_SOAK);
const TASKS = SOAK ? 400 : 18;
/** For most, and for some, in seconds: with real times, there must be something that outages can end. */
const [SLOW, SLOWER] = SOAK ? [6, 150] : [0, 0];
const GPUS = 4;
/** Real times, or a fraction: outages that are outlived, and some that last too long. */
const { query, outages, settings } = SOAK
  ? {
      query: '',
      outages: { rest: 20_000, lengths: [300, 3_000, 15_000, 15_000, 90_000] },
      settings: { workers: 4, rest: 3_000, longestStop: 2_500, mischief: 400_000, patience: 900_000 },
    }
  : {
      query: '&patience=3&margin=2',
      outages: { rest: 500, lengths: [200, 1_000] },
      settings: { workers: 3, rest: 300, longestStop: 1_500, mischief: 3_000, patience: 180_000 },
    };
/** Why tasks were given back that were not to blame. */
const REASONS = /^exit code 75|could not be reached|no heartbeat for too long|ended silently/;

const given = process.env.GPU_OWNER_CHAOS_SEED;
const first = given === undefined ? Math.floor(Math.random() * 1e6) : Number(given);
const SEEDS = Array.from({ length: SOAK && given === undefined ? 2 : 1 }, (_, i) => first + i);

let undo: (() => unknown)[] = [];
afterEach(async () => {
  for (const each of undo.reverse()) await each();
  undo = [];
});

test.skipIf(noRedis !== null).each(SEEDS)(
  `${TASKS} tasks are each done once or fail with a Redis that dies, GPU_OWNER_CHAOS_SEED=%i${noRedis === null ? '' : `: ${noRedis}`}`,
  { timeout: settings.mischief + settings.patience + 60_000 },
  async (seed) => {
    const random = new Random(seed);
    const server = await RedisServer.start();
    undo.push(() => server.remove());
    const network = await Network.start(server.port);
    undo.push(() => network.close());
    const url = `redis://127.0.0.1:${network.port}?project=chaos${query}`;
    const experiment = new WitnessedExperiment(GPUS, {
      seed,
      queue: { url, outcomes: () => redisOutcomes(server, 'chaos') },
    });
    undo.push(() => experiment.close());
    experiment.sweep(CHAOTIC, {
      slower: { slow: SLOWER, seed: range(5) },
      chaos: { slow: SLOW, seed: range(TASKS - 5, 5) },
      again: { slow: SLOW, seed: range(TASKS, TASKS - 12) },
    });
    const redis = new RedisFaults(server, network, random, outages.rest, outages.lengths);
    const chaos = new ChaosRun(experiment, random, { gpus: 2, redis, ...settings });
    await chaos.pass();

    await until(() => experiment.left().length === 0).catch(() => {});
    expect(experiment.left()).toEqual([]);
    const log = experiment.testimony();
    const outcomes = redisOutcomes(server, 'chaos');
    const excused = outcomes.givenBack.filter(({ why }) => !why.startsWith('exit code 75'));
    const mostExcused = Math.max(
      0,
      ...outcomes.tasks.map(({ name }) => excused.filter((each) => each.name === name).length),
    );
    const found = [
      ...violationsIn(log, { givenBack: mostExcused }),
      ...violationsOfTables(log, outcomes.tasks, await experiment.rows()),
      ...chaos.watch.violations(log),
      ...miscounted(outcomes),
      ...chaos.complaints,
    ];
    expect(found.slice(0, 20)).toEqual([]);
    expect(outcomes).toMatchObject({
      check: 'ok',
      living: 0,
      counts: { pending: 0, active: 0, cancelled: 0 },
    });
    expect(outcomes.tasks).toHaveLength(TASKS);
    expect(outcomes.givenBack.filter(({ why }) => !REASONS.test(why))).toEqual([]);
    // An acknowledged completion stays, so no worker hears it twice.
    expect(new Set(chaos.acknowledged).size).toBe(chaos.acknowledged.length);
    const completed = outcomes.tasks.filter(({ state }) => state === 'completed').map(({ name }) => name);
    expect(chaos.acknowledged.filter((name) => !completed.includes(name))).toEqual([]);
    expect(chaos.acknowledged.length).toBeGreaterThan(0);
    expect(await experiment.machine.states()).toEqual(Array(GPUS).fill('free'));
    console.log(
      `seed ${seed}: ${completed.length} of ${TASKS} tasks completed in ` +
        `${log.filter(({ role, kind }) => role === 'command' && kind === 'start').length} attempts, ${excused.length} not counted; ` +
        `${chaos.starts} processes; Redis ${JSON.stringify(redis.deeds)}; ${JSON.stringify(chaos.monkey.deeds)}`,
    );
    expect(completed.length).toBeGreaterThan(TASKS / 2);
  },
);
