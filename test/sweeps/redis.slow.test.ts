// `exp run` and `exp worker` on a Redis, from outside; and that no other command loads anything of it.
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Experiment } from '../support/experiment.ts';
import { finished, output, pause } from '../support/machine.ts';
import { noRedis, RedisServer } from '../support/redis-server.ts';
import { soakTest } from '../support/time.ts';

let experiment: Experiment;
beforeEach(() => {
  experiment = new Experiment(3);
});
afterEach(() => experiment.close());

describe.skipIf(noRedis !== null)(`on Redis${noRedis === null ? '' : `: ${noRedis}`}`, () => {
  let server: RedisServer;
  beforeEach(async () => {
    server = await RedisServer.start({ password: 's3cret' });
  });
  afterEach(() => server.remove());

  soakTest('a sweep on two machines goes through the death of Redis', async () => {
    const queue = server.url('project=sweep').replace(/\/\/.*@/, '//');
    const env = { GPU_OWNER_QUEUE: queue, GPU_OWNER_QUEUE_PASSWORD: 's3cret' };
    const train = experiment.train('--seconds', '0.7', 'x=1');
    const run = experiment.start(['run', '--gpus', '2', '--grid', 'lr=1..4', 'seed=1..4', ...train], { env });
    const ran = finished(run);
    await experiment.untilStarted(2);
    const worker = experiment.start(['worker'], { env });
    const worked = finished(worker);
    await output(worker, /Assigned task/); // one that only just starts ends without Redis
    await server.kill();
    await pause(1_500);
    await server.start();
    const ends = [await ran, await worked];
    const said = ends.map(({ stdout, stderr }) => stdout + stderr).join('');
    expect(
      ends.map(({ code }) => code),
      said,
    ).toEqual([0, 0]);
    const rows = experiment.rows('results_grid').map((row) => row.split(',')[0]);
    expect(new Set(rows).size).toBe(16);
    expect(rows).toHaveLength(16);
    expect(experiment.starts().sort(), said).toEqual([...rows].sort());
    expect(said).not.toMatch(/s3cret/);
  });

  test.skipIf(!process.env.GPU_OWNER_SOAK)(
    'nobody takes an emptied Redis for a finished sweep (with GPU_OWNER_SOAK)',
    { timeout: 120_000 },
    async () => {
      const env = { GPU_OWNER_QUEUE: server.url('project=gone') };
      const train = experiment.train('--seconds', '0.3', 'x=1');
      const run = experiment.start(['run', '--gpus', '1', '--grid', 'lr=1..40', ...train], { env });
      const ran = finished(run);
      await experiment.untilStarted(1);
      const worked = finished(experiment.start(['worker'], { env }));
      const manager = experiment.start(['manager', '--stay', '--no-listen'], { env });
      const managed = finished(manager);
      await output(manager, /manages this queue/);
      await experiment.untilStarted(4);
      server.command('FLUSHALL');
      for (const { code, stdout, stderr } of [await ran, await worked, await managed]) {
        expect(code, stdout + stderr).toBe(69);
        expect(stdout + stderr).toMatch(/was removed while it was in use.*Start again/);
      }
      const again = await experiment.run(['run', '--gpus', '2', '--grid', 'lr=1..40', ...train], { env });
      expect(again.code, again.stdout + again.stderr).toBe(0);
      expect(experiment.rows('results_grid')).toHaveLength(40);
    },
  );

  test('an error doesn’t tell the password', async () => {
    const other = await experiment.run([
      'status',
      '--queue',
      `redis://:s3cret@127.0.0.1:${server.port}?project=none`,
    ]);
    expect(other.code).toBe(69);
    expect(other.stderr).toMatch(/there is no experiment/);
    expect(other.stderr).not.toMatch(/s3cret/);
  });
});

test('nothing of Redis is loaded for SQLite', async () => {
  const list = join(experiment.project, 'loaded.txt');
  const hook = join(experiment.project, 'hook.cjs');
  writeFileSync(
    hook,
    `process.on('exit', () => require('node:fs').appendFileSync(${JSON.stringify(list)}, Object.keys(require('node:module')._cache ?? {}).join('\\n') + '\\n'))`,
  );
  const words = ['run', '--gpus', '1', '--grid', 'a=1', '--', 'true'];
  const { code } = await experiment.run(words, { env: { NODE_OPTIONS: `--require ${hook}` } });
  expect(code).toBe(0);
  const { stdout } = spawnSync('grep', ['-cE', 'sqlite', list], { encoding: 'utf8' });
  expect(Number(stdout)).toBeGreaterThan(0); // the list has what is loaded
  expect(spawnSync('grep', ['-E', 'bullmq|ioredis', list], { encoding: 'utf8' }).stdout).toBe('');
});
