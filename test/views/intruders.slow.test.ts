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

test("a sweep's placeholder is none while the sweep holds another GPU in its own name", async () => {
  const run = ['run', '--placeholder', 'none', '--devices'];
  for (const [name, expected] of [
    ['gpu-owner-place', 0],
    ['stranger', 1],
  ] as const) {
    await machine?.close();
    machine = new Machine(2);
    await output(machine.startCommand([...run, '0', '--', 'sh', '-c', 'echo ready; sleep 600']), /ready/);
    const onOther = [...occupy(0), '--name', name];
    await output(machine.startCommand([...run, '1', '--', ...onOther]), /ready/);
    expect((await json('top'))[0].intruders.length).toBe(expected);
    expect(/without a claim/.test((await json('status'))[0].reason)).toBe(expected === 1);
  }
});
