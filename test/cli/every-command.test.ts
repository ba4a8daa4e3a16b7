// One path through every command, as a user takes it: the launcher, one machine, one sweep. Each command's own tests say what else it does.
import { userInfo } from 'node:os';
import { afterAll, expect, test } from 'vitest';
import { Experiment } from '../support/experiment.ts';
import { type Finished, finished, launcher, output } from '../support/machine.ts';

const { username } = userInfo();
const experiment = new Experiment(2);
const other = new Experiment(1);
afterAll(async () => {
  await experiment.close();
  await other.close();
});

function gpuOwner(...words: string[]): Promise<Finished> {
  return experiment.machine.run([launcher, ...words], { cwd: experiment.project });
}

const sweep = (rates: string) => [
  ...['--grid', `lr=${rates}`, '--output-dir', 'results'],
  ...['--', 'echo', 'rate {lr}'],
];

/** The words, and what the command prints. Later ones rely on what earlier ones have done. */
const PATHS: [words: string[], printed: RegExp][] = [
  [['status'], /^ *1 .* free$/m],
  [['find', '-n', '2'], /^GPU-\S+,GPU-\S+$/m],
  [['run', '-n', '1', '--', 'sh', '-c', 'echo "has $CUDA_VISIBLE_DEVICES"'], /^has GPU-\S+$/m],
  [['submit', '--name', 'job', '--', 'echo', 'in the background'], /^1$/m],
  [['wait', 'job'], /^$/],
  [['logs', '1'], /^in the background$/m],
  [['jobs'], /^ *1 job +completed +0 /m],
  [['resubmit', 'job'], /^2$/m],
  [['submit', '--name', 'long', 'sleep', '1000'], /^3$/m],
  [['cancel', 'long'], /^$/],
  [['hold', '-n', '1'], /"visibleDevices":"GPU-\S+"/],
  [['queue', '--json'], /^\[\]$/m],
  [['bookings'], /^Nothing is booked\.$/m],
  [['report', '--by', 'job'], new RegExp(`^${username}:1 job +1 `, 'm')],
  [['top'], /^ 1 .* free$/m],
  [['metrics'], /^gpu_owner_gpu_state{gpu="1",.*,state="free"} 1$/m],
  [['doctor'], /\[simulated\]/],
  [['selftest', '-n', '1', '--only=cuda-devices'], /^passed +cuda-devices .*\n1 passed, 0 failed, /ms],
  [['simulate', 'show'], /^GPU 1 /m],
  [['docs', 'jobs'], /^# Jobs in the background$/m],
  [['completion', 'bash'], /^complete .*gpu-owner/m],
  [['exp', 'run', '--dry-run', ...sweep('0.1,0.2')], /^grid +2 +2 +0 +0 +results$/m],
  [['exp', 'run', '--gpus', 'all', ...sweep('0.1,0.2')], /2 tasks: 2 completed/],
  [['exp', 'logs', 'grid_0'], /^rate 0\.1$/m],
  [['exp', 'export'], /^grid_1,0\.2$/m],
  [['exp', 'pause'], /exp resume/],
  [['exp', 'resume'], /./],
  [['exp', 'retry', 'grid_0'], /./],
  [['exp', 'cancel', 'grid_0'], /./],
  [['exp', 'status', '--json'], /"completed": 1,\s+"failed": 0,\s+"cancelled": 1/],
];

test.each(PATHS.map(([words, printed]) => [words.slice(0, 2).join(' '), words, printed] as const))(
  'gpu-owner %s works',
  async (_, words, printed) => {
    const { code, stdout, stderr } = await gpuOwner(...words);
    expect({ code, stderr }, stdout).toEqual({ code: 0, stderr: '' });
    expect(stdout).toMatch(printed);
  },
);

test('gpu-owner exp manager and exp worker work', async () => {
  const manager = other.start(['manager', '--no-listen', ...sweep('0.1,0.2')]);
  const ended = finished(manager);
  await output(manager, /Progress/);
  expect(await other.run(['worker', '--gpus', '1'])).toMatchObject({ code: 0, stderr: '' });
  expect(await ended).toMatchObject({ code: 0, stderr: '' });
  expect(other.rows('results')).toContain('grid_1,0.2');
});

test('gpu-owner book works', async () => {
  experiment.machine.configure(`bookings: { users: [${username}] }`);
  const { code, stdout, stderr } = await gpuOwner('book', '--from', '+1h', '--for', '1h');
  expect({ code, stdout }, stderr).toEqual({ code: 0, stdout: '1\n' });
  expect(stderr).toMatch(/^gpu-owner: booking 1: GPU 0 for /);
  expect(await gpuOwner('bookings', 'cancel', '1')).toMatchObject({ code: 0, stdout: '' });
});

test('gpu-owner enforce works', async () => {
  const enforcer = experiment.machine.start([launcher, 'enforce']);
  await output(enforcer, /looking every 30 s; this is a dry run/);
  enforcer.kill();
  expect((await finished(enforcer)).code).toBe(0);
});

test('gpu-owner mcp works', async () => {
  const initialize = '{"jsonrpc":"2.0","id":1,"method":"initialize","params":';
  const about = '{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"a","version":"1"}}}';
  const server = experiment.machine.start([launcher, 'mcp'], { cwd: experiment.project });
  server.stdin?.write(`${initialize}${about}\n`);
  await output(server, /"serverInfo":\{"name":"gpu-owner"/);
  server.stdin?.end();
  expect((await finished(server)).code).toBe(0);
});

test('gpu-owner web works', async () => {
  const server = experiment.machine.start([launcher, 'web'], { cwd: experiment.project });
  const url = new URL(await output(server, /^http:\S+$/m));
  const headers = { authorization: `Bearer ${url.hash.replace('#token=', '')}` };
  const answer = await fetch(new URL('/api/v1/gpus', url), { headers });
  expect(await answer.json()).toMatchObject([{ state: 'free' }, { state: 'free' }]);
  expect(await (await fetch(url)).text()).toContain('<title>gpu-owner</title>');
});

test('every command of the help is run here', async () => {
  const listed = async (...group: string[]) => {
    const { stdout } = await gpuOwner(...group, '--help');
    const commands = stdout.split('Commands:\n')[1]?.split('\n\n')[0] as string;
    return [...commands.matchAll(/^ {2}(\w+)/gm)].map(([, name]) => [...group, name].join(' '));
  };
  const all = [...(await listed()), ...(await listed('exp'))].filter((name) => name !== 'exp');
  const paths = [
    ...PATHS.map(([words]) => words),
    ['web'],
    ['mcp'],
    ['book'],
    ['enforce'],
    ['exp', 'manager'],
    ['exp', 'worker'],
  ];
  const walked = paths.map(([command, name]) => (command === 'exp' ? `exp ${name}` : command));
  expect(new Set(walked)).toEqual(new Set(all));
});
