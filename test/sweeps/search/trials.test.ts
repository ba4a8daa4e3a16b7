// Trials that need no results, and values as samplers have them.
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { type SeededSearch, valueAt } from '../../../lib/sweeps/files/index.ts';
import type { Distribution } from '../../../lib/sweeps/files/space.ts';
import { codeSpace, codeTrial, decodeTrial } from '../../../lib/sweeps/search/coding.ts';
import { SearchRun } from '../../../lib/sweeps/search/search-run.ts';
import { formatValue, type Value } from '../../../lib/sweeps/task/index.ts';
import { open, project, refusal } from '../files/sweeps.ts';

const search = (grid: string[], options: object = {}) =>
  open({ grid, command: ['train', '{lr}'], search: { method: 'random', trials: 50, ...options } });
const trials = async (grid: string[], options: object = {}) =>
  Array.from((await search(grid, options)).tasks(), ({ parameters }) => parameters);
const numbers = (values: readonly Record<string, Value>[], key: string) =>
  values.map((each) => Number(formatValue(each[key] as Value)));

test('random trials are the same for the same seed, more of them begin with these, and another seed has others', async () => {
  const grid = ['lr=log:1e-5..0.1', 'width=16..64', 'act=relu,tanh'];
  const first = await trials(grid);
  expect(await trials(grid.toReversed())).toEqual(first);
  expect((await trials(grid, { trials: 60 })).slice(0, 50)).toEqual(first);
  const other = await trials(grid, { seed: 1 });
  expect(other).not.toEqual(first);
  expect(new Set([...first, ...other].map((each) => JSON.stringify(each))).size).toBe(100);
  const exponents = numbers(first, 'lr').map(Math.log10);
  expect(Math.min(...exponents)).toBeGreaterThan(-5);
  expect(Math.max(...exponents)).toBeLessThan(-1);
  expect(exponents.filter((each) => each < -3).length).toBeGreaterThan(15);
  expect(numbers(first, 'width').every((each) => Number.isInteger(each) && each >= 16 && each <= 64)).toBe(
    true,
  );
});

test('a space with few values has as many trials, each once', async () => {
  const all = await trials(['lr=1..3', 'act=a,b']);
  expect(new Set(all.map((each) => JSON.stringify(each))).size).toBe(6);
  expect(all).toHaveLength(6);
  expect((await search(['lr=1..3', 'act=a,b'])).size).toBe(6);
});

test('a phase of a sweep file has ranges, and a command that follows from them', async () => {
  const directory = project({
    's.yaml': `command: train lr-{lr} {name}
exp1:
  name: '{lr}'
  combinations:
    - lr: {min: 1e-4, max: 1.0, log: true}
      depth: {min: 2, max: 8}
      drop: {min: 0, max: 0.5, step: 0.1}
      act: [relu, tanh]
`,
  });
  const files = [`${directory}/s.yaml`];
  const found = await open({ files, search: { method: 'random', trials: 30 } });
  const tasks = Array.from(found.tasks());
  expect(tasks).toHaveLength(30);
  for (const { parameters, command } of tasks) {
    expect(command).toEqual({ words: ['train', `lr-${formatValue(parameters.lr as Value)}`, '{lr}'] });
    expect(Number.isInteger(parameters.depth)).toBe(true);
    expect([0, 0.1, 0.2, 0.3, 0.4, 0.5]).toContain(parameters.drop);
    expect(parameters.seed).toBe(42);
  }
  expect(await refusal(open({ files }))).toContain('add --method random');
});

test('a metric compares the tasks of a grid that has one phase', async () => {
  const phase = 'combinations: [{lr: [1, 2]}]';
  const directory = project({
    'one.yaml': `command: train\na: {${phase}}`,
    'two.yaml': `command: train\na: {${phase}}\nb: {${phase}, x: 1}`,
    'wandb.yaml': `program: t.py\nmethod: grid\nmetric: {name: acc, goal: maximize}\nparameters: {lr: {values: [1, 2, 3]}}
early_terminate: {type: hyperband, min_iter: 3}`,
  });
  const compared = async (name: string, search?: object) =>
    (await open({ files: [join(directory, name)], ...(search && { search }) })).comparison;
  expect(await compared('one.yaml')).toBe(null);
  expect(await compared('one.yaml', { metric: 'loss' })).toMatchObject({ name: 'a', trials: 2 });
  expect(await compared('two.yaml')).toBe(null);
  expect(await refusal(compared('two.yaml', { metric: 'loss' }))).toContain(
    'tasks of one phase are compared',
  );
  const files = ['wandb.yaml', 'two.yaml'].map((name) => join(directory, name));
  expect(await refusal(open({ files, search: { goal: 'minimize' } }))).toMatch(
    /^--minimize: tasks of one phase are compared/,
  );
  expect((await open({ files })).comparison).toBe(null);
  expect(await compared('wandb.yaml')).toMatchObject({
    trials: 3,
    metric: { name: 'acc', goal: 'maximize' },
    earlyStopping: { strict: true, eta: 3 },
  });
});

test.each([
  [{ search: { trials: 3 } }, '--trials: there is no search; add --method random'],
  [{ search: { metric: 'loss', seed: 1 } }, '--search-seed: there is no search'],
  [{ search: { stopEarly: { rungs: [1], eta: 3, strict: true } } }, '--stop-early: which value'],
  [{ search: { goal: 'maximize' } }, '--maximize: which value'],
  [{ search: { method: 'tpe' } }, 'needs a metric: add --metric NAME'],
  [{ search: { method: 'random', goal: 'maximize' } }, '--maximize: which value tells good trials from bad'],
  [{ search: { method: 'random' }, commands: '-' }, 'a list of commands is no search'],
  [{ grid: ['lr=log:0..1'], search: { method: 'random' } }, 'min must be larger than 0'],
  [{ grid: ['lr=0.5..0.1'], search: { method: 'random' } }, 'a larger one as max'],
] as const)('%j is refused', async (source, message) => {
  const found = open({ grid: ['lr=1..3'], command: ['train'], ...source } as Parameters<typeof open>[0]);
  expect(await refusal(found)).toContain(message);
});

const DISTRIBUTIONS: Distribution[] = [
  { kind: 'uniform', min: 0, max: 1, log: false, rounding: null },
  { kind: 'uniform', min: 1e-5, max: 0.1, log: true, rounding: null },
  { kind: 'uniform', min: 16, max: 64, log: false, rounding: 'integer' },
  { kind: 'uniform', min: 1, max: 1024, log: true, rounding: 'integer' },
  { kind: 'uniform', min: 0, max: 0.5, log: false, rounding: 0.1 },
  { kind: 'range', first: 1, step: 7, count: 15 },
  { kind: 'range', first: 10, step: -5, count: 5 },
  { kind: 'choice', values: ['a', 1, [2, 3], null] },
  { kind: 'choice', values: ['a'] },
];

test.each(DISTRIBUTIONS)(
  'what a sampler chose for %j is found again from the values of the task',
  (distribution) => {
    const parameters = [{ path: ['p'], name: 'p', distribution }];
    const [coded] = codeSpace(parameters);
    for (let i = 1; i < 200; i++) {
      const value = valueAt(distribution, i / 200);
      const code = codeTrial(parameters, { p: value });
      if (coded === undefined) return expect(code).toEqual({});
      const again = decodeTrial(parameters, code as Record<string, number>).get('p');
      expect(again).toEqual(value);
      expect(codeTrial(parameters, { p: again as Value })).toEqual(code);
    }
    expect(codeTrial(parameters, { p: 'of another search' })).toBe(null);
  },
);

test.each([
  ['width=16..256', '{min: 16, max: 256}'],
  ['width=256..16..-1', '{min: 16, max: 256}'],
  ['width=0..100..5', '{min: 0, max: 100, step: 5}'],
  ['width=-10..10..5', '{min: -10, max: 10, step: 5}'],
])('a sampler gets whole numbers of the command line as those of a file: %s', async (axis, written) => {
  const spaceOf = async (source: object) => {
    const found = await open({ ...source, search: { method: 'tpe', metric: 'loss' } });
    return (found.search as SeededSearch).parameters;
  };
  const file = `command: train {width}\np: {combinations: {width: ${written}}}\n`;
  const directory = project({ 's.yaml': file });
  const [inline, ofFile] = [
    await spaceOf({ grid: [axis], command: ['train', '{width}'] }),
    await spaceOf({ files: [join(directory, 's.yaml')] }),
  ];
  expect(codeSpace(inline)).toEqual(codeSpace(ofFile));
  const [coded] = codeSpace(inline);
  expect(coded?.kind).toBe('int');
  const width = (parameters: typeof inline, code: number) =>
    decodeTrial(parameters, { width: code }).get('width');
  for (let code = -1; code < 300; code += 7) expect(width(inline, code)).toBe(width(ofFile, code));
  expect(codeTrial(inline, { width: 16.5 })).toBe(null);
});

test('shares of a distribution lie where they belong', () => {
  const whole: Distribution = { kind: 'uniform', min: 1, max: 4, log: false, rounding: 'integer' };
  const each = Array.from({ length: 100 }, (_, i) => valueAt(whole, (i + 0.5) / 100));
  expect([1, 2, 3, 4].map((n) => each.filter((value) => value === n).length)).toEqual([25, 25, 25, 25]);
});

test('multiples of W&B may lie beyond the ends, as they do there; those of a sweep file lie within', async () => {
  const ofWandb: Distribution = { kind: 'uniform', min: 0.01, max: 0.2, log: true, rounding: 0.05 };
  const shown = (distribution: Distribution) =>
    Array.from(new Set(Array.from({ length: 100 }, (_, i) => valueAt(distribution, i / 100))));
  expect(shown(ofWandb)).toEqual([0, 0.05, 0.1, 0.15, 0.2]);
  const files = [
    join(project({ 's.yaml': 'p: {combinations: {x: {min: 0.05, max: 0.39, step: 0.1}}}\n' }), 's.yaml'),
  ];
  const { search: found } = await open({ files, search: { method: 'random' } });
  expect(shown(found?.parameters[0]?.distribution as Distribution)).toEqual([0.1, 0.2, 0.3]);
});

test('a search that is ended while it reads its trials starts no sampler', async () => {
  const sweep = await search(['lr=1,2'], { method: 'tpe', metric: 'loss' });
  const ending = new AbortController();
  const run = new SearchRun({
    queue: {
      search: async () => null,
      async *tasks() {
        yield* [];
        ending.abort();
      },
    } as never,
    search: sweep.search as SeededSearch,
    python: '/no/python',
    directory: '/',
    manages: () => true,
    add: async () => {},
    workers: () => null,
    tell: () => {},
  });
  await expect(run.begin(ending.signal)).rejects.toThrow('was not started');
});
