import { describe, expect, test } from 'vitest';
import { parameters, read, refusal, tasks } from './sweeps.ts';

describe('placeholders in strings', () => {
  test('stand for parameters of any kind, wherever the string is', async () => {
    const shown = await parameters(
      'dataset: mnist',
      'layers: [64, 1.0]',
      'nothing:',
      "a: 'x-{dataset}-{seed}-{layers}-{nothing}'",
      "b: ['{dataset}', {c: '{seed}'}]",
    );
    expect(shown.a).toBe('x-mnist-1-[64,1.0]-');
    expect(shown.b).toBe('["mnist",{"c":"1"}]');
  });

  test('refer to strings with placeholders, in any order', async () => {
    expect(await parameters("a: '{b}!'", "b: '{c}{c}'", "c: '{seed}'")).toMatchObject({
      a: '11!',
      b: '11',
      c: '1',
    });
  });

  test('are not made by doubled braces, which are braces', async () => {
    expect(await parameters("a: '{{seed}} {{{seed}}} }}'", "b: '{{}}'")).toMatchObject({
      a: '{seed} {1} }',
      b: '{}',
    });
  });

  test('are filled in once, also by a value with braces', async () => {
    expect(await parameters("a: '{{seed}}'", "b: '{a}'")).toMatchObject({ b: '{seed}' });
  });

  test('can be the phase and the output directory, but a parameter `phase` comes first', async () => {
    expect(await parameters("a: '{phase}/{output_dir}'")).toMatchObject({ a: 'p/results_p' });
    expect(await parameters("a: '{phase}'", 'phase: 7')).toMatchObject({ a: '7' });
  });

  test('in the values of an axis may refer to different parameters', async () => {
    const found = await tasks("p: {b: 5, combinations: [{a: ['x{b}', 'y', 'z{c}']}, {c: [1, 2]}]}");
    expect(found.map(({ parameters: { a } }) => a)).toEqual(['x5', 'x5', 'y', 'y', 'z1', 'z2']);
  });

  test('in a default that a phase replaces may refer to anything', async () => {
    expect(await tasks("defaults: {a: '{unknown}'}\np: {a: 1, combinations: [{seed: [1]}]}")).toHaveLength(1);
  });

  test.each([
    ["a: '{sed}'", "s.yaml:3: 'a': {sed} names no parameter; did you mean {seed}?"],
    [
      "a: '{zzzzzzzz}'",
      '{zzzzzzzz} names no parameter; the known ones are {a}, {seed}, {output_dir} and {phase}',
    ],
    ["a: '{a}'", "s.yaml:3: 'a' refers to itself"],
    ["a: ['{a}']", "s.yaml:3: 'a' refers to itself"],
    ["output_dir: 'x{output_dir}'", "'output_dir' refers to itself"],
    ["a: 'x{output_dir}'\n  output_dir: 'x{a}'", "'a' and 'output_dir' refer to each other"],
    ["a: '{b}'\n  b: '{c}'\n  c: '{a}'", "'a', 'b' and 'c' refer to each other"],
    ["a: '{'", "'a': '{': a single {; write {{ for a brace"],
    ["a: 'x}y'", 'a single }; write }} for a brace'],
    ["a: '{}'", '{} names no parameter; write {{}}'],
    ["a: '{:.2f}'", '{:.2f} names no parameter'],
    ["a: {b: ['{sed}']}", "'a': {sed} names no parameter"],
  ])('%s is refused', async (line, message) => {
    expect(await refusal(read(`p:\n  combinations: [{seed: [1]}]\n  ${line}\n`))).toContain(message);
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

  test('can be an axis', async () => {
    const found = await tasks('p: {combinations: [{output_dir: [x, "y{a}"]}, {a: [1]}]}');
    expect(found.map(({ outputDirectory }) => outputDirectory)).toEqual(['x', 'y1']);
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
