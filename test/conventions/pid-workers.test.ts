// Workers that lock by PID files, under `gpu-owner run`, as the documentation starts them. Inside a job they count its GPUs from 0, while
// PID files outside count those of the machine.
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { binaries } from '../support/binaries.ts';
import { finished, launcher, Machine, output, python } from '../support/machine.ts';
import { placeOf } from '../support/other-tools.ts';
import { fence } from '../support/pages.ts';

const worker = join(import.meta.dirname, 'fixtures/experiment_runner_gpu.py');
const GPUS = [0, 1, 2].map((index) => `GPU-00000000-0000-4000-8000-00000000000${index}`);

let machine: Machine;
let project: string;
let starting: { cwd: string; env: Record<string, string> };

beforeEach(() => {
  machine = new Machine(3);
  project = join(machine.directory, 'project');
  const bin = join(machine.directory, 'bin');
  mkdirSync(project);
  mkdirSync(bin);
  copyFileSync(worker, join(project, 'experiment_runner_gpu.py'));
  symlinkSync(launcher, join(bin, 'gpu-owner'));
  writeFileSync(join(bin, 'python'), `#!/bin/sh\nexec ${python} "$@"\n`, { mode: 0o755 });
  // Files in .gpu_locks are the same for these workers and for us.
  const seenByUs = placeOf(machine, project);
  mkdirSync(dirname(seenByUs), { recursive: true });
  symlinkSync(project, seenByUs);
  starting = { cwd: project, env: { PATH: `${bin}:${process.env.PATH}` } };
});
afterEach(() => machine.close());

/** Starts so many workers. @returns what they print; they go on working */
async function said(child: ReturnType<Machine['start']>, workers: number): Promise<string[]> {
  const text = await output(child, new RegExp(`(?:(?:worker|No available).*\\n[^]*?){${workers}}`), 25_000);
  return text.trim().split('\n');
}

/** In the project, without gpu-owner. */
function plainWorker(): ReturnType<Machine['start']> {
  const env = { ...starting.env, LD_LIBRARY_PATH: join(binaries(), 'simulator') };
  return machine.start(['python', 'experiment_runner_gpu.py'], { ...starting, env });
}

async function statesHere(): Promise<string[]> {
  const { stdout } = await machine.runCommand(['status', '--json'], starting);
  return JSON.parse(stdout).map(({ state }: { state: string }) => state);
}

/** Three workers work, each on a GPU of its own; when they end, nothing is left. */
async function expectAllToWork(
  child: ReturnType<Machine['start']>,
  meanwhile = async () => {},
): Promise<void> {
  const end = finished(child);
  const lines = await said(child, 3);
  expect(lines.map((line) => /GPU-\S+$/.exec(line)?.[0]).sort()).toEqual(GPUS);
  expect(await machine.states()).toEqual(['leased', 'leased', 'leased']);
  await meanwhile();
  rmSync(join(project, 'experiment_runner_gpu.py'));
  const { code, stderr } = await end;
  expect([code, stderr.replace(/^gpu-owner: waiting.*\n( {2}.*\n)*/gm, '')]).toEqual([0, '']);
  expect(await statesHere()).toEqual(['free', 'free', 'free']);
}

describe('the recipe of docs/many-machines.md', () => {
  test('gives each unchanged worker a GPU, and a later one none', async () => {
    const recipe = fence('many-machines.md', 'sh', '<!-- unchanged workers -->');
    await expectAllToWork(machine.start(['sh', '-c', recipe], starting), async () =>
      expect((await finished(plainWorker())).stdout).toBe('No available GPUs (all claimed)\n'),
    );
    expect(readdirSync(join(project, '.gpu_locks'))).toEqual([]);
  });

  test('gives each older worker, which writes no lock, a GPU', async () => {
    const path = join(project, 'experiment_runner_gpu.py');
    const lines = readFileSync(path, 'utf8').split('\n');
    const [locks, end] = [
      lines.findIndex((line) => line.includes('path = f')),
      lines.indexOf('        return gpu_id'),
    ];
    const older = [...lines.slice(0, locks), ...lines.slice(end)].filter(
      (line) => !line.includes('gpu_locks'),
    );
    writeFileSync(path, older.join('\n'));
    const recipe = fence('many-machines.md', 'sh', '<!-- unchanged workers -->');
    await expectAllToWork(machine.start(['sh', '-c', recipe], starting));
    expect(existsSync(join(project, '.gpu_locks'))).toBe(false);
  });

  test('makes a claim for each worker that takes GPU 0', async () => {
    const path = join(project, 'experiment_runner_gpu.py');
    const before = readFileSync(path, 'utf8');
    const after = before.replace('gpu_id = get_available_gpu()', 'gpu_id = 0');
    expect(after).not.toBe(before);
    writeFileSync(path, after);
    mkdirSync(join(project, '.gpu_locks'));
    await expectAllToWork(
      machine.start(
        ['sh', '-c', `${fence('many-machines.md', 'sh', '<!-- workers that take GPU 0 -->')}wait`],
        starting,
      ),
    );
  });
});

test('the number that a worker writes inside a job is no number of the machine', async () => {
  mkdirSync(join(project, '.gpu_locks'));
  const words = ['run', '--devices', '2', '--', 'python', 'experiment_runner_gpu.py'];
  const job = machine.startCommand(words, starting);
  expect(await said(job, 1)).toEqual([expect.stringContaining(GPUS[2] as string)]);
  const file = join(project, '.gpu_locks/gpu_0.lock');
  const theirs = readFileSync(file, 'utf8');
  expect(await statesHere()).toEqual(['free', 'free', 'leased']);
  const { code, stderr } = await machine.runCommand(
    ['run', '--no-wait', '--devices', '0', '--', 'true'],
    starting,
  );
  expect([code, stderr]).toEqual([0, expect.stringContaining("gpu_0.lock can't be made or replaced")]);
  expect(readFileSync(file, 'utf8')).toBe(theirs);
  expect(await output(plainWorker(), /worker \d+ on (\S+)/)).toBe(GPUS[1]);
});
