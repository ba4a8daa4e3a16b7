// A job that computes on a GPU which another job has leased, as all that show the machine tell it.
import { afterEach, expect, test } from 'vitest';
import { command, Machine, output } from '../support/machine.ts';
import { until } from '../support/time.ts';

let machine: Machine;
afterEach(() => machine.close());

const occupy = (gpu: number) => [process.execPath, command, 'simulate', 'occupy', String(gpu)];
// biome-ignore lint/suspicious/noExplicitAny: the JSON of the command is what the test is about
const json = async (...words: string[]): Promise<any> =>
  JSON.parse((await machine.runCommand([...words, '--json'])).stdout);

test('a job on a GPU that another job has leased is a program without a claim, one on its own GPU is none', async () => {
  machine = new Machine(3);
  const run = ['run', '--placeholder', 'none'];
  await output(machine.startCommand([...run, '--devices', '0', '--', ...occupy(0)]), /ready/);
  // Both are of one user. The second one computes on its own GPU as well.
  const both = `"$0" "$@" 1 & exec "$0" "$@" 0`;
  const second = machine.startCommand([
    ...[...run, '--devices', '1', '--', 'sh', '-c', both],
    ...occupy(0).slice(0, -1),
  ]);
  await output(second, /ready[\s\S]*ready/);
  const [first, own] = await json('status');
  const [pid] = /(?<=; .*\(pid )\d+/.exec(first.reason) ?? [];
  expect(first.reason).toMatch(
    /^leased by .*; .* \(pid \d+, [^)]+\), which has leased GPU 1, computes on it without a claim$/,
  );
  expect(own.reason).toMatch(/^leased by [^;]*$/);
  machine.startCommand([...run, '-n', '3', '--', 'true']);
  await until(async () => (await json('queue')).length === 1);
  expect((await json('queue'))[0].waitingFor[0].reason).toMatch(/which has leased GPU 1, computes on it/);
  const { intruders } = (await json('top'))[0];
  expect(intruders).toMatchObject([{ uuid: first.uuid, pid: Number(pid) }]);
  const { stdout } = await machine.runCommand(['metrics']);
  const counts = [...stdout.matchAll(/^gpu_owner_gpu_processes_without_claim\{gpu="(\d)".* (\d)$/gm)];
  expect(counts.map(([, gpu, count]) => [gpu, count])).toEqual([
    ['0', '1'],
    ['1', '0'],
    ['2', '0'],
  ]);
});

test.each([
  ['env', ['env', 'CUDA_VISIBLE_DEVICES=1', 'true']],
  ['a shell', ['sh', '-c', 'export CUDA_VISIBLE_DEVICES="0,1"; true']],
])('run and submit warn at once if the command sets CUDA_VISIBLE_DEVICES by %s', async (_, words) => {
  machine = new Machine(2);
  for (const name of ['run', 'submit']) {
    const { code, stderr } = await machine.runCommand([name, '--', ...words]);
    expect({ code, stderr }).toEqual({
      code: 0,
      stderr: expect.stringMatching(
        /^gpu-owner: warning: the command sets CUDA_VISIBLE_DEVICES=.*gpu-owner sets it.*\n$/,
      ),
    });
  }
  await machine.runCommand(['wait', '1']);
});

test('run says nothing of a command that only reads or hides CUDA_VISIBLE_DEVICES', async () => {
  machine = new Machine(1);
  for (const script of [
    'echo "$CUDA_VISIBLE_DEVICES"',
    'CUDA_VISIBLE_DEVICES= true',
    'X=$CUDA_VISIBLE_DEVICES; true',
  ])
    expect(await machine.runCommand(['run', '--', 'sh', '-c', script])).toMatchObject({
      code: 0,
      stderr: '',
    });
});
