// The same sweeps by hydra-core from PyPI and by `exp run --hydra`.
import { spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { install } from '../../examples/recipes.ts';
import { whyUnchanged } from '../../support/changes.ts';
import { Experiment } from '../../support/experiment.ts';
import { open } from './sweeps.ts';

const unchanged = whyUnchanged([
  'lib/experiments/sweep',
  'test/experiments/sweep/hydra*',
  'examples/recipes/requirements.txt',
]);
const { venv, missing } =
  unchanged === null ? install('requirements.txt', 180) : { venv: null, missing: unchanged };

const TRAIN = `import hydra
from hydra.core.hydra_config import HydraConfig

@hydra.main(config_path="conf", config_name="config", version_base="1.3")
def main(cfg):
    print(HydraConfig.get().job.num, cfg.model.kind)

main()
`;
const SWEEPER = `import json, sys
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
for words in json.load(sys.stdin):
    overrides = OverridesParser.create().parse_overrides(words)
    print(json.dumps([job for batch in BasicSweeper.split_arguments(overrides, None) for job in batch]))
`;

describe.skipIf(missing !== null)(
  `with hydra-core from PyPI${missing === null ? '' : `: ${missing}`}`,
  () => {
    let experiment: Experiment;
    const bin = join(venv ?? '', 'bin');

    beforeEach(() => {
      experiment = new Experiment(2, { PATH: `${bin}${delimiter}${process.env.PATH}` });
      const files = {
        'train.py': TRAIN,
        'conf/config.yaml':
          'defaults: [_self_, {model: a}]\nlr: 0.1\nhydra: {sweep: {dir: "logs/${now:%Y}", subdir: "${hydra.job.num}-${hydra.job.override_dirname}"}}\n',
        ...Object.fromEntries(
          ['a', 'b', 'big'].map((name) => [`conf/model/${name}.yaml`, `kind: ${name}\n`]),
        ),
      };
      for (const [name, text] of Object.entries(files)) {
        mkdirSync(dirname(join(experiment.project, name)), { recursive: true });
        writeFileSync(join(experiment.project, name), text);
      }
    });
    afterEach(() => experiment.close());

    const runs = (directory: string) =>
      (readdirSync(directory, { recursive: true }) as string[])
        .filter((name) => name.endsWith('overrides.yaml'))
        .sort()
        .map((name) => [name, readFileSync(join(directory, name), 'utf8')]);

    test('runs lie in the same directories with the same overrides as in a multirun', async () => {
      const overrides = ['lr=0.1,1e-2', 'model=glob(b*)'];
      const { project } = experiment;
      const { status, stderr } = spawnSync(join(bin, 'python'), ['train.py', '-m', ...overrides], {
        cwd: project,
        encoding: 'utf8',
      });
      expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
      const theirs = runs(join(project, 'logs'));
      expect(theirs).toHaveLength(4);
      spawnSync('mv', [join(project, 'logs'), join(project, 'theirs')]);
      const ours = await experiment.run(['run', '--gpus', '2', '--hydra', 'python train.py', ...overrides]);
      expect(ours.code, ours.stderr).toBe(0);
      expect(runs(join(project, 'logs'))).toEqual(theirs);
    });

    test('overrides are expanded as by the sweeper of Hydra', async () => {
      const all = [
        ['lr=1e-3,1e-5,0.5e2,1e16', 'model=a,b'],
        ['x=range(1,10,3)', 'y=range(5)', 'z=range(10,1,-4)'],
        ['x=range(1,2,0.25)', 'y=float(range(1,3))', 'z=int(1.2,2.7)'],
        ['x=str(1,2)', 'y=choice([1,2],[3])', 'z={a:1,b:2},{a:3}'],
        ['+y=1,2', '++z=true,False', "q='a,b',c", 'p=a\\,b,c'],
        ['x=sort(3,1,2)', 'y=sort(choice(b,c,a),reverse=true)', 'z=tag(t,choice(a,b))'],
        ['x=1_000,+2,-0.5,.5', 'y= a , b', 'optimizer/sched@opt=cos,lin', 'data.path=/a/b-c,../d'],
        ['x=', 'x=5', 'y=null,true', 'z=int(range(0,3))', 'x=1,2'],
      ];
      const { stdout, stderr } = spawnSync(join(bin, 'python'), ['-c', SWEEPER], {
        input: JSON.stringify(all),
        encoding: 'utf8',
      });
      const theirs = stdout
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line));
      expect(theirs, stderr).toHaveLength(all.length);
      for (const [i, overrides] of all.entries()) {
        const sweep = await open({ hydra: { command: 'train', overrides } });
        const ours = Array.from(sweep.tasks(), ({ command }) =>
          'words' in command ? command.words.slice(1).filter((word) => !word.startsWith('hydra.')) : [],
        );
        expect(ours).toEqual(theirs[i]);
      }
    });
  },
);
