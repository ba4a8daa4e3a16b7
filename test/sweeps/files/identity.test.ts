// Properties of every sweep, on sweeps made at random.
import { describe, expect, test } from 'vitest';
import { taskId } from '../../../lib/sweeps/task/index.ts';
import { Random } from '../../support/random.ts';
import { tasks } from './sweeps.ts';

function shuffled<T>(items: readonly T[], pick: (below: number) => number): T[] {
  const left = [...items];
  return items.map(() => left.splice(pick(left.length), 1)[0] as T);
}

const SPELLINGS = [
  ['1', '1.0', '1e0', '+1', '0x1'],
  ['2', '2.', '2.00'],
  ['0.001', '1e-3', '.001', '1.0e-3'],
  ['true', 'yes', 'On', 'TRUE'],
  ['false', 'no', 'off'],
  ['"1"', "'1'", '!!str 1'],
  ['mnist', '"mnist"', "'mnist'"],
  ['[1, yes]', '[1.0, true]', '[ 0x1, on ]'],
  ['{a: 1, b: 2}', '{b: 2, a: 1.0}'],
  ['~', 'null', ''],
  ['.nan', '.NaN'],
  ['.inf', '+.INF'],
];

const KEYS = ['a', 'b', 'c', 'd', 'e'];

describe.each(Array.from({ length: 20 }, (_, seed) => seed))('a sweep at random (%i)', (seed) => {
  const random = new Random(seed);
  const pick = (below: number) => random.integer(below);
  const fixed = KEYS.slice(0, 2 + pick(3)).map((key) => [key, pick(SPELLINGS.length)] as const);
  const axes = shuffled(['x', 'y', 'z'], pick)
    .slice(0, 1 + pick(3))
    .map(
      (key) =>
        [
          key,
          shuffled(SPELLINGS, pick)
            .slice(0, 1 + pick(4))
            .map((each) => SPELLINGS.indexOf(each)),
        ] as const,
    );
  const spell = (meaning: number) => {
    const spellings = (SPELLINGS[meaning] as string[]).filter((each) => each !== '');
    return spellings[pick(spellings.length)] as string;
  };
  const text = (order: <T>(items: readonly T[]) => T[]) =>
    `p:\n${order(fixed)
      .map(([key, meaning]) => `  ${key}: ${spell(meaning)}\n`)
      .join('')}  combinations:\n${order(axes)
      .map(([key, meanings]) => `    - ${key}: [${order(meanings).map(spell).join(', ')}]\n`)
      .join('')}`;
  const asIs = <T>(items: readonly T[]) => [...items];

  test('has the product of the counts, no task twice', async () => {
    const found = await tasks(text(asIs));
    expect(found).toHaveLength(axes.reduce((product, [, values]) => product * values.length, 1));
    expect(new Set(found.map(({ parameters }) => taskId(parameters))).size).toBe(found.length);
  });

  test('is counted like an odometer, the last axis fastest', async () => {
    const found = await tasks(text(asIs));
    const counts = axes.map(([, values]) => values.length);
    found.forEach(({ parameters }, number) => {
      let rest = number;
      for (let i = axes.length - 1; i >= 0; i--) {
        const [key, values] = axes[i] as (typeof axes)[0];
        const meaning = values[rest % (counts[i] as number)] as number;
        rest = Math.floor(rest / (counts[i] as number));
        const [same] = taskIdsOf(parameters[key]);
        expect(same).toBe(EXPECTED[meaning]);
      }
    });
  });

  test('is the same in any order and spelling, with other names', async () => {
    const ids = async (sweep: string) =>
      (await tasks(sweep)).map(({ parameters }) => taskId(parameters)).sort();
    const one = await ids(text(asIs));
    const other = text((items) => shuffled(items, pick)).replace('p:', 'other:\n  output_dir: elsewhere');
    expect(await ids(other)).toEqual(one);
  });
});

function taskIdsOf(value: unknown): string[] {
  return [taskId({ value: value as never })];
}

const EXPECTED = [
  1,
  2,
  0.001,
  true,
  false,
  '1',
  'mnist',
  [1, true],
  { a: 1, b: 2 },
  null,
  Number.NaN,
  Number.POSITIVE_INFINITY,
].map((value) => taskIdsOf(value)[0]);

describe('equal tasks', () => {
  test('in several phases have one identity and several destinations', async () => {
    const found = await tasks(
      'p: {combinations: [{a: [1]}]}\nq: {output_dir: x, combinations: [{a: [1.0]}]}',
    );
    expect(new Set(found.map(({ parameters }) => taskId(parameters))).size).toBe(1);
    expect(found.map(({ phase, outputDirectory }) => `${phase} ${outputDirectory}`)).toEqual([
      'p results_p',
      'q x',
    ]);
  });

  test.each([
    ['1', '"1"'],
    ['yes', '"yes"'],
    ['0', 'false'],
    ['~', '""'],
    ['[1]', '1'],
    ['10', '010'],
  ])('don’t have %s where the other has %s', async (a, b) => {
    const found = await tasks(`p: {combinations: [{a: [${a}, ${b}]}]}`);
    expect(new Set(found.map(({ parameters }) => taskId(parameters))).size).toBe(2);
  });
});
