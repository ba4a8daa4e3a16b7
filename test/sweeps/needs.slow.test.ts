// How many GPUs tasks get on other hosts than the one that has said it. Each task counts its GPUs.
import { mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { command, type Finished, finished, Machine, output } from '../support/machine.ts';
import { noRedis, RedisServer } from '../support/redis-server.ts';

/** Writes a line per start: the task, and the number of its GPUs. */
const COUNT = 'IFS=,; set -- "$1" "$2" $CUDA_VISIBLE_DEVICES; echo "$2 $(($# - 2))" >>"$1"';

describe.skipIf(noRedis !== null)(`needs of tasks${noRedis === null ? '' : ` (${noRedis})`}`, () => {
  let server: RedisServer;
  let home: Machine;
  let others: Machine[];
  beforeEach(async () => {
    server = await RedisServer.start();
    home = new Machine(2);
    others = [];
  });
  afterEach(async () => {
    for (const machine of [home, ...others]) await machine.close();
    await server.remove();
  });

  /** A host of its own, with so many GPUs. */
  function host(gpus: number): (args: string[]) => Promise<Finished> {
    const machine = new Machine(gpus);
    others.push(machine);
    const cwd = projectOf(machine);
    const name = `host${others.length}`;
    return (args) => {
      const words = ['unshare', '--uts', 'sh', '-c', `hostname ${name} && exec "$@"`, 'sh'];
      return machine.run([...words, process.execPath, command, 'exp', ...args], { cwd, env: queue() });
    };
  }

  function projectOf(machine: Machine): string {
    const path = join(machine.directory, 'train');
    mkdirSync(path, { recursive: true });
    return path;
  }

  const queue = () => ({ GPU_OWNER_QUEUE: server.url('') });
  const starts = () => {
    try {
      return readFileSync(join(home.directory, 'starts'), 'utf8').trim().split('\n').sort();
    } catch {
      return [];
    }
  };
  const sweep = (values: string) => [
    ...['--grid', `x=${values}`, '--'],
    ...['sh', '-c', COUNT, 'sh', join(home.directory, 'starts'), '{x}'],
  ];

  /** Adds tasks that need something, for workers of other hosts. */
  async function managed(values: string, ...needs: string[]): Promise<() => Promise<Finished>> {
    const child = home.startCommand(['exp', 'manager', '--no-listen', ...needs, ...sweep(values)], {
      cwd: projectOf(home),
      env: queue(),
    });
    const end = finished(child);
    await output(child, /Marked \d+ tasks/);
    return () => end;
  }

  test('workers elsewhere give each task the GPUs that its sweep has asked for', async () => {
    const end = await managed('1..6', '--gpus-per-task', '2');
    const [one, four, three] = [host(1), host(4), host(3)];
    const refused = await one(['worker']);
    expect(refused.code).toBe(64);
    expect(refused.stderr).toMatch(/2 GPUs.*(has|only) 1/);
    const asked = await three(['worker', '--gpus-per-task', '1', '--gpus', '3']);
    expect(asked.code).toBe(64);
    expect(asked.stderr).toContain(
      'each task of this sweep needs 2 GPUs, and this worker has 1 GPU: start it with --gpus-per-task 2',
    );
    expect(starts()).toEqual([]);
    const workers = await Promise.all([four(['worker', '--gpus', 'all']), three(['worker', '--gpus', '2'])]);
    for (const worker of workers) expect(worker, worker.stderr).toMatchObject({ code: 0 });
    expect(await end()).toMatchObject({ code: 0 });
    expect(starts()).toEqual(['1 2', '2 2', '3 2', '4 2', '5 2', '6 2']);
  });
});
