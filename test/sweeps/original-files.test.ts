// Sweep files as the original system has them, through `exp run --dry-run`, `exp run` and `exp manager`. The expected tasks are in
// fixtures/original/tasks.json, which tasks.py beside it has made with PyYAML.
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse as parseCSV } from 'csv-parse/sync';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Experiment } from '../support/experiment.ts';
import { finished, output, python } from '../support/machine.ts';

const fixtures = join(import.meta.dirname, 'fixtures/original');
const files = readdirSync(fixtures).filter((name) => name.endsWith('.yaml'));

interface OriginalTask {
  task_id: string;
  phase: string;
  config: Record<string, unknown>;
  seed: number;
  output_dir: string;
}

const expected: OriginalTask[] = JSON.parse(readFileSync(join(fixtures, 'tasks.json'), 'utf8'));
/** Names count per phase here, and over all files there. */
const names = expected.map(({ phase, seed }, at) => {
  const before = expected.slice(0, at).filter((task) => task.phase === phase);
  return `${phase}_${before.length}_${seed}`;
});
const tables = [...new Set(expected.map(({ output_dir }) => output_dir))];

let experiment: Experiment;

beforeEach(() => {
  experiment = new Experiment(2);
  mkdirSync(join(experiment.project, 'configs'));
  for (const name of files) cpSync(join(fixtures, name), join(experiment.project, 'configs', name));
});
afterEach(() => experiment.close());

/** A task: the parameters of the original, and the seed, which is one here. */
const parametersOf = ({ config, seed }: OriginalTask) => {
  const { phase_name: _, output_dir: __, ...parameters } = config;
  return { ...parameters, seed };
};

function rows(directory: string): Record<string, string>[] {
  return parseCSV(readFileSync(join(experiment.project, directory, 'final_results.csv'), 'utf8'), {
    columns: true,
  });
}

async function planned() {
  const { code, stdout, stderr } = await experiment.run(['run', '--dry-run', '--json']);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  return JSON.parse(stdout);
}

/** A row for every task, as a worker of the original has them written by pandas. */
function writeRows(columns: readonly string[], directories = tables): void {
  const cell = (value: unknown) =>
    value === true ? 'True' : value === false ? 'False' : String(value ?? '');
  for (const directory of directories) {
    mkdirSync(join(experiment.project, directory), { recursive: true });
    const lines = expected
      .filter(({ output_dir }) => output_dir === directory)
      .map((task) => {
        const parameters: Record<string, unknown> = parametersOf(task);
        // Numbers, whatever they were in the file.
        return columns.map((key) => cell(key === 'lr' ? Number(parameters.lr) : parameters[key]));
      });
    const text = [[...columns, 'accuracy'], ...lines.map((line) => [...line, '0.5'])];
    writeFileSync(
      join(experiment.project, directory, 'final_results.csv'),
      `${text.map((line) => line.join(',')).join('\n')}\n`,
    );
  }
}

const hasYAML = spawnSync('python3', ['-c', 'import yaml']).status === 0;
test.skipIf(!hasYAML)(
  `what is expected is what PyYAML reads${hasYAML ? '' : ': python3 has no PyYAML'}`,
  () => {
    const paths = files.map((name) => join(fixtures, name));
    const { stdout, stderr } = spawnSync('python3', [join(fixtures, 'tasks.py'), ...paths], {
      encoding: 'utf8',
    });
    expect(stderr).toBe('');
    expect(JSON.parse(stdout)).toEqual(expected);
  },
);

test('a dry run has every combination with every seed, and 42 where there is none', async () => {
  const { size, phases, tasks } = await planned();
  expect(size).toBe(expected.length);
  expect(phases.map(({ phase, size }: { phase: string; size: number }) => [phase, size])).toEqual([
    ['exp1_vary_width', 6],
    ['exp2_lr', 4],
    ['exp2_lr_svhn', 1],
    ['exp3_depth', 8],
    ['exp3_wide', 2],
    ['exp3_cifar', 4],
  ]);
  expect(tasks.map(({ parameters }: OriginalTask & { parameters: object }) => parameters)).toEqual(
    expected.map(parametersOf),
  );
  expect(tasks.map(({ outputDirectory }: { outputDirectory: string }) => outputDirectory)).toEqual(
    expected.map(({ output_dir }) => output_dir),
  );
});

test('tasks of exp run get what the original gives, and their names and rows have the seed', async () => {
  const script = 'cp "$GPU_OWNER_TASK" tasks/$$; printf \'{"accuracy": 0.5}\' > "$GPU_OWNER_RESULT"';
  writeFileSync(join(experiment.project, 'train.sh'), script);
  mkdirSync(join(experiment.project, 'tasks'));
  const { code, stderr } = await experiment.run(['run', '--gpus', '2', '--', 'sh', 'train.sh']);
  expect(code, stderr).toBe(0);
  const seen = readdirSync(join(experiment.project, 'tasks')).map((file) =>
    JSON.parse(readFileSync(join(experiment.project, 'tasks', file), 'utf8')),
  );
  for (const { name, phase, seed, parameters, output_dir } of seen) {
    const task = expected[names.indexOf(name)] as OriginalTask;
    expect({ phase, seed, output_dir }).toEqual({
      phase: task.phase,
      seed: task.seed,
      output_dir: task.output_dir,
    });
    expect(parameters).toEqual(parametersOf(task));
  }
  expect(seen).toHaveLength(25);
  const found = tables.flatMap(rows);
  expect(found.map(({ task_id }) => task_id).sort()).toEqual([...names].sort());
  for (const { task_id = '', seed, lr } of found) {
    const task = expected[names.indexOf(task_id)] as OriginalTask;
    expect(task_id).toMatch(new RegExp(`_${seed}$`));
    expect(Number(lr)).toBe(Number(task.config.lr));
  }
  expect(rows('results_cifar10_lr').map(({ lr }) => lr)).toContain('5e-4');
  expect(rows('results_cifar10_lr').map(({ seed }) => seed)).toEqual(['42', '42', '42', '42']);
});

test('a worker of exp manager gets what the original sends', async () => {
  const child = experiment.start(['manager', '--listen', '0']);
  const ended = finished(child);
  const port = /workers can ask for tasks at 127\.0\.0\.1:(\d+)/.exec(
    await output(child, /workers can ask for tasks at \S+:\d+/),
  )?.[1] as string;
  const worker = join(fixtures, 'one_recv_worker.py');
  const { code, stdout, stderr } = await experiment.machine.run([python, worker, port]);
  expect(code, stderr).toBe(0);
  const tasks = stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as OriginalTask);
  expect(tasks).toEqual(
    expected.map((task, at) => ({
      ...task,
      task_id: names[at],
      config: { ...task.config, seed: task.seed },
      status: 'assigned',
      assigned_to: 'gpu0',
      assigned_at: expect.any(Number),
    })),
  );
  expect((await ended).code).toBe(0);
  expect(tables.flatMap(rows)).toHaveLength(expected.length);
});

test('rows that pandas wrote count, with numbers for 5e-4, and without a seed where there is only one', async () => {
  const columns = ['dataset', 'width_factor', 'lr', 'optimizer', 'depth', 'augment', 'dropout'];
  writeRows([...columns, 'seed']);
  expect((await planned()).counts).toMatchObject({ new: 0, completed: 25 });
  for (const name of ['config_exp1.yaml', 'config_exp3.yaml']) {
    rmSync(join(experiment.project, 'configs', name));
  }
  writeRows(columns, ['results_cifar10_lr', 'results_svhn_lr']);
  expect((await planned()).counts).toMatchObject({ new: 0, completed: 5 });
});
