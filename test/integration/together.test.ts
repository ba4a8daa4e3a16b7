// Requests that insist on connected GPUs: they wait for a set, keep the one that comes free first, and leave the others to those
// behind them.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { endHolder, RUN, startHolder } from '../support/holders.ts';
import { command, finished, Machine, python, root } from '../support/machine.ts';
import { fixture, Waiters } from './waiters.ts';

let machine: Machine;
let waiters: Waiters;
let uuids: string[];
beforeEach(() => {
  machine = new Machine(fixture('pairs.conf'));
  waiters = new Waiters(machine);
  uuids = machine.uuids();
});
afterEach(() => machine.close());

const SHOW = ['--', 'sh', '-c', 'echo "on $CUDA_VISIBLE_DEVICES"'];
const on = (...indices: number[]) => `on ${indices.map((index) => uuids[index]).join(',')}\n`;
const holdOf = (...indices: number[]) => ['--devices', indices.join()];
const run = (...options: string[]) => machine.runCommand([...RUN, ...options, ...SHOW]);
const runNow = (...options: string[]) => run('--no-wait', ...options);
const wait = (...options: string[]) => finished(machine.startCommand([...RUN, ...options, ...SHOW]));

test('a request for connected GPUs waits for them, keeps one set, and leaves the rest to others', async () => {
  expect(await runNow('-n', '2', '--together')).toMatchObject({ stdout: on(0, 2) });
  const first = await startHolder(machine, holdOf(0));
  const second = await startHolder(machine, holdOf(3));
  expect(await runNow('-n', '2')).toMatchObject({ stdout: on(1, 2) });
  expect(await runNow('-n', '2', '--together')).toMatchObject({
    code: 75,
    stderr: expect.stringContaining('2 connected GPUs asked for, the 2 that are free are not connected'),
  });
  const waiting = wait('-n', '2', '--together');
  await waiters.untilWaiting(1);
  const [entry] = await waiters.queue();
  expect(entry.why).toMatch(/^\S+ has GPU 0$/);
  expect(entry.details).toEqual(['connected GPUs are 0,2 or 1,3; those of 0,2 are kept for it']);
  expect(entry.waitingFor).toHaveLength(4);
  // GPU 2 is kept, GPU 1 isn't.
  expect(await runNow()).toMatchObject({ stdout: on(1) });
  expect(await runNow(...holdOf(2))).toMatchObject({
    code: 75,
    stderr: expect.stringContaining('is ahead in the wait queue, for 2 connected GPUs'),
  });
  await endHolder(second);
  expect(await waiting).toMatchObject({ code: 0, stdout: on(1, 3) });
  await endHolder(first);
});

test('what no set of the machine can satisfy is refused at once', async () => {
  const refused = [
    [
      ['-n', '3'],
      '3 connected GPUs asked for (--together), but of those that may be used here, at most 2 are connected by NVLink or one PCIe switch. Ask for fewer, or leave out --together',
    ],
    [['-n', '2', ...holdOf(0, 1)], 'no two are connected by NVLink or one PCIe switch. Leave out --together'],
    [['-n', '5'], 'this machine has 4'],
    [['-n', '2', '--memory', '10GiB'], '--together and --memory contradict each other'],
  ] as const;
  const lines = refused.map(([options]) => [...RUN, '--together', ...options, ...SHOW]);
  const results = await machine.runCommands(lines);
  for (const [at, [, why]] of refused.entries())
    expect(results[at]).toMatchObject({ code: 64, stderr: expect.stringContaining(why) });
});

test('Python and Node.js claim connected GPUs, for each call of a pool, too', async () => {
  await startHolder(machine, holdOf(0));
  const program = `import os
from gpu_owner import Executor, GPUUnavailableError, claim, submit

def shown():
    return os.environ["CUDA_VISIBLE_DEVICES"]

if __name__ == "__main__":
    with claim(2, together=True) as gpus:
        print([gpu.index for gpu in gpus])
    with claim(1, devices=1):
        try:
            claim(2, together=True, wait=False)
        except GPUUnavailableError as error:
            print(error)
    job = submit(["printenv", "CUDA_VISIBLE_DEVICES"], gpus=2, together=True)
    job.wait()
    print("on", job.log().splitlines()[-1])
    with Executor(gpus=2, max_workers=1, together=True) as pool:
        print("on", pool.submit(shown).result())
`;
  const path = join(machine.directory, 'program.py');
  writeFileSync(path, program);
  const { stdout, stderr } = await machine.run([python, path], {
    env: { PYTHONPATH: join(root, 'python'), GPU_OWNER_COMMAND: join(root, 'bin', 'gpu-owner.cjs') },
  });
  expect(stdout.split('\n'), stderr).toEqual([
    '[1, 3]',
    expect.stringContaining('2 connected GPUs asked for, the 2 that are free are not connected'),
    ...Array(4).fill(expect.stringContaining('  GPU ')),
    ...Array(2).fill(on(1, 3).trim()),
    '',
  ]);
  expect(
    await machine.runScript(
      'console.log(new GPUOwner({ count: 2, together: true }).devices.map(({ index }) => index).join())',
    ),
  ).toMatchObject({ stdout: '1,3\n' });
});

test('inside of a job, a step gets connected ones of its GPUs', async () => {
  const step = ['run', '-n', '2', '--together', '--no-wait', ...SHOW];
  expect(await run('-n', '3', ...holdOf(0, 1, 2), '--together')).toMatchObject({ code: 64 });
  const words = (devices: string) => [
    ...RUN,
    '-n',
    '3',
    '--devices',
    devices,
    '--',
    process.execPath,
    command,
    ...step,
  ];
  expect(await machine.runCommand(words('0,1,2'))).toMatchObject({ stdout: on(0, 2) });
  expect(await machine.runCommand(words('1-3'))).toMatchObject({ stdout: on(1, 3) });
});

test('tasks of a sweep get connected GPUs only', async () => {
  const sweep = (...options: string[]) =>
    machine.runCommand(
      [
        ...['exp', 'run', '--together', '--gpus-per-task', '2', '--grid', 'x=1,2', ...options],
        ...['--', 'sh', '-c', 'echo "$CUDA_VISIBLE_DEVICES" >> sets'],
      ],
      { cwd: machine.directory },
    );
  expect(await sweep('-n', '2', ...holdOf(0, 1))).toMatchObject({
    code: 64,
    stderr: expect.stringContaining('no two are connected by NVLink or one PCIe switch'),
  });
  await startHolder(machine, holdOf(0));
  expect(await sweep('--gpus', 'all')).toMatchObject({ code: 0 });
  expect(readFileSync(join(machine.directory, 'sets'), 'utf8')).toBe(on(1, 3).slice(3).repeat(2));
});
