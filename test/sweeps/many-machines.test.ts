// A worker on another machine: another hostname, another directory, without anything of the sweep.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Experiment } from '../support/experiment.ts';
import { command, type Finished, finished, output } from '../support/machine.ts';
import { noRedis, RedisServer } from '../support/redis-server.ts';

const HOST = 'other-machine';
const missing =
  noRedis ??
  (spawnSync('unshare', ['--uts', 'true']).status === 0 ? null : 'needs root, for a hostname of its own');

describe.skipIf(missing !== null)(`on another machine${missing === null ? '' : `: ${missing}`}`, () => {
  let server: RedisServer;
  let experiment: Experiment;
  let elsewhere: string;
  beforeEach(async () => {
    server = await RedisServer.start();
    experiment = new Experiment(1, { GPU_OWNER_QUEUE: server.url('project=lab') });
    elsewhere = join(experiment.machine.directory, 'elsewhere');
    mkdirSync(elsewhere);
  });
  afterEach(async () => {
    await experiment.close();
    await server.remove();
  });

  function there(...args: string[]): Promise<Finished> {
    const words = [process.execPath, command, 'exp', ...args];
    const script = `hostname ${HOST} && exec "$@"`;
    return experiment.machine.run(['unshare', '--uts', 'sh', '-c', script, 'sh', ...words], {
      cwd: elsewhere,
      env: experiment.env,
    });
  }

  test('a worker works on the sweep, its results come here, and exp logs says where its logs are', async () => {
    const child = experiment.start([
      ...['manager', '--no-listen', '--grid', 'seed=1..2', '--shell', '--'],
      `echo hello from seed {seed}; echo '{{"loss": '{seed}'}}' > "$GPU_OWNER_RESULT"`,
    ]);
    const ended = finished(child);
    await output(child, /Marked 0 tasks/);
    const worker = await there('worker');
    expect(worker.code, worker.stdout + worker.stderr).toBe(0);
    expect((await ended).code).toBe(0);
    expect(experiment.rows('results_grid').sort()).toEqual(['grid_0_1,1,1', 'grid_1_2,2,2']);
    const log = join(elsewhere, `results_grid/worker_${HOST}_gpu0.log`);
    expect(existsSync(log)).toBe(true);
    expect(readdirSync(join(experiment.project, 'results_grid'))).toEqual(['final_results.csv']);

    // Here that file can be read, as on a shared file system.
    const shared = await experiment.run(['logs', 'grid_0_1']);
    expect(shared.stdout).toMatch(
      /^==> grid_0_1 on gpu0 \(other-machine\) since .*\nhello from seed 1\n<== completed\n$/,
    );
    expect((await there('logs', 'grid_1_2')).stdout).toMatch(/\nhello from seed 2\n<== completed\n$/);
  });
});

test('exp logs says that the output of workers over TCP is on their machines', async () => {
  const experiment = new Experiment(0);
  try {
    const child = experiment.start([
      ...['manager', '--listen', '127.0.0.1:0', '--grid', 'seed=1'],
      ...['--', 'true'],
    ]);
    const port = await output(child, /workers can ask for tasks at 127\.0\.0\.1:(\d+)/);
    const { connect } = await import('node:net');
    await new Promise((resolve) => {
      const socket = connect(Number(port), '127.0.0.1', () =>
        socket.write('{"type": "request_task", "worker_id": "w7"}'),
      );
      socket.on('close', resolve).resume();
    });
    const { stdout } = await experiment.run(['logs', 'grid_0_1']);
    expect(stdout).toMatch(
      /^==> grid_0_1 on w7 .*\n<== its worker asked over TCP: the output is where that worker was started, on /,
    );
  } finally {
    await experiment.close();
  }
});
