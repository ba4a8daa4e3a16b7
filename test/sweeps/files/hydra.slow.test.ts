// Command lines of Hydra, expanded by hydra-core from PyPI.
import { spawnSync } from 'node:child_process';
import { chmodSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import type { Sweep } from '../../../lib/sweeps/files/index.ts';
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
    writeFileSync(
      join(directory, 'run'),
      `#!/bin/sh\necho "gpu-owner asks:null {'_target_': 'x.OptunaSweeper'}"; echo\n`,
    );
    expect(answers(['./run', 'train.py'], [['x=1,2']], directory)).toEqual([
      { error: expect.stringContaining("OptunaSweeper can't run here; add hydra/sweeper=basic") },
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

  test('runs to its end, and each run has its own directory', async () => {
    const directory = project({
      'train.py': TRAIN,
      'conf/model/a.yaml': 'kind: a\n',
      'conf/config.yaml': 'defaults: [_self_, {model: a}]\na: 0\nb: 0\n',
    });
    const experiment = new Experiment(2, { PATH: path });
    onTestFinished(() => experiment.close());
    spawnSync('cp', ['-r', `${directory}/.`, experiment.project]);
    const words = ['python train.py', 'a=range(0,2)', 'b=choice(0.5,2)'];
    const { code, stdout, stderr } = await experiment.run(['run', '--gpus', '2', '--hydra', ...words]);
    expect(code, stderr).toBe(0);
    expect(stdout).toContain('4 completed');
    const runs = join(experiment.project, 'results_grid/runs');
    const names = readdirSync(runs);
    expect(names).toHaveLength(4);
    for (const name of names)
      expect(readFileSync(join(runs, name, '.hydra/overrides.yaml'), 'utf8')).toMatch(/^- a=[01]\n- b=/);
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
