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

/** What the commands print, one after the other. */
async function printed(...lines: string[]): Promise<string[]> {
  const ended = await machine.runCommands(lines.map((line) => line.split(' ')));
  for (const { code, stderr } of ended) expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  return ended.map(({ stdout }) => stdout);
}

test('help needs no driver, and is the same in each form', async () => {
  const forms = [
    ['--help', '-h', 'help'],
    ['run --help', 'run -h', 'help run'],
    ['exp --help', 'exp -h', 'help exp'],
    ['exp run --help', 'exp run -h', 'help exp run', 'exp help run'],
  ];
  const lines = forms.flat().map((line) => line.split(' '));
  const ended = await machine.runCommands(lines, { env: NOWHERE });
  for (const same of forms) {
    const [first, ...others] = ended.splice(0, same.length);
    expect(first).toMatchObject({ code: 0, stderr: '', stdout: expect.stringMatching(/^Usage: gpu-owner /) });
    for (const other of others) expect(other).toEqual(first);
  }
});

test('the help explains the commands of a group, and names the closest one for an unknown word', async () => {
  const [group = ''] = await printed('help exp');
  for (const name of EXPERIMENTS) expect(group).toMatch(new RegExp(`^ {2}${name} `, 'm'));
  const wrong = ['exp', 'help nonsense', 'exp rnu', 'help exp rnu', 'exp help rnu'];
  const ended = await machine.runCommands(wrong.map((line) => line.split(' ')));
  expect(ended.map(({ code }) => code)).toEqual(wrong.map(() => 64));
  for (const { stderr } of ended.slice(2))
    expect(stderr).toBe("gpu-owner: there is no command 'rnu'; did you mean 'run'?\n");
});

test('the main help names every command, and every command’s help every option it takes', async () => {
  const [main = ''] = await printed('--help');
  for (const name of COMMANDS) expect(main).toMatch(new RegExp(`^ {2}${name} `, 'm'));
  const commands = [...COMMANDS, 'exp run', 'exp worker', 'exp manager'];
  const pages = await printed(...commands.map((name) => `${name} --help --all`));
  const lines = pages.map((page, at) => {
    const options = [...page.matchAll(/^ {2}(?:-\w, )?(--[\w-]+)(\[?[ =][A-Z][A-Za-z|=]*)?/gm)];
    expect(options.length).toBeGreaterThan(8);
    // Every one of them is known: the complaint is about the last.
    const words = options.map(([, option, value]) => (value?.startsWith(' ') ? `${option}=-` : `${option}`));
    const known = words.filter((word) => word !== '--help' && word !== '--all');
    return [...(commands[at] as string).split(' '), ...known, '--nonsense'];
  });
  for (const { stderr } of await machine.runCommands(lines))
    expect(stderr).toMatch(/there is no option --nonsense/);
});

test('the first page of help has the everyday options, and names the page that has all', async () => {
  const pages = { run: 45, 'exp run': 55, status: 30, 'exp logs': 15 };
  for (const [name, most] of Object.entries(pages)) {
    const [page = '', all = '', same] = await printed(
      ...[`${name} --help`, `${name} --help --all`, `help ${name} --all`],
    );
    expect(page.split('\n').length - 1, name).toBeLessThanOrEqual(most);
    expect(page.match(/--help --all/g), name).toHaveLength(1);
    const rare = name === 'exp logs' ? '--queue' : '--simulate';
    expect([name, page.includes(rare), all.includes(rare)]).toEqual([name, false, true]);
    expect(same).toBe(all);
  }
  // An option of the command's own.
  const [docs, jobs] = await printed('docs --help', 'jobs --all');
  expect(docs).not.toContain('--all');
  expect(jobs).toContain('No jobs');
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
