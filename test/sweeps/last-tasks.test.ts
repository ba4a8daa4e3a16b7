// When exp run is killed while the last tasks run, no task is pending. The next process must notice that they are lost.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { finished, Machine, until } from '../support/machine.ts';

let machine: Machine;
afterEach(() => machine.close());

test('exp run that was killed during its last tasks runs them again when it is started, and ends', async () => {
  machine = new Machine(2);
  const project = join(machine.directory, 'project');
  mkdirSync(project);
  const script = '[ -e go ] || { touch "started$1"; exec sleep 600; }';
  writeFileSync(join(project, 'task.sh'), script);
  const args = ['exp', 'run', '--gpus', '2', '--grid', 'seed=1,2', '--', 'sh', 'task.sh', '{seed}'];
  const first = machine.startCommand(args, { cwd: project });
  const end = finished(first, 'exit');
  await until(() => [1, 2].every((seed) => existsSync(join(project, `started${seed}`))));
  first.kill('SIGKILL');
  expect((await end).signal).toBe('SIGKILL');
  writeFileSync(join(project, 'go'), '');
  const second = machine.startCommand(args, { cwd: project });
  const timer = setTimeout(() => second.kill('SIGKILL'), 20_000);
  const { code, stdout, stderr } = await finished(second);
  clearTimeout(timer);
  expect(code, stdout + stderr).toBe(0);
  const rows = readFileSync(join(project, 'results_grid/final_results.csv'), 'utf8').trimEnd().split('\n');
  expect(rows.sort()).toEqual(['grid_0_1,1', 'grid_1_2,2', 'task_id,seed']);
});
