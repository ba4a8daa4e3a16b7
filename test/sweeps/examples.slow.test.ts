// examples/sweep and the demo, as a user would run them, on simulated GPUs.
import { spawnSync } from 'node:child_process';
import { chmodSync, cpSync, mkdirSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { parse } from 'csv-parse/sync';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { launcher, Machine, python, root } from '../support/machine.ts';

const examples = join(root, 'examples');
/** The `python3` of the examples: one that starts fast. */
const PATH = `${dirname(python)}:${process.env.PATH}`;

describe('examples/sweep', () => {
  let machine: Machine;
  let project: string;

  beforeEach(() => {
    machine = new Machine(4);
    project = join(machine.directory, 'project');
    cpSync(join(examples, 'sweep'), project, { recursive: true });
  });
  afterEach(() => machine.close());

  function run(args: string[], env: Record<string, string> = {}) {
    return machine.run([launcher, 'exp', ...args], {
      cwd: project,
      env: { PATH, SECONDS_PER_EPOCH: '0', PYTHONDONTWRITEBYTECODE: '1', ...env },
    });
  }

  function table(directory: string): Record<string, string>[] {
    return parse(readFileSync(join(project, directory, 'final_results.csv'), 'utf8'), { columns: true });
  }

  test('its sweep files have 240 tasks, in an output directory for each dataset', async () => {
    const { code, stdout, stderr } = await run(['run', '--dry-run', '--json']);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    const plan = JSON.parse(stdout);
    expect(plan.size).toBe(240);
    expect(plan.phases.map(({ phase, size }: { phase: string; size: number }) => [phase, size])).toEqual([
      ['exp1_vary_width', 60],
      ['exp2_datasets', 120],
      ['exp3_vary_depth', 40],
      ['exp3_plain', 20],
    ]);
    expect(
      plan.phases.flatMap(({ outputDirectories }: { outputDirectories: string[] }) => outputDirectories),
    ).toEqual([
      ...['results_mnist', 'results_exp2_cifar10', 'results_exp2_svhn', 'results_exp2_fashion'],
      ...['results_exp3_vary_depth', 'results_exp3_plain'],
    ]);
  });

  test.each([
    ['train.py', ['loss', 'accuracy', 'epochs']],
    ['train_with_helper.py', ['loss', 'epochs', 'accuracy']],
  ])('%s reports its results', async (script, results) => {
    const args = ['run', '--gpus', '2', '--grid', 'width_factor=1,2', 'seed=42', '--', 'python3', script];
    const { code, stderr } = await run(args, { PYTHONPATH: join(root, 'python') });
    expect(code, stderr).toBe(0);
    const rows = table('results_grid');
    expect(rows.map(({ task_id }) => task_id).sort()).toEqual(['grid_0_42', 'grid_1_42']);
    expect(Object.keys(rows[0] ?? {})).toEqual(['task_id', 'width_factor', 'seed', ...results]);
    for (const { loss, epochs } of rows) {
      expect(Number(loss)).toBeGreaterThan(0);
      expect(epochs).toBe('5');
    }
  });

  test.each([
    ['train.py', ['{"width_factor": 2, "lr": 0.1, "seed": 42}']],
    ['train_with_helper.py', []],
  ])('%s can be started by hand', async (script, args) => {
    const { code, stdout, stderr } = await machine.run([python, script, ...args], {
      cwd: project,
      env: { SECONDS_PER_EPOCH: '0', PYTHONPATH: join(root, 'python'), PYTHONDONTWRITEBYTECODE: '1' },
    });
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(JSON.parse(stdout.trim().split('\n').at(-1) ?? '')).toHaveProperty('accuracy');
  });

  test('train.sh is a shell script with its parameters as arguments', async () => {
    const grid = ['--grid', 'width=1,2', 'seed=42..43'];
    const { code, stderr } = await run([
      'run',
      '--gpus',
      'all',
      ...grid,
      '--',
      './train.sh',
      '{width}',
      '{seed}',
    ]);
    expect(code, stderr).toBe(0);
    const rows = table('results_grid');
    expect(rows.map(({ width, seed }) => `${width} ${seed}`).sort()).toEqual([
      '1 42',
      '1 43',
      '2 42',
      '2 43',
    ]);
    for (const { loss, width } of rows) expect(Number(loss)).toBeGreaterThanOrEqual(1 / Number(width));
  });

  test('jobs.txt has a command per line', async () => {
    const { code, stderr } = await run(['run', '--gpus', 'all', '--commands', 'jobs.txt']);
    expect(code, stderr).toBe(0);
    const rows = table('results_jobs');
    expect(rows).toHaveLength(4);
    for (const { command, loss } of rows) {
      expect(command).toMatch(/^python3 train\.py /);
      expect(Number(loss)).toBeGreaterThan(0);
    }
  });

  test('train_ranks.sh runs torchrun with a port and GPUs of its own for each task', async () => {
    // torchrun and torch aren't needed for this: what stands for them is in fixtures/torch.
    const bin = join(machine.directory, 'bin');
    mkdirSync(bin);
    cpSync(join(import.meta.dirname, 'fixtures/torch/torchrun.py'), join(bin, 'torchrun'));
    chmodSync(join(bin, 'torchrun'), 0o755);
    const seen = join(machine.directory, 'seen');
    mkdirSync(seen);
    const { code, stderr } = await run(
      [
        'run',
        '--gpus',
        '4',
        '--gpus-per-task',
        '2',
        '--grid',
        'lr=0.1,0.01',
        'seed=42,43',
        '--',
        './train_ranks.sh',
      ],
      {
        PATH: `${bin}:${PATH}`,
        PYTHONPATH: join(import.meta.dirname, 'fixtures/torch'),
        RANKS: '2',
        SEEN: seen,
      },
    );
    expect(code, stderr).toBe(0);
    const rows = table('results_grid');
    expect(rows).toHaveLength(4);
    for (const { ranks } of rows) expect(ranks).toBe('2');
    const calls = readdirSync(seen).map((name) => JSON.parse(readFileSync(join(seen, name), 'utf8')));
    expect(calls).toHaveLength(4);
    for (const { address, gpus } of calls) {
      expect(address).toBe('127.0.0.1');
      expect(new Set(gpus.split(',')).size).toBe(2);
    }
    for (const a of calls) {
      for (const b of calls) {
        if (a !== b && a.from < b.to && b.from < a.to) {
          expect(a.port).not.toBe(b.port);
          expect(a.gpus.split(',').filter((gpu: string) => b.gpus.split(',').includes(gpu))).toEqual([]);
        }
      }
    }
  });
});

describe('the demo', () => {
  const demo = (directory: string, env: Record<string, string> = {}) =>
    spawnSync(
      process.execPath,
      ['--preserve-symlinks', '--preserve-symlinks-main', 'examples/demo-sweep.mjs'],
      {
        cwd: directory,
        env: { ...process.env, PATH, SECONDS_PER_EPOCH: '0', ...env },
        encoding: 'utf8',
        timeout: 100_000,
      },
    );

  test('ends with 240 rows for 240 tasks, of which 45 were done before, though it is killed in the middle', () => {
    const { status, stdout, stderr } = demo(root, {
      GPU_OWNER_LOCK_DIR: '/nonexistent',
      CUDA_VISIBLE_DEVICES: '7',
    });
    expect(stdout).not.toContain('NOT TRUE');
    expect(stdout.match(/^ok: /gm), stderr).toHaveLength(10);
    expect(stdout).toContain('ok: the tables have 240 rows (240)');
    expect(status).toBe(0);
  }, 120_000);
});
