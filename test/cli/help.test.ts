import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Machine } from '../machine.ts';

let machine: Machine;
beforeAll(() => {
  machine = new Machine(1);
});
afterAll(() => machine.close());

const COMMANDS = ['run', 'hold', 'status', 'find'];

describe.each([[[]], ...COMMANDS.map((name) => [[name]]), [['completion']]])('help of %j', (words) => {
  const nowhere = { GPU_OWNER_SIMULATE: undefined, GPU_OWNER_NVML_LIBRARY: '/nonexistent' };

  test('needs no driver, says how it is used, and fits 80 columns', async () => {
    for (const option of ['--help', '-h']) {
      const { code, stdout, stderr } = await machine.runCommand([...words, option], { env: nowhere });
      expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
      expect(stdout).toMatch(/^Usage: gpu-owner /);
      for (const line of stdout.split('\n')) expect([line, line.length <= 80]).toEqual([line, true]);
    }
  });
});

test('`help NAME` is the same as `NAME --help`', async () => {
  for (const name of COMMANDS) {
    const [a, b] = [await machine.runCommand(['help', name]), await machine.runCommand([name, '--help'])];
    expect(a).toEqual(b);
  }
  expect((await machine.runCommand(['help'])).stdout).toBe((await machine.runCommand(['--help'])).stdout);
  expect((await machine.runCommand(['help', 'nonsense'])).code).toBe(64);
});

test('the main help names every command, and every command’s help every option it takes', async () => {
  const main = (await machine.runCommand(['--help'])).stdout;
  for (const name of COMMANDS) {
    expect(main).toMatch(new RegExp(`^ {2}${name} `, 'm'));
    const { stdout } = await machine.runCommand([name, '--help']);
    const options = [...stdout.matchAll(/^ {2}(?:-\w, )?(--[\w-]+)(\[?[ =][A-Z|]+)?/gm)].map(
      ([, option, value]) => [option, value],
    );
    expect(options.length).toBeGreaterThan(8);
    // Every one of them is known: the complaint is about the last.
    const words = options.map(
      ([option, value]) => (value?.startsWith(' ') ? `${option}=-` : option) as string,
    );
    const known = words.filter((word) => word !== '--help');
    const { stderr } = await machine.runCommand([name, ...known, '--nonsense']);
    expect(stderr).toMatch(/there is no option --nonsense/);
  }
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

test('--version', async () => {
  expect((await machine.runCommand(['--version'])).stdout).toMatch(/^\d+\.\d+\.\d+\n$/);
});
