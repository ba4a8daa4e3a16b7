// The tables of docs/conventions.md about the distributed experiments, of which each line is run, and those of docs/results.md
// about edited tables.
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Finished, launcher, Machine, python, root } from '../support/machine.ts';
import { section } from '../support/pages.ts';

const page = section('docs/conventions.md', '## From the distributed experiments');

function rowsOf(head: string): string[][] {
  const table = page.slice(page.indexOf(head)).split('\n\n')[0] as string;
  const rows = table.split('\n').slice(2);
  return rows.map((row) => row.slice(2, -2).split(/ \| ?/));
}

const codeOf = (cell = '') => [...cell.matchAll(/`([^`]+)`/g)].map(([, code]) => code as string);

const commands = rowsOf('| before | now | you see |');
const inProgram = rowsOf('| in the runner | in the program |');

let machine: Machine;
let project: string;
let env: Record<string, string>;

beforeAll(() => {
  machine = new Machine(4);
  project = join(machine.directory, 'project');
  cpSync(join(root, 'examples/sweep'), project, { recursive: true });
  const configs = join(project, 'configs');
  for (const name of readdirSync(configs)) {
    const text = readFileSync(join(configs, name), 'utf8');
    writeFileSync(join(configs, name), text.replace(/\[42, 43, .*\]/, '[42, 43]'));
  }
  const head = 'dataset,width_factor,depth,lr,augment,seed,loss';
  const rows = [0.3, 0.1, 0.03, 0.01].flatMap((lr) =>
    Array.from({ length: 2 }, (_, i) => `2,2,${lr},True,${42 + i},0.5`),
  );
  for (const [dataset, count] of [
    ['cifar10', 8],
    ['svhn', 1],
  ] as const) {
    const lines = rows.slice(0, count).map((row) => `${dataset},${row}`);
    mkdirSync(join(project, `results_exp2_${dataset}`));
    writeFileSync(
      join(project, `results_exp2_${dataset}/final_results.csv`),
      `${[head, ...lines].join('\n')}\n`,
    );
  }
  const bin = join(machine.directory, 'bin');
  mkdirSync(bin);
  symlinkSync(launcher, join(bin, 'gpu-owner'));
  env = {
    PATH: `${bin}:${dirname(python)}:${process.env.PATH}`,
    SECONDS_PER_EPOCH: '0',
    PYTHONPATH: join(root, 'python'),
  };
});
afterAll(() => machine.close());

const sh = (line: string): Promise<Finished> => machine.run(['bash', '-c', line], { cwd: project, env });

test('the page has what the old system could do', () => {
  expect(commands.length).toBeGreaterThan(8);
  const before = commands.map(([cell]) => cell).join('\n');
  for (const each of [
    'experiment_manager.py',
    'experiment_runner_gpu.py',
    'launch_distributed.sh',
    "'status'",
  ]) {
    expect(before).toContain(each);
  }
});

/** The page has ten seeds, this project two. */
const ofTwoSeeds = (text: string) => text.replaceAll('240', '48').replaceAll('45', '9');

// In this order: they are one project's story.
test.each(commands.map(([before = '', now = '', seen = '']) => [codeOf(now)[0] ?? '', before, seen]))(
  '%s does what %s did',
  async (line, _, seen) => {
    expect(line).not.toBe('');
    const { code, stdout, stderr } = await sh(line);
    expect(code, stderr).toBe(0);
    for (const text of codeOf(seen)) expect(stdout + stderr).toContain(ofTwoSeeds(text));
  },
);

test('the code that the page shows works in a task', async () => {
  const lines = inProgram.flatMap(([, now]) => codeOf(now));
  expect(lines.length).toBeGreaterThan(7);
  writeFileSync(join(project, 'program.py'), ['import gpu_owner', ...lines].join('\n'));
  const grid = '--grid width_factor=3 seed=7 --output-dir out';
  const { code, stderr } = await sh(`gpu-owner exp run --gpus 1 ${grid} -- python3 program.py`);
  expect(code, stderr).toBe(0);
  expect(readFileSync(join(project, 'out/final_results.csv'), 'utf8')).toBe(
    'task_id,width_factor,seed,loss\ngrid_0_7,3,7,0.3\n',
  );
});

test('a table that is edited becomes what docs/results.md says', async () => {
  const here = join(machine.directory, 'edited');
  const table = join(here, 'results_grid/final_results.csv');
  mkdirSync(here);
  writeFileSync(join(here, 'train.sh'), `printf '{"loss": 0.5}' > "$GPU_OWNER_RESULT"\n`);
  const run = () =>
    machine.run(['gpu-owner', 'exp', 'run', '--gpus', '2', '--grid', 'seed=1..3', '--', 'sh', 'train.sh'], {
      cwd: here,
      env,
    });
  const lines = () => readFileSync(table, 'utf8').trimEnd().split('\n').sort();
  expect((await run()).code).toBe(0);
  expect(lines()).toEqual(['grid_0_1,1,0.5', 'grid_1_2,2,0.5', 'grid_2_3,3,0.5', 'task_id,seed,loss']);

  // A changed value and another column stay.
  const edited = ['task_id,seed,loss,note', 'grid_0_1,1,0.7,mine', 'grid_1_2,2,0.5,', 'grid_2_3,3,0.5,'];
  writeFileSync(table, `${edited.join('\n')}\n`);
  expect((await run()).code).toBe(0);
  expect(lines()).toEqual([...edited].sort());

  // A deleted row is restored.
  writeFileSync(table, `${[...edited.slice(0, 2), edited[3]].join('\n')}\n`);
  const { stdout, stderr } = await run();
  expect(stdout + stderr).toContain('gpu-owner exp retry grid_1_2');
  expect(lines()).toEqual([...edited].sort());

  // A table that can't be understood isn't written to.
  writeFileSync(table, 'seed,seed\n1,2\n');
  expect((await run()).code).toBe(78);
  expect(readFileSync(table, 'utf8')).toBe('seed,seed\n1,2\n');

  // A deleted table is restored.
  rmSync(table);
  expect((await run()).code).toBe(0);
  expect(lines()).toEqual(['grid_0_1,1,0.5', 'grid_1_2,2,0.5', 'grid_2_3,3,0.5', 'task_id,seed,loss']);
});
