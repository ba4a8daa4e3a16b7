import { afterAll, beforeAll, expect, test } from 'vitest';
import { Machine } from '../support/machine.ts';

let machine: Machine;
beforeAll(() => {
  machine = new Machine(1);
});
afterAll(() => machine.close());

const COMMANDS = ['run', 'hold', 'status', 'find'];

const EXPERIMENTS = [
  'run',
  'worker',
  'manager',
  'status',
  'logs',
  'retry',
  'pause',
  'resume',
  'cancel',
  'export',
];
const NOWHERE = { GPU_OWNER_SIMULATE: undefined, GPU_OWNER_NVML_LIBRARY: '/nonexistent' };

test.each([[[]], [['run']], [['exp']], [['exp', 'run']]])('help of %j needs no driver', async (words) => {
  const runs = ['--help', '-h'].map((option) => machine.runCommand([...words, option], { env: NOWHERE }));
  const [long, short] = await Promise.all(runs);
  expect(long).toMatchObject({ code: 0, stderr: '', stdout: expect.stringMatching(/^Usage: gpu-owner /) });
  expect(short).toEqual(long);
});

test('`help NAME` is the same as `NAME --help`', async () => {
  const runs = [
    ['help', 'hold'],
    ['hold', '--help'],
  ].map((words) => machine.runCommand(words));
  const [a, b] = await Promise.all(runs);
  expect(a).toEqual(b);
  expect((await machine.runCommand(['help'])).stdout).toBe((await machine.runCommand(['--help'])).stdout);
  expect((await machine.runCommand(['help', 'nonsense'])).code).toBe(64);
});

test('the help explains the commands of a group, and names the closest one for an unknown word', async () => {
  const run = (...words: string[]) => machine.runCommand(words);
  const group = await run('help', 'exp');
  expect(group.stdout).toBe((await run('exp', '--help')).stdout);
  for (const name of EXPERIMENTS) expect(group.stdout).toMatch(new RegExp(`^ {2}${name} `, 'm'));
  const explained = (await run('exp', 'run', '--help')).stdout;
  expect((await run('help', 'exp', 'run')).stdout).toBe(explained);
  expect((await run('exp', 'help', 'run')).stdout).toBe(explained);
  expect((await run('exp')).code).toBe(64);
  for (const words of [
    ['exp', 'rnu'],
    ['help', 'exp', 'rnu'],
    ['exp', 'help', 'rnu'],
  ]) {
    const { code, stderr } = await run(...words);
    expect({ code, stderr }).toEqual({
      code: 64,
      stderr: "gpu-owner: there is no command 'rnu'; did you mean 'run'?\n",
    });
  }
});

test('the main help names every command, and every command’s help every option it takes', async () => {
  const main = (await machine.runCommand(['--help'])).stdout;
  for (const name of COMMANDS) expect(main).toMatch(new RegExp(`^ {2}${name} `, 'm'));
  for (const name of [...COMMANDS, 'exp run', 'exp worker', 'exp manager']) {
    const command = name.split(' ');
    const { stdout } = await machine.runCommand([...command, '--help', '--all']);
    const options = [...stdout.matchAll(/^ {2}(?:-\w, )?(--[\w-]+)(\[?[ =][A-Z][A-Za-z|=]*)?/gm)].map(
      ([, option, value]) => [option, value],
    );
    expect(options.length).toBeGreaterThan(8);
    // Every one of them is known: the complaint is about the last.
    const words = options.map(
      ([option, value]) => (value?.startsWith(' ') ? `${option}=-` : option) as string,
    );
    const known = words.filter((word) => word !== '--help' && word !== '--all');
    const { stderr } = await machine.runCommand([...command, ...known, '--nonsense']);
    expect(stderr).toMatch(/there is no option --nonsense/);
  }
});

test('the first page of help has the everyday options, and names the page that has all', async () => {
  const lines = { run: 45, 'exp run': 55, status: 30, 'exp logs': 15 };
  for (const [name, most] of Object.entries(lines)) {
    const words = name.split(' ');
    const page = (await machine.runCommand([...words, '--help'])).stdout;
    const all = (await machine.runCommand([...words, '--help', '--all'])).stdout;
    expect(page.split('\n').length - 1, name).toBeLessThanOrEqual(most);
    expect(page.match(/--help --all/g), name).toHaveLength(1);
    const rare = name === 'exp logs' ? '--queue' : '--simulate';
    expect([name, page.includes(rare), all.includes(rare)]).toEqual([name, false, true]);
    expect((await machine.runCommand(['help', ...words, '--all'])).stdout).toBe(all);
  }
  expect((await machine.runCommand(['docs', '--help'])).stdout).not.toContain('--all');
  // An option of the command's own.
  expect((await machine.runCommand(['jobs', '--all'])).stdout).toContain('No jobs');
});

test('options of the help belong to the command, not to what `run` runs', async () => {
  const { stdout } = await machine.runCommand(['run', '--', 'echo', '--help', '-n', '5']);
  expect(stdout).toBe('--help -n 5\n');
  const without = await machine.runCommand([
    'run',
    '-n',
    '1',
    'echo',
    '-n',
    '5',
    '--',
    '--force',
    '--nonsense',
  ]);
  expect(without.stdout).toBe('5 -- --force --nonsense');
});

test('--version prints the version in a line of its own, then where everything is', async () => {
  expect((await machine.runCommand(['--version'])).stdout).toMatch(
    /^\d+\.\d+\.\d+\npackage: \/.+ \(sources\)\nNode\.js: \/.+ \(\d.+\)\nnative: +\/.+\n$/,
  );
});

test('users of the older tools are sent to the page about moving, which has a section for each', async () => {
  const { stdout } = await machine.runCommand(['--help']);
  const [, names = '', page = ''] = /^If you know (.*):\n {2}gpu-owner docs (\w+)$/m.exec(stdout) ?? [];
  expect(names).toBe('safe_gpu, gpu_lock, GPU Scheduler or gpu_locks/experiment_manager');
  const text = (await machine.runCommand(['docs', page])).stdout;
  for (const name of names.split(/, | or |\//)) expect(text.toLowerCase()).toContain(name.toLowerCase());
});
