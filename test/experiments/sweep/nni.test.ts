// Search spaces of NNI, after its documentation.
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { checkPrograms } from '../../../lib/experiments/control/experiment.ts';
import { commandTemplate } from '../../../lib/experiments/sweep/command.ts';
import type { SpaceSweep } from '../../../lib/experiments/sweep/search-space.ts';
import { parseSweepFile } from '../../../lib/experiments/sweep/sources.ts';
import type { TaskSpec } from '../../../lib/experiments/task/index.ts';
import { open, read, refusal } from './sweeps.ts';

const fixture = (name: string) => join(import.meta.dirname, 'fixtures', name);
const command = ['train', '{lr}'];
const words = async (name: string, line: string[]) =>
  Array.from((await open({ files: [fixture(name)], command: line })).tasks(), (task) =>
    'shell' in task.command ? (task.command.shell.split('; exec train ')[1] ?? '') : '',
  );
const trial = ({ command: made }: TaskSpec) =>
  JSON.parse(/printf %s '(.*)' >"\$NNI_SYS_DIR/.exec('shell' in made ? made.shell : '')?.[1] ?? '');
const space = (text: string) =>
  parseSweepFile(text, 's.json', commandTemplate('train', false, { option: '' }), false)[0] as SpaceSweep;
const distribution = (type: string, value: string) =>
  space(`{"a": {"_type": "${type}", "_value": ${value}}}`).parameters[0]?.distribution;

describe('a search space of NNI', () => {
  test('of choices is a grid', async () => {
    const all = await words('nni-choices.json', ['train', '{batch_size}', '{lr}']);
    expect(all).toEqual(['16 0.1', '16 0.01', '16 0.001', '32 0.1', '32 0.01', '32 0.001']);
  });

  test('may have choices with parameters of their own', async () => {
    const all = await words('nni-nested.json', [
      'train',
      '{layer}',
      'k{layer.Conv.kernel_size}',
      's{layer.Pool.size}',
      '{seed}',
    ]);
    expect(all).toHaveLength((1 + 3 + 2) * 2);
    expect(all.filter((_, i) => i % 2 === 0)).toEqual([
      ...['Empty k s 0', 'Conv k1 s 0', 'Conv k3 s 0', 'Conv k5 s 0', 'Pool k s2 0', 'Pool k s3 0'],
    ]);
    const sweep = await open({ files: [fixture('nni-nested.json')], command: ['train'] });
    const [empty, , conv] = Array.from(sweep.tasks()) as [TaskSpec, TaskSpec, TaskSpec];
    expect(conv.parameters).toEqual({ layer: 'Conv', 'layer.Conv.kernel_size': 1, seed: 0 });
    expect(trial(empty).parameters).toEqual({ layer: { _name: 'Empty' }, seed: 0 });
    expect(trial(conv).parameters).toEqual({ layer: { _name: 'Conv', kernel_size: 1 }, seed: 0 });
  });

  test('is searched by any method', async () => {
    const search = { method: 'random' as const, trials: 20 };
    const files = [fixture('nni-continuous.json')];
    const sweep = await open({ files, command, search });
    const all = Array.from(sweep.tasks(), ({ parameters }) => parameters as Record<string, number>);
    expect(all).toHaveLength(20);
    for (const { lr = 0, hidden = 0 } of all) {
      expect(lr).toBeGreaterThanOrEqual(0.0001);
      expect(lr).toBeLessThanOrEqual(0.1);
      expect(hidden % 32).toBe(0);
    }
    const nested = await open({ files: [fixture('nni-nested.json')], command: ['train'], search });
    for (const { parameters } of nested.tasks())
      expect('layer.Conv.kernel_size' in parameters).toBe(parameters.layer === 'Conv');
    expect(await refusal(open({ files, command }))).toContain(
      "parameter 'dropout': a grid needs values that can be counted",
    );
  });

  test.each([
    ['randint', '[1, 4]', { kind: 'uniform', min: 1, max: 3, log: false, rounding: 'integer' }],
    ['qloguniform', '[1, 100, 2]', { kind: 'uniform', min: 1, max: 100, log: true, rounding: 2 }],
    ['normal', '[0, 1]', { kind: 'normal', mean: 0, deviation: 1, log: false, rounding: null }],
    ['lognormal', '[0, 1]', { kind: 'normal', mean: 0, deviation: 1, log: true, rounding: null }],
    ['choice', '[1e-4, "a"]', { kind: 'choice', values: ['1e-4', 'a'], weights: null }],
  ])('has the type %s with %s', (type, value, expected) => {
    expect(distribution(type, value)).toEqual(expected);
  });

  test.each([
    ['{"a": {"_type": "chioce", "_value": [1]}}', "did you mean 'choice'?"],
    ['{"a": {"_type": "uniform", "_value": [1]}}', '_value of uniform must be [low, high]'],
    ['{"a": {"_type": "choice", "_value": []}}', '_value must be a list with something in it'],
    ['{"a": {"_type": "loguniform", "_value": [0, 1]}}', 'low must be larger than 0'],
    [
      '{"a": {"_type": "choice", "_value": [{"_name": "b", "c": {"_type": "choice", "_value": [1]}}]}, "a.b.c": {"_type": "choice", "_value": [1]}}',
      "parameter 'a.b.c' is given twice",
    ],
    ['{"a": {"_type": "randint", "_value": [0.5, 5]}}', 'lower and upper of randint must be whole numbers'],
    ['{"a": {"_type": "choice", "_value": [1]}, "b": 3}', "parameter 'b': it must be a map such as"],
  ])('is refused with a remedy: %s', async (text, why) => {
    expect(await refusal(read(text, { command: ['train'] }))).toContain(why);
  });

  test('has as many parameters as a phase of a sweep file at most', async () => {
    const each = { _type: 'choice', _value: [1] };
    const many = Object.fromEntries(Array.from({ length: 1001 }, (_, i) => [`p${i}`, each]));
    expect(await refusal(read(JSON.stringify(many), { command: ['train'] }))).toContain(
      'it has more than 1000 parameters',
    );
  });

  test('needs a command behind it, with parameters that it has', async () => {
    const text = '{"lr": {"_type": "choice", "_value": [1]}}';
    expect(await refusal(read(text))).toContain('put it at the end, such as -- python train.py --lr {lr}');
    expect(await refusal(read(text, { command: ['train', '{rl}'] }))).toContain('did you mean {lr}?');
  });

  test('has a program that is looked for before anything is added, unless a shell decides', async () => {
    const files = [fixture('nni-choices.json')];
    const sweep = (line: string[], shell = false) => open({ files, command: line, shell });
    const refused = async (...given: Parameters<typeof sweep>) => {
      const made = await sweep(...given);
      return expect(() => checkPrograms(made, import.meta.dirname));
    };
    (await refused(['pyhton3', 'train.py', '{lr}'])).toThrow(/pyhton3/);
    (await refused(['sh', '-c', 'exit {lr}'])).not.toThrow();
    (await refused(['cd x && ./train'], true)).not.toThrow();
  });
});
