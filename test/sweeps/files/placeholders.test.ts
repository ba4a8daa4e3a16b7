import { describe, expect, test } from 'vitest';
import { parameters, read, refusal, tasks } from './sweeps.ts';

test('braces in parameters are ordinary characters', async () => {
  expect(await parameters("a: 'Hello {seed}, {{}} {'", "b: ['{c}', {d: '}'}]")).toMatchObject({
    a: 'Hello {seed}, {{}} {',
    b: '["{c}",{"d":"}"}]',
  });
});

describe('output directories', () => {
  const outputs = async (value: string) =>
    (await tasks(`p: {output_dir: ${value}, combinations: [{a: [1, 2]}]}`)).map(
      ({ outputDirectory }) => outputDirectory,
    );

  test.each([
    ['results', 'results'],
    ['results/', 'results'],
    ['./a//b/../c', 'a/c'],
    ['../elsewhere', '../elsewhere'],
    ['/data/x/', '/data/x'],
    ['/', '/'],
    ['.', '.'],
    ['1.0', '1.0'],
    ['"with blank"', 'with blank'],
  ])('are normalised: %s', async (value, directory) => {
    expect(await outputs(value)).toEqual([directory, directory]);
  });

  test('are not a part of what a task is', async () => {
    const [task] = await tasks('p: {output_dir: x, combinations: [{a: [1]}]}');
    expect(task?.parameters).toEqual({ a: 1, seed: 42 });
  });

  test('are checked for every task before there is a sweep', async () => {
    expect(
      await refusal(read("p: {output_dir: '{a}', combinations: [{b: [1, 2]}, {a: [x, y, '']}]}")),
    ).toContain('output_dir is empty');
  });

  test('have placeholders for parameters of any kind, and for the phase', async () => {
    const [task] = await tasks(
      "p: {d: mnist, l: [64, 1.0], n: , output_dir: '{{{d}}}-{phase}-{a}{l}{n}', combinations: [{a: [7]}]}",
    );
    expect(task?.outputDirectory).toBe('{mnist}-p-7[64,1.0]');
    const [named] = await tasks("p: {phase: 7, output_dir: 'x{phase}', combinations: [{a: [1]}]}");
    expect(named?.outputDirectory).toBe('x7');
  });

  test('can be an axis', async () => {
    const found = await tasks('p: {combinations: [{output_dir: [x, "y{a}", 1.0]}, {a: [1]}]}');
    expect(found.map(({ outputDirectory }) => outputDirectory)).toEqual(['x', 'y1', '1.0']);
  });

  test.each([
    ["'{sed}'", "s.yaml:1: 'output_dir': {sed} names no parameter; did you mean {seed}?"],
    ["'{zzzzzzzz}'", '{zzzzzzzz} names no parameter; the known ones are {a}, {seed} and {phase}'],
    ["'x{output_dir}'", '{output_dir} names no parameter'],
    ["'{'", "'output_dir': a single {; write {{ for a brace"],
    ["'x}y'", 'a single }; write }} for a brace'],
    ["'{}'", '{} names no parameter; write {{}}'],
    ["'{a:.2f}'", '{a:.2f} names no parameter'],
  ])('%s is refused', async (value, message) => {
    expect(await refusal(outputs(value))).toContain(message);
  });

  test.each([
    ['""', 'output_dir is empty'],
    ['', 'output_dir is empty'],
    ['" "', 'output_dir is empty'],
    ['"a\\nb"', 'has a line break or another control character'],
    ['~/x', 'only a shell expands ~'],
    [`${'x'.repeat(300)}`, 'a name in it is longer than 255 bytes'],
    [`${'x/'.repeat(3000)}`, 'is longer than 3800 bytes'],
  ])('%j is refused', async (value, message) => {
    expect(await refusal(outputs(value))).toContain(message);
  });
});
