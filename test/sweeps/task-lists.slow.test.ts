// A task list on a Redis belongs to a user and a project, not to everybody whose directory has the same name.
import { chownSync, existsSync, mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import {
  command,
  type Finished,
  finished,
  Machine,
  NOBODY,
  output,
  whyNotNobody,
} from '../support/machine.ts';
import { noRedis, RedisServer } from '../support/redis-server.ts';
import { soakTest } from '../support/time.ts';

const missing = noRedis ?? whyNotNobody();

describe.skipIf(missing !== null)(`task lists on one Redis${missing === null ? '' : ` (${missing})`}`, () => {
  let server: RedisServer;
  let machine: Machine;
  beforeEach(async () => {
    server = await RedisServer.start();
    machine = new Machine(2);
  });
  afterEach(async () => {
    await machine.close();
    await server.remove();
  });

  /** A directory `train` below one of the test's own. */
  function train(parent: string): string {
    const path = join(machine.directory, parent, 'train');
    mkdirSync(path, { recursive: true });
    return path;
  }

  const queue = (query = '') => ({
    GPU_OWNER_QUEUE: server.url(`patience=2&margin=0.5${query}`),
  });
  /** A sweep whose tasks say in which directory they run. */
  const sweep = (values: string) => [
    ...['exp', 'run', '--gpus', '1', '--grid', `x=${values}`, '--'],
    ...['sh', '-c', 'echo {x} >> ran.txt'],
  ];
  const ran = (project: string) => readFileSync(join(project, 'ran.txt'), 'utf8').trim().split('\n').sort();
  const rows = (project: string) =>
    readFileSync(join(project, 'results_grid/final_results.csv'), 'utf8').trim().split('\n').length - 1;

  function onHost(host: string, args: string[], cwd: string, query = ''): Promise<Finished> {
    const words = ['unshare', '--uts', 'sh', '-c', `hostname ${host} && exec "$@"`, 'sh'];
    return machine.run([...words, process.execPath, command, ...args], { cwd, env: queue(query) });
  }

  test('are of their users: two with directories of one name run their own tasks only', async () => {
    const [mine, theirs] = [train('mine'), train('theirs')];
    chownSync(theirs, NOBODY, NOBODY);
    const [first, second] = await Promise.all([
      machine.runCommand(sweep('1,2,3'), { cwd: mine, env: queue() }),
      machine.runCommand(sweep('4,5,6'), { cwd: theirs, env: queue(), uid: NOBODY }),
    ]);
    expect([first.code, second.code], first.stderr + second.stderr).toEqual([0, 0]);
    expect([ran(mine), ran(theirs)]).toEqual([
      ['1', '2', '3'],
      ['4', '5', '6'],
    ]);
    expect([rows(mine), rows(theirs)]).toEqual([3, 3]);
  });

  soakTest('of another project of the same user and name are refused, unless they are shared', async () => {
    const [one, other] = [train('one'), train('other')];
    const started = await machine.runCommand(sweep('1'), { cwd: one, env: queue() });
    expect(started, started.stderr).toMatchObject({ code: 0 });
    const refused = await machine.runCommand(sweep('2'), { cwd: other, env: queue() });
    expect(refused.code).toBe(69);
    expect(refused.stderr).toMatch(
      /project=train belongs to another project, in .*\/one\/train on .*\?project=NAME.*--project.*\?share=yes/,
    );
    expect(existsSync(join(other, 'ran.txt'))).toBe(false);

    // A worker there runs no tasks of the first one either.
    const worker = await machine.runCommand(['exp', 'worker'], { cwd: other, env: queue('&project=train') });
    expect(worker.stderr).toMatch(/belongs to another project, in .*\/one\/train/);

    for (const cwd of [one, other]) {
      const shared = await machine.runCommand(sweep('3'), { cwd, env: queue('&project=both&share=yes') });
      expect(shared, shared.stderr).toMatchObject({ code: 0 });
    }
    expect(ran(one)).toEqual(['1', '3']);
    expect(existsSync(join(other, 'ran.txt'))).toBe(false); // its task was completed in the shared list
  });

  test('are found from other hosts of the same user, by workers and by exp run', async () => {
    const [home, checkout, another] = [train('home'), train('checkout'), train('another')];
    const manager = machine.startCommand(
      ['exp', 'manager', '--no-listen', '--grid', 'x=1', '--', 'sh', '-c', 'echo {x} >> ran.txt'],
      { cwd: home, env: queue() },
    );
    const ended = finished(manager);
    await output(manager, /Marked 0 tasks/);
    const worker = await onHost('second', ['exp', 'worker'], checkout);
    expect(worker, worker.stderr).toMatchObject({ code: 0 });
    expect((await ended).code).toBe(0);
    expect(ran(checkout)).toEqual(['1']);
    const more = await onHost('third', sweep('1,2'), another);
    expect(more, more.stderr).toMatchObject({ code: 0 });
    expect(ran(another)).toEqual(['2']); // the first one is completed
  });
});
