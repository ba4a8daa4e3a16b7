// Command lines of Hydra, expanded by hydra-core from PyPI.
import { spawnSync } from 'node:child_process';
import { chmodSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { placeOf, type Sweep } from '../../../lib/sweeps/files/index.ts';
import { taskId } from '../../../lib/sweeps/task/index.ts';
import { install } from '../../examples/recipes.ts';
import { Experiment } from '../../support/experiment.ts';
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

const isPlace = (word: string) => /^hydra\.(?:run\.dir|sweep\.dir|job\.num|job\.id)=/.test(word);
const wordsOf = (sweep: Sweep, keep: (word: string) => boolean) =>
  Array.from(sweep.tasks(), ({ command }) => ('words' in command ? command.words : []).filter(keep));
const lines = async (overrides: string[], command?: string) =>
  wordsOf(await hydra(overrides, command), (word) => !isPlace(word)).map((words) => words.join(' '));

describe.skipIf(missing !== null)(`a command line of Hydra${missing === null ? '' : `: ${missing}`}`, () => {
  test('is a grid of its overrides, whose runs lie where Hydra puts them', async () => {
    const sweep = await hydra(['lr=0.1,0.01', 'model=a,b', 'seed=1'], 'python3 train.py');
    const [first, , , last] = Array.from(sweep.tasks());
    expect(sweep.size).toBe(4);
    expect(first).toMatchObject({ phase: 'grid', parameters: { lr: 0.1, model: 'a', seed: 1 } });
    expect(last?.command).toEqual({
      words: [
        ...['python3', 'train.py', 'lr=0.01', 'model=b', 'seed=1'],
        expect.stringMatching(/^hydra\.sweep\.dir=multirun\/\d{4}-\d\d-\d\d\/\d\d-\d\d-\d\d$/),
        'hydra.run.dir=${hydra.sweep.dir}/${hydra.sweep.subdir}',
        ...['hydra.job.num=3', 'hydra.job.id=3'],
      ],
    });
  });

  test('keeps the places of runs that the queue knows, and gives new ones others', async () => {
    const before = await hydra(['lr=1,2']);
    const known = Array.from(
      before.tasks(),
      ({ parameters, command }) => [taskId(parameters), placeOf(command)] as const,
    );
    const directory = 'multirun/then';
    const numbers = new Map(known.map(([id, place]) => [id, place?.number as number]));
    const sweep = (await hydra(['lr=0,1,2'])).placed?.({ directory, numbers }) as Sweep;
    expect(Array.from(sweep.tasks(), ({ command }) => placeOf(command))).toEqual([
      { directory, number: 2 },
      { directory, number: 0 },
      { directory, number: 1 },
    ]);
  });

  test.each([
    [['lr=1e-3,1_000,true,null'], ['lr=0.001', 'lr=1000', 'lr=True', 'lr=null']],
    [['x=range(1,2,0.5)'], ['x=1.0', 'x=1.5']],
    [['x=int(interval(-1.5,1.9))'], ['x=-1', 'x=0', 'x=1']],
    [
      ['x=[1,2],{a:1,b:2}', "y='a,b'"],
      ["x=[1,2] y='a,b'", "x={a:1,b:2} y='a,b'"],
    ],
    [['x=shuffle(sort(3,1,2))'], ['x=1', 'x=2', 'x=3']],
    [
      ['+y=1', '++z=a', '~w', 'db@pkg=x,y'],
      ['+y=1 ++z=a ~w db@pkg=x', '+y=1 ++z=a ~w db@pkg=y'],
    ],
    [
      ['x=1', 'x=2,3'],
      ['x=2', 'x=3'],
    ],
    [['x='], ['x=']],
  ])('has the runs of %j', async (overrides, expected) => {
    expect((await lines(overrides)).map((line) => line.replace('train ', ''))).toEqual(expected);
  });

  test('a task is what its values mean, whichever way Hydra writes them', async () => {
    const sweep = await hydra(['lr=1e-3', 'n=1_0', "name='a b'", 'on=TRUE', '~x']);
    expect(Array.from(sweep.tasks(), ({ parameters }) => taskId(parameters))).toEqual([
      taskId({ lr: 0.001, n: 10, name: 'a b', on: true, '~x': '' }),
    ]);
  });

  test.each([
    ['python3 train.py -m lr=1,2', ['python3 train.py lr=1', 'python3 train.py lr=2']],
    ['python3 -m pkg.train --multirun lr=1,2', ['python3 -m pkg.train lr=1', 'python3 -m pkg.train lr=2']],
    ["train --config-name 'a b' lr=1", ['train --config-name a b lr=1']],
    ['train lr=1 hydra/launcher=joblib', ['train lr=1']],
    ['train lr=1 hydra.job.chdir=true', ['train lr=1 hydra.job.chdir=True']],
  ])('may be one text: %s', async (command, expected) => {
    expect(await lines([], command)).toEqual(expected);
  });

  test('a search of it puts each run below the output directory', async () => {
    const sweep = await open({
      hydra: { command: 'train', overrides: ['x=1,2'] },
      outputDirectory: "it's",
      search: { method: 'random' },
    });
    for (const { parameters, command } of sweep.tasks()) {
      const place = `hydra.run.dir='it\\'s/runs/${taskId(parameters).slice(0, 14)}'`;
      expect(command).toEqual({ words: ['train', `x=${parameters.x}`, place] });
    }
  });

  test.each([
    ['x=range(16,257)', { kind: 'range', first: 16, step: 1, count: 241 }],
    ['x=shuffle(range(0,101,5))', { kind: 'range', first: 0, step: 5, count: 21 }],
    ['x=range(0,1.2,0.4)', { kind: 'range', first: 0, step: 0.4, count: 3 }],
    ['x=int(tag(log,interval(1,99)))', { kind: 'uniform', min: 1, max: 99, log: true, rounding: 'integer' }],
    ['x=1,2,3', { kind: 'choice' }],
  ])('a search knows the order of its numbers: %s', async (override, distribution) => {
    const { search } = await open({
      hydra: { command: 'train', overrides: [override] },
      search: { method: 'tpe', metric: 'loss' },
    });
    expect(search?.parameters[0]?.distribution).toMatchObject(distribution);
    const [task] = [search?.taskOf(new Map([['x', 35]]))];
    expect(task?.command).toMatchObject({
      words: expect.arrayContaining([expect.stringMatching(/^x=35(\.0)?$/)]),
    });
  });

  test('its own hydra.sweep.dir stays', async () => {
    const [words] = wordsOf(await hydra(['hydra.sweep.dir=out', 'x=1']), isPlace);
    expect(words?.filter((word) => word.startsWith('hydra.sweep.dir'))).toEqual(['hydra.sweep.dir=out']);
  });

  test('asks a program of Hydra where runs go, and what groups have', async () => {
    const directory = project({
      'train.py': '# import hydra',
      run: '#!/bin/sh\nfor word; do template=$word; done\necho "asked without $CUDA_VISIBLE_DEVICES" >&2\necho "gpu-owner asks:logs/now"; echo "null {\'_target_\': \'BasicSweeper\'}"; echo "model: a, b, big"\n',
    });
    chmodSync(join(directory, 'run'), 0o755);
    const source = { project: directory };
    const globbed = await open({
      ...source,
      hydra: { command: './run train.py', overrides: ['model=glob(*,exclude=a)'] },
    });
    expect(wordsOf(globbed, (word) => /^(model|hydra.sweep.dir)=/.test(word))).toEqual([
      ['model=b', 'hydra.sweep.dir=logs/now'],
      ['model=big', 'hydra.sweep.dir=logs/now'],
    ]);
    expect(
      await refusal(open({ ...source, hydra: { command: './run train.py', overrides: ['model=glob(z*)'] } })),
    ).toContain("none of a, b, big in 'model' matches");
    writeFileSync(join(directory, 'run'), '#!/bin/sh\necho started >started; exit 1\n');
    writeFileSync(join(directory, 'train.py'), 'print(1)');
    const plain = await open({ ...source, hydra: { command: './run train.py', overrides: ['x=1,2'] } });
    expect(plain.size).toBe(2); // another program isn't started: it would train
  });

  test.each([
    [['train.py', 'lr=1'], "'train.py' is no override"],
    [
      ['x=rnage(1,2)'],
      "'x=rnage(1,2)': HydraException while evaluating 'rnage(1,2)': Unknown function 'rnage'",
    ],
    [["x='a"], "'x='a': token recognition error"],
    [['x=range(3,1)'], 'the sweep would be empty'],
    [['x=range(1,2,0)'], 'its step is 0'],
    [['x=range(5000000)'], 'more than 1,000,000 values'],
    [['x=choice(choice(1,2),3)'], 'a sweep in a sweep'],
    [['x=interval(2,1)'], '2.0 must be smaller than 1.0'],
    [['x=interval(0,1)'], 'values that can be counted'],
    [['+x=1,2', 'x=3'], "parameter 'x' is given twice"],
    [['hydra/sweeper=optuna'], "train --help doesn't tell"],
  ])('is refused with a remedy: %j', async (overrides, why) => {
    expect(await refusal(hydra(overrides))).toContain(why);
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

  test("the configuration of Optuna's sweeper is a search in the same space", async () => {
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
      if (each.kind === 'normal') return [name, each];
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

  test.each([
    ['tpe', '', {}, 'compares what the function returns'],
    ['nsgaii', '', { metric: 'loss' }, "NSGAIISampler isn't supported; add hydra/sweeper/sampler=tpe"],
    [
      'tpe',
      ', sampler: {multivariate: true}',
      { metric: 'loss' },
      'write hydra.sweeper.sampler.multivariate=false',
    ],
    ['tpe', ', direction: [minimize, maximize]', { metric: 'loss' }, 'write minimize or maximize'],
    ['tpe', ', search_space: {a: {type: int}}', { metric: 'loss' }, 'write hydra.sweeper.params'],
    ['tpe', ', params: {a: "${b}"}', { metric: 'loss' }, 'write the values themselves'],
    ['grid', ', params: {a: "range(1,7)", b: "range(7)"}', {}, 'write hydra.sweeper.n_trials=42'],
  ])("what Optuna's sweeper does otherwise is refused: %s%s", async (sampler, more, search, why) => {
    const asked = open({
      project: optuna(sampler, more),
      hydra: { command: 'python train.py', overrides: [] },
      search,
    });
    expect(await refusal(asked)).toContain(why);
  });

  test("a search that is configured for Optuna's sweeper runs to its end", async () => {
    const experiment = new Experiment(2, { PATH: path });
    onTestFinished(() => experiment.close());
    spawnSync('cp', [
      '-r',
      `${optuna('random', ', params: {a: "range(0,3)", b: "choice(0.5,2)"}')}/.`,
      experiment.project,
    ]);
    writeFileSync(
      join(experiment.project, 'train.py'),
      TRAIN.replace('HydraConfig.get().job.num', 'f"loss={cfg.a * cfg.b}"'),
    );
    const search = ['--trials', '5', '--metric', 'loss', '--metric-pattern', 'loss=(.*?) '];
    const { code, stdout, stderr } = await experiment.run([
      ...['run', '--gpus', '2', ...search, '--hydra', 'python train.py'],
    ]);
    expect(code, stderr).toBe(0);
    expect(stdout).toContain('5 completed');
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

  test('runs lie in the same directories with the same overrides as in a multirun', async () => {
    const experiment = new Experiment(2, { PATH: path });
    onTestFinished(() => experiment.close());
    const { project } = experiment;
    const files = {
      'train.py': TRAIN,
      'conf/config.yaml':
        'defaults: [_self_, {model: a}]\nlr: 0.1\nhydra: {sweep: {dir: "logs/${now:%Y}", subdir: "${hydra.job.num}-${hydra.job.override_dirname}"}}\n',
      ...Object.fromEntries(['a', 'b', 'big'].map((name) => [`conf/model/${name}.yaml`, `kind: ${name}\n`])),
    };
    for (const [name, text] of Object.entries(files)) {
      mkdirSync(dirname(join(project, name)), { recursive: true });
      writeFileSync(join(project, name), text);
    }
    const runs = (directory: string) =>
      (readdirSync(directory, { recursive: true }) as string[])
        .filter((name) => name.endsWith('overrides.yaml'))
        .sort()
        .map((name) => [name, readFileSync(join(directory, name), 'utf8')]);
    const overrides = ['lr=0.1,1e-2', 'model=glob(b*)'];
    const multirun = spawnSync('python', ['train.py', '-m', ...overrides], {
      cwd: project,
      encoding: 'utf8',
    });
    expect(multirun.status, multirun.stderr).toBe(0);
    const theirs = runs(join(project, 'logs'));
    expect(theirs).toHaveLength(4);
    spawnSync('mv', [join(project, 'logs'), join(project, 'theirs')]);
    const run = () => experiment.run(['run', '--gpus', '2', '--hydra', 'python train.py', ...overrides]);
    const first = await run();
    expect(first.code, first.stderr).toBe(0);
    expect(runs(join(project, 'logs'))).toEqual(theirs);
    expect((await run()).stdout).not.toContain('4 new'); // the same tasks
    expect(runs(join(project, 'logs'))).toEqual(theirs);
  });
});
