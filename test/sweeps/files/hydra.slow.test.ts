// Command lines of Hydra, expanded by hydra-core from PyPI.
import { spawnSync } from 'node:child_process';
import { chmodSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import type { Sweep } from '../../../lib/sweeps/files/index.ts';
import { taskId } from '../../../lib/sweeps/task/index.ts';
import { install } from '../../examples/recipes.ts';
import { Experiment } from '../../support/experiment.ts';
import { soakTest } from '../../support/time.ts';
import { open, project, refusal } from './sweeps.ts';

const { venv, missing } = install('../../test/sweeps/files/fixtures/requirements.txt', 240);
const path = `${join(venv ?? '', 'bin')}${delimiter}${process.env.PATH}`;
process.env.PATH = path;

const hydra = (overrides: string[], command = 'train') => open({ hydra: { command, overrides } });
const TRAIN = `import hydra
from hydra.core.hydra_config import HydraConfig

@hydra.main(config_path="conf", config_name="config", version_base="1.3")
def main(cfg):
    print(HydraConfig.get().job.num, cfg.model.kind)

main()
`;

const isPlace = (word: string) => /^hydra\.(?:run\.dir|job\.num|job\.id)=/.test(word);
const linesOf = (sweep: Sweep) =>
  Array.from(sweep.tasks(), ({ command }) =>
    ('words' in command ? command.words : []).filter((word) => !isPlace(word)).join(' '),
  );

/** The answers of the helper to command lines, by one start of it. */
function answers(program: string[], lines: readonly string[][], cwd = '.'): { error?: string }[] {
  const { stdout, stderr } = spawnSync('python', [join(process.cwd(), 'python/hydra_helper.py')], {
    cwd,
    encoding: 'utf8',
    input: lines.map((overrides) => `${JSON.stringify({ program, overrides })}\n`).join(''),
  });
  const found = stdout.trim().split('\n');
  expect(found, stderr).toHaveLength(lines.length);
  return found.map((line) => JSON.parse(line));
}

describe.skipIf(missing !== null)(`a command line of Hydra${missing === null ? '' : `: ${missing}`}`, () => {
  test('is a grid of its overrides, whose runs lie below the output directory', async () => {
    const sweep = await open({
      hydra: { command: 'python3 train.py', overrides: ['lr=0.1,0.01', 'model=a,b', 'seed=1'] },
      outputDirectory: "it's",
    });
    const [first, , , last] = Array.from(sweep.tasks());
    expect(sweep.size).toBe(4);
    expect(first).toMatchObject({ phase: 'grid', parameters: { lr: 0.1, model: 'a', seed: 1 } });
    const id = taskId(last?.parameters ?? {}).slice(0, 14);
    expect(last?.command).toEqual({
      words: [
        ...['python3', 'train.py', 'lr=0.01', 'model=b', 'seed=1'],
        `hydra.run.dir='it\\'s/runs/${id}'`,
        ...[expect.stringMatching(/^hydra\.job\.num=\d+$/), `hydra.job.id=${id}`],
      ],
    });
  });

  test('has the values that Hydra would give to its runs', async () => {
    const expected: [overrides: string[], words: string[]][] = [
      [['a=1e-3,1_000,true,null'], ['a=0.001', 'a=1000', 'a=True', 'a=null']],
      [['b=range(1,2,0.5)'], ['b=1.0', 'b=1.5']],
      [['c=int(interval(-1.5,1.9))'], ['c=-1', 'c=0', 'c=1']],
      [['d=[1,2],{a:1,b:2}'], ['d=[1,2]', 'd={a:1,b:2}']],
      [["e='a,b'"], ["e='a,b'"]],
      [['f=shuffle(sort(3,1,2))'], ['f=1', 'f=2', 'f=3']],
      [['+y=1'], ['+y=1']],
      [['++z=a'], ['++z=a']],
      [['~w'], ['~w']],
      [['db@pkg=x,y'], ['db@pkg=x', 'db@pkg=y']],
      [
        ['h=1', 'h=2,3'],
        ['h=2', 'h=3'],
      ],
      [['i='], ['i=']],
    ];
    const sweep = await hydra(expected.flatMap(([overrides]) => overrides));
    const words = linesOf(sweep).map((line) => line.split(' ').slice(1));
    expect(words).toHaveLength(4 * 2 * 3 * 2 * 3 * 2 * 2);
    for (const [at, [, values]] of expected.entries())
      expect([...new Set(words.map((line) => line[at]))]).toEqual(values);
  });

  test.each([
    [
      'python3 -m pkg.train --multirun lr=1,2 hydra/launcher=joblib hydra.sweep.dir=out',
      ['python3 -m pkg.train lr=1', 'python3 -m pkg.train lr=2'],
    ],
    [
      "train -m --config-name 'a b' hydra.job.chdir=true lr=1",
      ['train --config-name a b hydra.job.chdir=True lr=1'],
    ],
  ])('may be one text: %s', async (command, expected) => {
    expect(linesOf(await hydra([], command))).toEqual(expected);
  });

  test('asks a program of Hydra which options groups have', async () => {
    const directory = project({
      'train.py': '# import hydra',
      run: '#!/bin/sh\necho "asked without $CUDA_VISIBLE_DEVICES" >&2\necho "gpu-owner asks:null {\'_target_\': \'BasicSweeper\'}"; echo "model: a, b, big"\n',
    });
    chmodSync(join(directory, 'run'), 0o755);
    const globbed = await open({
      project: directory,
      hydra: { command: './run train.py', overrides: ['model=glob(*,exclude=a)'] },
    });
    expect(linesOf(globbed)).toEqual(['./run train.py model=b', './run train.py model=big']);
    expect(answers(['./run', 'train.py'], [['model=glob(z*)']], directory)).toEqual([
      { error: expect.stringContaining("none of a, b, big in 'model' matches") },
    ]);
    writeFileSync(join(directory, 'run'), '#!/bin/sh\necho "ImportError: nothing" >&2; exit 1\n');
    expect(answers(['./run', 'train.py'], [['x=1,2']], directory)).toEqual([
      { error: expect.stringContaining('there are: ImportError: nothing. If it starts only on a GPU') },
    ]);
    writeFileSync(join(directory, 'run'), '#!/bin/sh\necho started >started; exit 1\n');
    writeFileSync(join(directory, 'train.py'), 'print(1)');
    // Another program isn't started: it would train.
    expect(answers(['./run', 'train.py'], [['x=1,2']], directory)).toMatchObject([{ overrides: [{}] }]);
    expect(readdirSync(directory)).not.toContain('started');
  });

  test('is refused with a remedy', async () => {
    expect(await refusal(hydra(['train.py', 'lr=1']))).toContain("'train.py' is no override");
    expect(await refusal(hydra(['x=interval(0,1)']))).toContain('values that can be counted');
    expect(await refusal(hydra(['+x=1,2', 'x=3']))).toContain("parameter 'x' is given twice");
    const refused = {
      'x=rnage(1,2)':
        "'x=rnage(1,2)': HydraException while evaluating 'rnage(1,2)': Unknown function 'rnage'",
      "x='a": "'x='a': token recognition error",
      'x=range(3,1)': 'the sweep would be empty',
      'x=range(1,2,0)': 'its step is 0',
      'x=range(5000000)': 'more than 1,000,000 values',
      'x=choice(choice(1,2),3)': 'a sweep in a sweep',
      'x=interval(2,1)': '2.0 must be smaller than 1.0',
      'hydra/sweeper=optuna': "train --help doesn't tell",
    };
    const lines = Object.keys(refused).map((each) => [each]);
    expect(answers(['train'], lines)).toEqual(
      Object.values(refused).map((why) => ({ error: expect.stringContaining(why) })),
    );
  });

  // Numbers as values, and what Optuna's sweeper would make of the overrides.
  const PARAMS = [
    ...[
      'a: range(1, 10, 3)',
      'b: range(-1, 2.2, 0.5)',
      'c: sort(range(5, 1, -1))',
      'd: shuffle(range(1, 5))',
    ],
    ...['e: interval(1, 5)', 'f: "int(interval(1, 5))"', 'g: "tag(log, interval(1e-5, 0.1))"'],
    ...['h: int(tag(log, interval(1, 100)))', 'i: choice(1, 2.5, x, true)', 'j: x,y', 'k: 7'],
  ];
  const THEIRS = `import json, sys
from hydra_plugins.hydra_optuna_sweeper._impl import create_params_from_overrides
spaces, _ = create_params_from_overrides(sys.argv[1:])
print(json.dumps({name: [type(each).__name__, each._asdict()] for name, each in spaces.items()}))`;
  const optuna = (sampler: string, more = '') =>
    project({
      'train.py': TRAIN,
      'conf/model/a.yaml': 'kind: a\n',
      'conf/config.yaml': `defaults: [_self_, {model: a}, {override hydra/sweeper: optuna}, {override hydra/sweeper/sampler: ${sampler}}]
${PARAMS.map((line) => `${line[0]}: 0\n`).join('')}
hydra: {mode: MULTIRUN, sweeper: {n_trials: 30${more}}}
`,
    });

  soakTest("the configuration of Optuna's sweeper is a search in the same space", async () => {
    const words = PARAMS.map((line) => line.replace(': ', '=').replaceAll('"', ''));
    const { stdout, stderr } = spawnSync('python', ['-W', 'ignore', '-c', THEIRS, ...words], {
      encoding: 'utf8',
    });
    const theirs = new Map(Object.entries(JSON.parse(stdout || stderr)));
    const directory = optuna(
      'tpe',
      `, direction: maximize, sampler: {seed: 5}, params: {${PARAMS.map((line) => line.replace(/: (?!")(.*)/, ': "$1"'))}}`,
    );
    const { search } = await open({
      project: directory,
      hydra: { command: 'python train.py', overrides: [] },
      search: { metric: 'loss' },
    });
    expect(search).toMatchObject({
      method: 'tpe',
      trials: 30,
      seed: 5,
      metric: { name: 'loss', goal: 'maximize' },
    });
    const shuffled = (theirs.get('d') as [string, { choices: number[] }])[1].choices; // another order each time
    expect(shuffled.toSorted()).toEqual([1, 2, 3, 4]);
    const ours = search?.parameters.map(({ name, distribution: each }) => {
      if (each.kind === 'choice')
        return [name, ['CategoricalDistribution', { choices: name === 'd' ? shuffled : each.values }]];
      if (each.kind === 'range') {
        const isWhole = Number.isInteger(each.step);
        const ends = { low: each.first, high: each.first + (each.count - 1) * each.step };
        return isWhole
          ? [name, ['IntUniformDistribution', { ...ends, step: each.step }]]
          : [name, ['DiscreteUniformDistribution', { ...ends, q: each.step }]];
      }
      const kind = `${each.rounding === 'integer' ? 'Int' : ''}${each.log ? 'Log' : ''}UniformDistribution`;
      return [
        name,
        [kind, { low: each.min, high: each.max, ...(each.rounding === 'integer' ? { step: 1 } : {}) }],
      ];
    });
    expect(ours?.filter(([name]) => name !== 'k')).toEqual([...theirs]);
    const task = search?.taskOf(new Map([...'abcdefghij'].map((name) => [name, name === 'b' ? 2 : 1])));
    expect(task?.command).toMatchObject({
      words: expect.arrayContaining(['a=1', 'b=2.0', 'e=1.0', 'f=1', 'k=7', 'hydra.mode=RUN']),
    });
  });

  test("a search that is configured for Optuna's sweeper runs to its end", async () => {
    const directory = optuna('random', ', params: {a: "range(0,3)", b: "choice(0.5,2)"}');
    expect(
      await refusal(
        open({
          project: directory,
          hydra: { command: 'python train.py', overrides: ['hydra/sweeper/sampler=tpe'] },
        }),
      ),
    ).toContain('compares what the function returns');
    const experiment = new Experiment(2, { PATH: path });
    onTestFinished(() => experiment.close());
    spawnSync('cp', ['-r', `${directory}/.`, experiment.project]);
    writeFileSync(
      join(experiment.project, 'train.py'),
      `import os\n${TRAIN}`.replace(
        'print(HydraConfig.get().job.num, cfg.model.kind)',
        `open(os.environ["GPU_OWNER_RESULT"], "w").write('{"loss": %s}' % (cfg.a * cfg.b))`,
      ),
    );
    const search = ['--trials', '3', '--metric', 'loss'];
    const { code, stdout, stderr } = await experiment.run([
      ...['run', '--gpus', '2', ...search, '--hydra', 'python train.py'],
    ]);
    expect(code, stderr).toBe(0);
    expect(stdout).toContain('3 completed');
    const runs = join(experiment.project, 'results_grid/runs');
    const names = readdirSync(runs);
    expect(names).toHaveLength(3);
    for (const name of names)
      expect(readFileSync(join(runs, name, '.hydra/overrides.yaml'), 'utf8')).toMatch(/^- a=[0-3]\n- b=/);
  });

  test('names the Python that has no Hydra, and how to install it', async () => {
    const directory = project({ python: '#!/bin/sh\nexec python3 -S "$@"\n' });
    chmodSync(join(directory, 'python'), 0o755);
    const asked = (command: string) =>
      refusal(open({ project: directory, hydra: { command, overrides: ['x=1'] } }));
    expect(await asked('./python train.py')).toContain(
      "./python doesn't find 'hydra': ./python -m pip install hydra-core",
    );
    await expect(asked('./python3.1 train.py')).rejects.toThrow(/^\.\/python3\.1 can't read .*ENOENT/);
  });

  test('is no sweep beside another one', async () => {
    expect(await refusal(open({ hydra: { command: 'train', overrides: [] }, grid: ['a=1'] }))).toContain(
      '--grid is given, too',
    );
  });
});
