// Sweep files of W&B with programs that use wandb from PyPI, offline.
import { writeFileSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { install } from '../../examples/recipes.ts';
import { whyUnchanged } from '../../support/changes.ts';
import { Experiment } from '../../support/experiment.ts';

const REQUIREMENTS = '../../test/sweeps/files/fixtures/requirements.txt';
const unchanged = whyUnchanged([
  ...['lib/sweeps/files', 'lib/sweeps/worker/wandb-run.ts', 'test/sweeps/files/wandb-real*'],
]);
const { venv, missing } =
  unchanged === null ? install(REQUIREMENTS, 240) : { venv: null, missing: unchanged };

const TRAIN = `import json, sys, wandb

with wandb.init(config={"lr": 99, "own": 1}) as run:
    run.define_metric("acc", summary="max")
    print(json.dumps({"arguments": sys.argv[1:], "config": dict(run.config)}))
    for step in range(3):
        acc = [0.1, 0.9, 0.3][step]
        run.log({"val_loss": run.config["lr"] + 0.5**step, "nested": {"step": step}, "acc": acc, "page": wandb.Html("x")})
    run.summary["best"] = 1e-7
`;

describe.skipIf(missing !== null)(`with wandb from PyPI${missing === null ? '' : `: ${missing}`}`, () => {
  let experiment: Experiment;
  beforeEach(() => {
    experiment = new Experiment(2, {
      PATH: `${join(venv ?? '', 'bin')}${delimiter}${process.env.PATH}`,
      WANDB_MODE: 'offline',
    });
    writeFileSync(join(experiment.project, 'train.py'), TRAIN);
  });
  afterEach(() => experiment.close());

  const sweep = async (lines: string): Promise<Record<string, string>[]> => {
    writeFileSync(join(experiment.project, 'sweep.yaml'), `program: train.py\n${lines}`);
    const { code, stderr } = await experiment.run(['run', '--gpus', '2', 'sweep.yaml']);
    expect(code, stderr).toBe(0);
    const { stdout } = await experiment.run(['export']);
    const [header = [], ...rows] = stdout
      .trim()
      .split(/\r?\n/)
      .map((line) => line.split(','));
    return rows.map((cells) => Object.fromEntries(header.map((name, at) => [name, cells[at] ?? ''])));
  };

  test('a run has the parameters in wandb.config, and its table what wandb.log() got', async () => {
    const rows = await sweep(
      'method: grid\nparameters:\n  lr: {values: [0.1, 1.0e-5]}\n  o: {parameters: {m: {value: 0.9}}}\n',
    );
    const row = rows.find(({ task_id }) => task_id === 'sweep_0');
    const names = ['lr', 'o.m', 'val_loss', 'nested.step', 'best'];
    expect(names.map((name) => Number(row?.[name]))).toEqual([0.1, 0.9, 0.35, 2, 1e-7]);
    const columns = Object.keys(row ?? {})
      .filter((name) => /^(acc|page)/.test(name))
      .sort();
    expect(columns.map((name) => [name, row?.[name]])).toEqual([
      ['acc', '0.9'],
      ['acc.max', '0.9'],
    ]);
    expect(rows).toHaveLength(2);
    const { stdout } = await experiment.run(['logs', 'sweep_1']);
    const [line = ''] = /^\{"arguments.*$/m.exec(stdout) ?? [];
    expect(JSON.parse(line)).toEqual({
      arguments: ['--lr=1.0e-5', "--o={'m': 0.9}"],
      config: { lr: 1e-5, own: 1, o: { m: 0.9 } },
    });
  });

  test('early_terminate stops a run by what it logs', async () => {
    writeFileSync(
      join(experiment.project, 'train.py'),
      `import time, wandb
with wandb.init() as run:
    for step in range(600):
        run.log({"val_loss": run.config["lr"]})
        time.sleep(0 if run.config["lr"] < 2 else 0.1)
`,
    );
    const rows = await sweep(
      'method: grid\nmetric: {name: val_loss}\nearly_terminate: {type: hyperband, min_iter: 2, eta: 2}\nparameters: {lr: {values: [1, 1.5, 2]}}\n',
    );
    const stopped = Number(rows.find(({ lr }) => lr === '2')?.stopped);
    expect(stopped).toBeGreaterThanOrEqual(2);
    expect(stopped).toBeLessThan(300); // half a minute
  });

  test('a run that has finished by itself is not stopped early', async () => {
    // The end is in the file with the first values.
    experiment.env.WANDB__TRANSACTION_LOG_FLUSH_INTERVAL = '60';
    writeFileSync(
      join(experiment.project, 'train.py'),
      `import time, wandb
with wandb.init() as run:
    for step in range(9):
        run.log({"val_loss": run.config["lr"]})
time.sleep(3)
`,
    );
    const rows = await sweep(
      'method: grid\nmetric: {name: val_loss}\nearly_terminate: {type: hyperband, min_iter: 2, eta: 2}\nparameters: {lr: {values: [1, 1.5, 2]}}\n',
    );
    expect(rows.map(({ stopped = '', val_loss }) => `${val_loss} ${stopped}`).sort()).toEqual([
      '1 ',
      '1.5 ',
      '2 ',
    ]);
  });

  test('a search finds its metric in what wandb.log() got', async () => {
    const rows = await sweep(
      'method: random\nrun_cap: 3\nmetric: {name: val_loss}\nparameters:\n  lr: {min: 0.1, max: 0.9}\n',
    );
    expect(rows).toHaveLength(3);
    const { stdout } = await experiment.run(['status', '--json']);
    const lowest = Math.min(...rows.map(({ val_loss }) => Number(val_loss)));
    expect(JSON.parse(stdout).search.best[0].value).toBe(lowest);
  });
});
