import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import type { SweepSource } from '../../../lib/sweeps/files/index.ts';
import { formatValue } from '../../../lib/sweeps/task/index.ts';
import { first, open, project, refusal } from './sweeps.ts';

const grid = (...words: string[]) => open({ grid: words });
const values = async (word: string) => {
  const sweep = await grid(`a=${word}`);
  return Array.from(sweep.tasks(), ({ parameters: { a } }) => formatValue(a ?? null));
};

describe('an inline grid', () => {
  test('is a phase of its own', async () => {
    const sweep = await grid('width=1,2', 'seed=42..44');
    expect(sweep.size).toBe(6);
    const found = Array.from(sweep.tasks());
    expect(found.map(({ parameters: { width, seed } }) => `${width}-${seed}`)).toEqual([
      '1-42',
      '1-43',
      '1-44',
      '2-42',
      '2-43',
      '2-44',
    ]);
    expect(found[0]).toMatchObject({ phase: 'grid', outputDirectory: 'results_grid' });
  });

  test('can have another name and directory', async () => {
    const [task] = (await open({ grid: ['n=x{a}'], phase: 'p', outputDirectory: 'out/{n}/{phase}' })).tasks();
    expect(task).toMatchObject({ phase: 'p', outputDirectory: 'out/x{a}/p', parameters: { n: 'x{a}' } });
  });

  test('can be used together with files', async () => {
    const path = join(project({ 's.yaml': 'p: {combinations: [{seed: [1]}]}' }), 's.yaml');
    const { phases } = await open({ files: [path], grid: ['a=1'] });
    expect(phases.map(({ name }) => name)).toEqual(['p', 'grid']);
  });

  test.each([
    ['1,2', ['1', '2']],
    ['1.0,1e-3,yes', ['1.0', '1e-3', 'yes']],
    ['1..3', ['1', '2', '3']],
    ['-1..1', ['-1', '0', '1']],
    ['0..10..5', ['0', '5', '10']],
    ['0..9..5', ['0', '5']],
    ['3..1..-1', ['3', '2', '1']],
    ['1..1', ['1']],
    ['1..2,7,9..10,x', ['1', '2', '7', '9', '10', 'x']],
    [`'a,b',"c\\td",'it''s'`, ['a,b', 'c\td', "it's"]],
    [`it's,o'clock`, ["it's", "o'clock"]],
    ["'1..3'", ['1..3']],
    ['../a,b..c,1.2.3', ['../a', 'b..c', '1.2.3']],
    ["''", ['']],
    ['[64, 64],[128]', ['[64,64]', '[128]']],
    ["['a,b'],c[0],d]", ['["a,b"]', 'c[0]', 'd]']],
    ['x=y', ['x=y']],
    ["'1-3'", ['1-3']],
    ['1:3,2:3', ['1:3', '2:3']],
    [' 1 , 2 ', ['1', '2']],
  ])('reads a=%s', async (word, shown) => {
    expect(await values(word)).toEqual(shown);
  });

  test.each([
    [['a'], "--grid: 'a' has no '='"],
    [['=1'], 'a parameter needs a name'],
    [['a='], 'it has no values'],
    [['a=1,'], 'a value is missing before or after a comma'],
    [['a=1', 'a=2'], "'a' is given twice"],
    [['a=3..1'], "the range '3..1' is empty; did you mean 3..1..-1?"],
    [['a=1..3..-1'], 'did you mean 1..3..1?'],
    [['a=1..3..0'], 'has the step 0'],
    [['a=0.5..2'], 'a grid needs values that can be counted'],
    [['a=01..10'], 'must have whole decimal numbers'],
    [['a=0x10..0x12'], 'must have whole decimal numbers'],
    [['a=1..99999999999999999999'], 'must have whole decimal numbers'],
    [["a='b"], 'is neither a text in quotes nor a list'],
    [['a=[1'], 'is neither a text in quotes nor a list'],
    [['a=12345678901234567890123'], 'too large for an integer'],
    [['seed=[1]'], "a value of 'seed' must be a single one"],
    [['__proto__=1'], "can't be called __proto__"],
  ])('%j is refused', async (words, message) => {
    expect(await refusal(grid(...words))).toContain(message);
  });

  test.each<[Partial<SweepSource>, string]>([
    [{ files: ['x.yaml'], phase: 'p' }, '--phase: it only works with --grid and --commands'],
    [{ files: ['x.yaml'], outputDirectory: 'p' }, '--output-dir: it only works with --grid and --commands'],
    [{ grid: ['a=1'], phase: 'a/b' }, "--phase: a phase can't be called 'a/b'"],
    [{ grid: ['a=1'], outputDirectory: '{b}' }, "--output-dir: 'output_dir': {b} names no parameter"],
    [
      { grid: ['output_dir=1'], outputDirectory: 'x' },
      '--output-dir: output_dir is an axis of the grid, too',
    ],
  ])('%j is refused', async (source, message) => {
    expect(await refusal(open(source))).toContain(message);
  });

  test('refuses a command that names something else', async () => {
    expect(await refusal(open({ grid: ['width=1'], command: ['x', '{widht}'] }))).toContain(
      'did you mean {width}?',
    );
    expect((await open({ grid: ['width=1'] })).commandless?.message).toContain(
      "--grid: phase 'grid' has no command to run",
    );
  });
});

describe('the number of tasks', () => {
  test('must be confirmed above 100,000, and the error says how many there would be', async () => {
    expect(await refusal(grid('seed=1..100', 'width=1..100', 'depth=1..1000'))).toBe(
      'that would be 10,000,000 tasks (grid: seed 100 x width 100 x depth 1,000 = 10,000,000); to confirm, add --yes',
    );
  });

  test('may be larger, and nothing of the size of the product is kept', async () => {
    const before = process.memoryUsage().heapUsed;
    const sweep = await open({ grid: ['a=1..1000000', 'b=1..1000000', 'c=1..1000000'], yes: true });
    expect(sweep.size).toBe(1e18);
    expect(first(3, sweep.tasks()).map(({ parameters: { c } }) => c)).toEqual([1, 2, 3]);
    expect(process.memoryUsage().heapUsed - before).toBeLessThan(50e6);
  });

  test('may be 100,000', async () => {
    const sweep = await grid('seed=1..1000', 'width=1..100');
    let count = 0;
    for (const _ of sweep.tasks()) count++;
    expect(count).toBe(100_000);
  });
});

describe('a file of commands', () => {
  const jobs = async (text: string, source: Partial<SweepSource> = {}) => {
    const sweep = await open({
      commands: join(project({ 'my jobs.txt': text }), 'my jobs.txt'),
      ...source,
    });
    return Array.from(sweep.tasks());
  };

  test('has a task per line, equal lines once', async () => {
    const found = await jobs('# first\n\npython a.py --x 1\r\n  python a.py --x 1\npython "b c.py" \'{}\'\n');
    expect(found).toEqual([
      {
        phase: 'my_jobs',
        outputDirectory: 'results_my_jobs',
        parameters: { command: 'python a.py --x 1' },
        command: { words: ['python', 'a.py', '--x', '1'] },
      },
      {
        phase: 'my_jobs',
        outputDirectory: 'results_my_jobs',
        parameters: { command: `python "b c.py" '{}'` },
        command: { words: ['python', 'b c.py', '{}'] },
      },
    ]);
  });

  test('may be for a shell', async () => {
    expect((await jobs('a | b > ${c}', { shell: true }))[0]?.command).toEqual({ shell: 'a | b > ${c}' });
  });

  test('may be run by another command', async () => {
    expect((await jobs('a | b', { command: ['bash', '-lc', '{command}'] }))[0]?.command).toEqual({
      words: ['bash', '-lc', 'a | b'],
    });
  });

  test('has a name and a directory', async () => {
    expect((await jobs('a', { phase: 'p', outputDirectory: 'x/{phase}' }))[0]).toMatchObject({
      phase: 'p',
      outputDirectory: 'x/p',
    });
  });

  test.each<[string, Partial<SweepSource>, string]>([
    ['', {}, 'my jobs.txt:1: there is no command in it'],
    ['# a\n', {}, 'my jobs.txt:1: there is no command in it'],
    [
      'a\n\nb | c\n',
      {},
      'my jobs.txt:3: only a shell gives | a meaning; put it in single quotes to use it literally, or let a shell run the line (--shell',
    ],
    ["a\nb 'c\n", {}, "my jobs.txt:2: the quote ' isn't closed"],
    ['a \\\nb\n', {}, 'my jobs.txt:1: it ends in a backslash'],
    ["''\n", {}, 'my jobs.txt:1: the command is empty'],
    ['a\0b\n', {}, 'my jobs.txt:1: the character U+0000'],
    [
      'a',
      { command: ['x', '{seed}'] },
      '{seed} names no parameter; the known ones are {command}, {output_dir} and {phase}',
    ],
    ['a', { outputDirectory: '{seed}' }, "--output-dir: 'output_dir': {seed} names no parameter"],
    ['a', { grid: ['a=1'], phase: 'p' }, '--phase: --grid and --commands each make a phase'],
  ])('%j with %j is refused', async (text, source, message) => {
    expect(await refusal(jobs(text, source))).toContain(message);
  });

  test('may be a FIFO, which is not waited for', async () => {
    const path = join(project({}), 'fifo');
    spawnSync('mkfifo', [path]);
    expect(await refusal(open({ commands: path }))).toContain('not a regular file');
  });
});
