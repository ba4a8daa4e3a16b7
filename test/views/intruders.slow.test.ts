// A job that computes on a GPU which another job has leased, as all that show the machine tell it.
import { userInfo } from 'node:os';
import { afterEach, expect, test } from 'vitest';
import { command, Machine, output } from '../support/machine.ts';
import { until, withTimeouts } from '../support/time.ts';

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

test('a job that computes on another GPU than its own gets a warning in its log, also if it begins late', async () => {
  machine = new Machine(2);
  await output(machine.startCommand(['run', '--devices', '0', '--', ...occupy(0)]), /ready/);
  const [shell, option, script] = machine.untilFile('go', 0) as [string, string, string];
  const job = ['--devices', '1', '--', shell, option, `${script}; sleep 600 | "$0" "$@"`, ...occupy(0)];
  const env = withTimeouts({ placeholder: 1_000 });
  expect((await machine.runCommand(['submit', ...job], { env })).stdout).toBe('1\n');
  try {
    await until(() => machine.processes(1).length === 1); // the placeholder
    await until(() => machine.processes(1).length === 0);
    machine.touch('go');
    const told = async () =>
      (await machine.runCommand(['logs', '1'])).stdout.split('\n').filter((line) => /^gpu-owner/.test(line));
    await until(async () => (await told()).length > 0);
    expect(await told()).toEqual([
      `gpu-owner: this job computes on GPU 0, which is leased by ${userInfo().username}; its own is GPU 1: don't set CUDA_VISIBLE_DEVICES`,
    ]);
  } finally {
    await machine.runCommand(['cancel', '1']);
  }
});

test('a job’s warning names all GPUs that it has not claimed, and none of its own', async () => {
  machine = new Machine(4);
  const words = occupy(0).slice(0, -1);
  const start = async (devices: string, gpus: number[]) => {
    const script = `${gpus.map((gpu) => `"$0" "$@" ${gpu} &`).join(' ')} wait`;
    const run = machine.startCommand(['run', '--devices', devices, '--', 'sh', '-c', script, ...words]);
    const ready = new RegExp(gpus.map(() => 'ready').join('[\\s\\S]*') || '^');
    await output(run, ready);
  };
  await start('2', [2]);
  await start('0,1', [0, 2, 3]);
  const uuids = (await json('status')).map(({ uuid }: { uuid: string }) => uuid);
  const tell = async (...gpus: number[]) => {
    const { code, stderr } = await machine.runCommand(['tell-job', '', ...gpus.map((gpu) => uuids[gpu])]);
    return { code, stderr };
  };
  expect(await tell(2)).toEqual({ code: 1, stderr: '' });
  const { code, stderr } = await tell(0, 1);
  expect(code).toBe(0);
  expect(stderr).toMatch(
    /^gpu-owner: this job computes on GPU 2, which is leased by [^ ]+, and on GPU 3, which it has not claimed; its own are GPU 0, 1: don't set CUDA_VISIBLE_DEVICES\n$/,
  );
});
