// Files of other tools, after their public documentation: each runs, or is refused with a sentence that helps.
import { spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test, vi } from 'vitest';
import { onWarning } from '../../../lib/platform/index.ts';
import { parseSweepFile } from '../../../lib/sweeps/files/sources.ts';
import type { SearchParameter, Space } from '../../../lib/sweeps/files/space.ts';
import { open, project, read, refusal, tasks } from './sweeps.ts';

const fixtures = join(import.meta.dirname, 'fixtures');
const wandb = (text: string) => parseSweepFile(text, 'sweep.yaml', null, false)[0] as Space;
const base = 'program: train.py\nmethod: grid\n';
const parameter = (line: string): SearchParameter | undefined =>
  wandb(`program: a\nmethod: random\nparameters:\n  a: ${line}\n`).parameters[0];

/** The words with which a command starts a program called `python3` or `python`. */
function wordsOf(command: { shell: string } | { words: readonly string[] }): string[] {
  const bin = project({ python3: '#!/bin/sh\nfor word; do printf "%s\\n" "$word"; done\n' });
  spawnSync('chmod', ['+x', join(bin, 'python3')]);
  spawnSync('cp', [join(bin, 'python3'), join(bin, 'python')]);
  const words = 'shell' in command ? ['sh', '-c', command.shell] : command.words;
  const env = { PATH: `${bin}:${process.env.PATH}`, GPU_OWNER_TASK: join(bin, 'task.json') };
  const { stdout, stderr, status } = spawnSync(words[0] as string, words.slice(1), { env, encoding: 'utf8' });
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  return stdout.trimEnd().split('\n');
}

describe.each(readdirSync(fixtures).filter((name) => name.endsWith('.yaml')))('%s', (name) => {
  const [first = ''] = readFileSync(join(fixtures, name), 'utf8').split('\n');
  test(first.slice(2), async () => {
    const found = open({ files: [join(fixtures, name)] });
    const [, why] = /^# refused: (.*)/.exec(first) ?? [];
    if (why !== undefined) return expect(await refusal(found)).toContain(why);
    const [, size, kind, words] = /^# (\d+) (tasks|trials): (.*)/.exec(first) ?? [];
    const all = Array.from((await found).samples());
    if (kind === 'tasks') expect(all).toHaveLength(Number(size));
    expect((await found).size).toBe(Number(size));
    expect(wordsOf((all[0] as (typeof all)[0]).command).join(' ')).toContain(words);
  });
});

describe('a sweep file of Weights & Biases', () => {
  test('has its nested parameters by names with dots, and names of its own phase', async () => {
    const found = await tasks(
      `${base}parameters:\n  o: {parameters: {lr: {values: [1, 2]}, deep: {parameters: {x: {value: a}}}}}\n`,
    );
    expect(
      found.map(({ parameters, phase, outputDirectory }) => [parameters, phase, outputDirectory]),
    ).toEqual([
      [{ 'o.lr': 1, 'o.deep.x': 'a' }, 's', 'results_s'],
      [{ 'o.lr': 2, 'o.deep.x': 'a' }, 's', 'results_s'],
    ]);
  });

  test('takes a command line instead of its own, with names of parameters', async () => {
    const text = `${base}parameters: {lr: {values: [0.1]}, o: {parameters: {m: {value: 0.9}}}}\n`;
    const [task] = await tasks(text, { command: ['train', '{lr}', 'm={o.m}', '{phase}'] });
    expect(task?.command).toEqual({ words: ['train', '0.1', 'm=0.9', 's'] });
    expect(await refusal(read(text, { command: ['train', '{rl}'] }))).toContain('did you mean {lr}?');
    const [own] = await tasks(`${base}parameters: {phase: {value: p}}\n`, { command: ['train', '{phase}'] });
    expect(own?.command).toEqual({ words: ['train', 'p'] });
  });

  test('leaves its configuration where wandb.init() reads it, as PyYAML reads numbers', async () => {
    const [task] = await tasks(
      `${base}parameters: {a: {values: [1.0e-7]}, b: {value: '1e-3'}, c: {value: it's}}\n`,
    );
    const shell = task && 'shell' in task.command ? task.command.shell : '';
    const directory = project({});
    writeFileSync(join(directory, 'train.py'), '');
    mkdirSync(join(directory, 'attempt'));
    const script = `${shell.replace(/exec .*/s, '')} cat "$WANDB_SWEEP_PARAM_PATH"`;
    const env = { PATH: process.env.PATH, GPU_OWNER_TASK: join(directory, 'attempt/task.json') };
    const { stdout } = spawnSync('sh', ['-c', script], { env, encoding: 'utf8' });
    expect(stdout).toBe(`{"a":{"value":1.0e-7},"b":{"value":"1e-3"},"c":{"value":"it's"}}`);
    expect(readdirSync(join(directory, 'attempt'))).toEqual(['wandb.json']);
  });

  test('has the runs of W&B first if not all are asked for: parameters by their names', async () => {
    const found = await tasks(
      `${base}run_cap: 3\nparameters: {b: {values: [1, 2]}, a: {parameters: {z: {value: 0}, c: {values: [3, 4]}}}}\n`,
    );
    expect(found.map(({ parameters }) => Object.entries(parameters))).toEqual(
      [
        [3, 1],
        [3, 2],
        [4, 1],
      ].map(([c, b]) => [
        ['a.c', c],
        ['a.z', 0],
        ['b', b],
      ]),
    );
  });

  test('has numbers with tags', () => {
    expect(parameter('{min: !!float 1e-5, max: !!float 1}')?.distribution).toMatchObject({
      min: 1e-5,
      max: 1,
      rounding: null,
    });
    expect(parameter('{values: [!!int 3, !!float 1e-5]}')?.distribution).toMatchObject({
      values: [3, { data: 1e-5, text: '1e-5' }],
    });
  });

  test('has its keys for a server ignored, which is said once', async () => {
    const said = vi.fn();
    onWarning(said);
    await tasks(`${base}project: p\nentity: e\ndescription: d\nparameters: {lr: {value: 1}}\n`);
    expect(said.mock.calls.map(([text]) => text.replace(/.*\//, ''))).toEqual([
      's.yaml: project, entity and description have no meaning here',
    ]);
  });

  test.each([
    ['{value: [1, 2]}', { kind: 'choice', values: [[1, 2]] }],
    ['{values: [x, 1]}', { kind: 'choice', values: ['x', 1] }],
    ['{min: 1, max: 8}', { kind: 'uniform', min: 1, max: 8, log: false, rounding: 'integer' }],
    ['{min: 1.0, max: 8}', { kind: 'uniform', min: 1, max: 8, log: false, rounding: null }],
    [
      '{min: 1e-5, max: 0.1, distribution: log_uniform_values}',
      { kind: 'uniform', min: 1e-5, max: 0.1, log: true, rounding: null },
    ],
    [
      '{min: 0, max: 1, q: 0.25, distribution: q_uniform}',
      { kind: 'uniform', min: 0, max: 1, log: false, rounding: 0.25 },
    ],
  ])('has the distribution %s', (line, distribution) => {
    expect(parameter(line)?.distribution).toEqual(distribution);
  });

  test.each([
    ['{type: hyperband, min_iter: 3}', [3, 9, 27, 81], 3, true],
    ['{type: hyperband, max_iter: 27, s: 2, strict: true}', [3, 9], 3, true],
    ['{type: hyperband, max_iter: 10, s: 9, eta: 2, strict: false}', [1, 2, 5], 2, false],
  ])('stops runs at rungs: %s', (line, rungs, eta, strict) => {
    const { earlyStopping } = wandb(`${base}early_terminate: ${line}\nparameters: {a: {value: 1}}\n`);
    expect(earlyStopping).toMatchObject({ eta, strict });
    expect(earlyStopping?.rungs.slice(0, 4)).toEqual(rungs);
  });

  test.each([
    ['parameters: {a: {valuse: [1]}}', "it has neither 'value', 'values', nor 'min' and 'max'"],
    ['parameters: {a: [1, 2]}', "parameter 'a': it must be a map"],
    ['parameters: {a: {values: []}}', 'values must be a list with something in it'],
    ['parameters: {a: {min: 2, max: 1}}', 'min, 2, is larger than max, 1'],
    ['parameters: {a: {min: -1.0e+308, max: 1.0e+308}}', 'are too far apart'],
    ['parameters: {a: {parameters: {__proto__: {value: 1}}}}', "a parameter can't be called a.__proto__"],
    [
      'parameters: {a: {distribution: normal, mu: 1}}',
      "the distribution 'normal' isn't supported; use one of",
    ],
    ['parameters: {a: {distribution: log_uniform_values, min: 0, max: 1}}', 'min must be larger than 0'],
    ['parameters: {a: {value: 1, max: 3}}', "'max' has no meaning for the distribution constant"],
    ['parameters: {a.b: {value: 1}, a: {parameters: {b: {value: 2}}}}', "'a.b': it is given twice"],
    ['parameters: {a: {value: 1}}\nmetrics: []', "did you mean 'metric'?"],
    ['parameters: {a: {value: 1}}\nparametres: {}', "did you mean 'parameters'?"],
    ['parameters: {a: {value: 1}}\ncommand: ["${arg}"]', 'use one of ${env}'],
    ['parameters: {a: {value: 1}}\ncommand: python train.py', 'command: it must be a list of words'],
    ['parameters: {a: {value: 1}}\nrun_cap: 0', 'it must be a whole number from 1'],
    [
      'parameters: {a: {value: 1}}\nearly_terminate: {type: hyperband}',
      "it needs 'min_iter', or 'max_iter' and 's'",
    ],
    [
      'parameters: {a: {value: 1}}\nearly_terminate: {type: hyperband, min_iter: 1, eta: 1.0000001}',
      'eta must be at least 1.1',
    ],
  ])('is refused with a remedy: %s', async (lines, why) => {
    expect(await refusal(read(`${base}${lines}\n`))).toContain(why);
  });

  test.each([
    ['program: a\nparameters: {a: {value: 1}}', "there is no 'method'"],
    ['method: grid\nparameters: {a: {value: 1}}', "there is no 'program' to run"],
    ['program: a\nmethod: custom\nparameters: {a: {value: 1}}', 'use grid, random or bayes'],
  ])('needs its keys: %s', async (text, why) => {
    expect(await refusal(read(`${text}\n`))).toContain(why);
  });
});
