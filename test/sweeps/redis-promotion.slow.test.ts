// A sweep whose Redis is replaced by a promoted one.
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Experiment } from '../support/experiment.ts';
import { finished, output, until } from '../support/machine.ts';
import { noRedis, RedisServer } from '../support/redis-server.ts';
import { soakTest } from '../support/time.ts';

describe.skipIf(noRedis !== null)(`Redis with a replica${noRedis === null ? '' : `: ${noRedis}`}`, () => {
  let experiment: Experiment;
  let first: RedisServer;
  let second: RedisServer;
  beforeEach(async () => {
    experiment = new Experiment(1);
    first = await RedisServer.start({ settings: ['repl-diskless-sync-delay 0'] });
    second = await RedisServer.start({ settings: ['repl-diskless-sync-delay 0'] });
    second.command('REPLICAOF', '127.0.0.1', String(first.port));
    await until(() => /master_link_status:up/.test(second.command('INFO', 'replication')));
  });
  afterEach(async () => {
    await experiment.close();
    await first.remove();
    await second.remove();
  });

  /** Starts a sweep of which each task waits for its file. */
  const start = (tasks: number) => {
    const words = ['run', '--gpus', '1', '--grid', `n=1..${tasks}`, '--shell'];
    const env = { GPU_OWNER_QUEUE: first.url('project=p&patience=2&margin=0.5') };
    return experiment.start([...words, '--', 'until [ -e go{n} ]; do sleep 0.02; done'], { env });
  };
  const go = (...tasks: number[]) => {
    for (const task of tasks) experiment.machine.touch(`project/go${task}`);
  };
  const offset = (server: RedisServer, name: string) =>
    new RegExp(`^${name}:(\\d+)`, 'm').exec(server.command('INFO', 'replication'))?.[1];
  /** Whatever was written until now is on both. */
  const replicated = () => {
    const sent = Number(offset(first, 'master_repl_offset'));
    return until(() => Number(offset(second, 'slave_repl_offset')) >= sent);
  };
  const completed = (count: number) =>
    until(() =>
      experiment
        .log()
        .split('\n')
        .some((line) => line.includes(`Progress: ${count}/`)),
    );

  soakTest('a server that has become a replica ends exp run with a sentence', async () => {
    const run = start(2);
    const ended = finished(run);
    await output(run, /Assigned task/);
    await replicated();
    second.command('REPLICAOF', 'NO', 'ONE');
    first.command('REPLICAOF', '127.0.0.1', String(second.port));
    const { code, stdout, stderr } = await ended;
    expect({ code, stderr }, stdout).toEqual({
      code: 69,
      stderr: expect.stringMatching(
        /^gpu-owner: the queue .* has become a replica, .*Name that server in --queue or GPU_OWNER_QUEUE/,
      ),
    });
  });

  test('a replica that lacks the last results and is promoted in its place: no row is missing', async () => {
    const run = start(6);
    const ended = finished(run);
    go(1, 2);
    await output(run, /Progress: 2\/6/);
    await replicated();
    second.command('REPLICAOF', 'NO', 'ONE');
    go(3, 4);
    await completed(4);
    await first.kill();
    expect(second.command('CONFIG', 'SET', 'port', String(first.port))).toMatch(/OK/);
    go(5, 6);
    const { code, stdout, stderr } = await ended;
    expect({ code, stderr }, stdout).toEqual({ code: 0, stderr: '' });
    const values = experiment.rows('results_grid').map((row) => row.split(',')[1]);
    expect(values.sort(), experiment.rows('results_grid').join()).toEqual(['1', '2', '3', '4', '5', '6']);
  });
});
