import { expect, test } from 'vitest';
import { read, refusal } from './sweeps.ts';

const FILES: readonly [tool: string, page: string, text: string][] = [
  [
    'a configuration of Hydra',
    'search#command-lines-of-hydra',
    'defaults:\n  - _self_\n  - model: resnet\nlr: 0.1\n',
  ],
  [
    'a configuration of Hydra',
    'search#command-lines-of-hydra',
    'lr: 0.1\nhydra:\n  sweeper:\n    params:\n      lr: 0.1,0.2\n',
  ],
  [
    'an experiment of Determined',
    'sweeps#files-of-other-tools',
    'name: mnist\nhyperparameters:\n  lr: 0.1\nsearcher: {name: adaptive_asha}\nentrypoint: model:Trial\n',
  ],
  [
    'an experiment of Katib',
    'sweeps#files-of-other-tools',
    '---\napiVersion: kubeflow.org/v1beta1\nkind: Experiment\nspec:\n  parameters: [{name: lr}]\n---\nkind: Other\n',
  ],
  [
    'an experiment of SEML',
    'sweeps#files-of-other-tools',
    'seml:\n  executable: train.py\ngrid:\n  lr: {type: choice, options: [0.1, 0.2]}\n',
  ],
  [
    'a file of Polyaxon',
    'sweeps#files-of-other-tools',
    'version: 1.1\nkind: operation\nmatrix:\n  kind: grid\n  params:\n    lr: {kind: choice, value: [0.1]}\n',
  ],
  [
    'a file of Ray',
    'recipes#ray',
    'cartpole:\n  run: PPO\n  env: CartPole-v1\n  config:\n    lr:\n      grid_search: [0.1, 0.2]\n',
  ],
  ['a pipeline of DVC', 'sweeps#files-of-other-tools', 'stages:\n  train:\n    cmd: python3 train.py\n'],
];

test.each(FILES)('the file of another tool is named: %s, see %s', async (tool, page, text) => {
  expect(await refusal(read(text))).toMatch(
    `s.yaml:1: it is ${tool}, not a sweep file of gpu-owner; see \`gpu-owner docs ${page}\``,
  );
});

test.each([
  ['stages:\n  cmd: [1]\n  combinations:\n    - hydra: [1, 2]\n  method: {}\nparameters: 3\n'],
  ['exp1:\n  combination:\n    - lr: [1, 2]\nprogram: a\nparameters: 3\n'],
])('a mistake in a sweep file is told as such, whatever its names are', async (text) => {
  expect(await refusal(read(text))).not.toMatch('not a sweep file');
});
