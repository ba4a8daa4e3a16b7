// `rerun: never` on Redis: commands run on without the task list, and tasks of a lost host wait for a person.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { command, type Finished, finished, Machine, output, pause, until } from '../support/machine.ts';
import { processesWith, sendSignal } from '../support/processes.ts';
import { noRedis, RedisServer } from '../support/redis-server.ts';

const PATIENCE_S = 2;
const MARGIN_S = 1;
/** A renewed lock, if it expired, would have ended after this time; then others look at most a second later. */
const LONG_AWAY_MS = 1_000 * (1.2 * PATIENCE_S + MARGIN_S + 2);

describe.skipIf(noRedis !== null)(`rerun: never${noRedis === null ? '' : ` (${noRedis})`}`, () => {
  let server: RedisServer;
  let machines: Machine[];
  beforeEach(async () => {
    server = await RedisServer.start();
    machines = [1, 2].map(() => new Machine(2));
    for (const { directory } of machines) mkdirSync(join(directory, 'train'));
  });
  afterEach(async () => {
    for (const machine of machines) await machine.close();
    await server.remove();
  });

  const home = () => machines[0] as Machine;
  const project = () => join(home().directory, 'train');
  /** Starts and ends, as the commands have written them. */
  const log = () => {
    const path = join(home().directory, 'log');
    return existsSync(path) ? readFileSync(path, 'utf8').trim().split('\n').sort() : [];
  };
  /** A command of `exp` on a host of its own. */
  function start(host: number, ...args: string[]) {
    const machine = machines[host] as Machine;
    const words = ['unshare', '--uts', 'sh', '-c', `hostname host${host} && exec "$@"`, 'sh'];
    return machine.start([...words, process.execPath, command, 'exp', ...args], {
      cwd: join(machine.directory, 'train'),
      env: { GPU_OWNER_QUEUE: server.url(`patience=${PATIENCE_S}&margin=${MARGIN_S}`) },
    });
  }
  const run = (host: number, ...args: string[]): Promise<Finished> => finished(start(host, ...args));

  /** Waits for a file `go-X` on the first host. */
  function sweep(values: string): string {
    const { directory } = home();
    writeFileSync(
      join(project(), 'sweep.yaml'),
      `rerun: never
command: >-
  echo start {x} >> ${directory}/log;
  while [ ! -e ${directory}/go-{x} ]; do sleep 0.02; done;
  echo end {x} >> ${directory}/log;
  echo '{{"loss": {x}}}' > $GPU_OWNER_RESULT
shell: true
exp1: {seed: 1, combinations: [{x: [${values}]}]}
`,
    );
    return 'sweep.yaml';
  }

  test('commands run on while Redis is away, nobody else gets their tasks, and results come later', async () => {
    const controller = start(0, 'run', '--gpus', '2', sweep('1, 2'));
    const controlled = finished(controller);
    await until(() => log().length === 2);
    await server.kill();
    await pause(LONG_AWAY_MS);
    home().touch('go-1');
    await until(() => log().length === 3);
    await server.start();
    const other = start(1, 'worker');
    const joined = finished(other);
    // The other worker has looked for tasks for longer than any lock lasts.
    await pause(LONG_AWAY_MS);
    expect(log()).toEqual(['end 1', 'start 1', 'start 2']);
    home().touch('go-2');
    expect(await controlled).toMatchObject({ code: 0 });
    expect(await joined).toMatchObject({ code: 0 });
    expect(log()).toEqual(['end 1', 'end 2', 'start 1', 'start 2']);
    const rows = readFileSync(join(project(), 'results_exp1/final_results.csv'), 'utf8').trim().split('\n');
    expect(rows.slice(1).sort()).toEqual(['exp1_0_1,1,1,1', 'exp1_1_1,1,2,2']);
  });

  test('a task that a second Ctrl-C ends is failed, and not started again', async () => {
    const controller = start(0, 'run', '--gpus', '1', sweep('1'));
    const controlled = finished(controller);
    await until(() => log().length === 1);
    controller.kill('SIGINT');
    await output(controller, /running tasks finish/);
    controller.kill('SIGINT');
    expect(await controlled).toMatchObject({ code: 1 });
    home().touch('go-1');
    const again = await run(0, 'run', '--gpus', '1', 'sweep.yaml');
    expect(again).toMatchObject({ code: 1 });
    expect(again.stdout).toMatch(
      /failed: exp1_0_1: the worker was told to end; it is not started again by itself/,
    );
    expect(log()).toEqual(['start 1']);
  });

  test('the task of a lost host is unknown until a person says so, and then starts again when asked', async () => {
    const manager = start(0, 'manager', '--no-listen', sweep('1, 2'));
    const managed = finished(manager);
    await output(manager, /Marked 0 tasks/);
    start(1, 'worker');
    await until(() => log().length === 1);
    // Keeper, watchdog and all: nothing is left to say anything.
    for (const pid of processesWith((machines[1] as Machine).directory)) sendSignal(pid, 'SIGKILL');
    const told = output(
      manager,
      /exp1_0_1 is unknown: its worker gpu0 on host1 is not heard of.*exp lost exp1_0_1/,
    );
    const helper = finished(start(0, 'worker'));
    home().touch('go-2');
    await until(() => log().includes('end 2'));
    let status = '';
    await until(async () => {
      status = (await run(0, 'status')).stdout;
      return /Unknown/.test(status);
    });
    expect(status).toMatch(/Unknown: .*\n {2}host1 gpu0 +exp1_0_1 .*\n.*gpu-owner exp lost NAME/);
    await told;
    const early = await run(0, 'lost', 'exp1_1_1');
    expect(early.stdout).toBe('Failed, as lost: no task. 1 is not unknown, and stays as it is.\n');
    expect(log()).toEqual(['end 2', 'start 1', 'start 2']);
    const lost = await run(0, 'lost', 'all');
    expect(lost.stdout).toMatch(
      /^Failed, as lost: 1 task \(exp1_0_1\)\. To start again: gpu-owner exp retry/,
    );
    home().touch('go-1');
    const ends = [managed, helper];
    for (const end of await Promise.all(ends)) expect([0, 1]).toContain(end.code);
    expect(log()).toEqual(['end 2', 'start 1', 'start 2']);

    expect((await run(0, 'retry', 'exp1_0_1')).stdout).toMatch(/will start again/);
    expect(await run(0, 'run', '--gpus', '1', 'sweep.yaml')).toMatchObject({ code: 0 });
    expect(log()).toEqual(['end 1', 'end 2', 'start 1', 'start 1', 'start 2']);
  });
});
