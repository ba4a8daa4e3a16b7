// The command as users call it.
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { openSweep } from '../../../lib/sweeps/files/index.ts';
import { openQueue } from '../../../lib/sweeps/queue/index.ts';
import type { Queue } from '../../../lib/sweeps/queue/queue.ts';
import { command, python, root } from '../../support/machine.ts';

let project = '';

beforeEach(() => {
  project = mkdtempSync(join(tmpdir(), 'gpu-owner-dry-run-'));
  mkdirSync(join(project, 'configs'));
  writeFileSync(
    join(project, 'configs/config_exp1.yaml'),
    'defaults: {dataset: mnist, lr: 1e-3}\nexp1_vary_width:\n  output_dir: results_{dataset}\n  combinations:\n    - width: [1, 2.0]\n    - seed: [42, 43]\n',
  );
});

afterEach(() => rmSync(project, { recursive: true, force: true }));

const plan = (args: string[], input = '') => start([command, 'exp', 'run', '--dry-run', ...args], input);

function start(words: string[], input: string) {
  return spawnSync(process.execPath, words, {
    cwd: project,
    input,
    encoding: 'utf8',
    timeout: 60_000,
    env: { ...process.env, GPU_OWNER_MACHINE_CONFIG: '/dev/null' },
  });
}

describe('a dry run', () => {
  test('shows a table, and leaves no trace', () => {
    const { status, stdout, stderr } = plan([]);
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    expect(stdout).toMatch(/^PHASE +TASKS +TO RUN +DONE +FAILED +OUTPUT DIRECTORIES$/m);
    expect(stdout).toMatch(/^exp1_vary_width +4 +4 +0 +0 +results_mnist$/m);
    expect(stdout).toContain('width=2.0 seed=42');
    expect(readdirSync(project)).toEqual(['configs']);
  });

  test('says what the queue knows', async () => {
    const queue = await openQueue(null, project);
    const sweep = await openSweep({
      project,
      files: [join(project, 'configs/config_exp1.yaml')],
      command: ['run'],
    });
    await queue.enqueue(sweep.tasks());
    await queue.importResults([{ id: (await taskIds(queue))[0] as string, result: { loss: 1 } }]);
    await queue.close();
    writeFileSync(
      join(project, 'new.yaml'),
      'defaults: {dataset: mnist, lr: 1e-3}\nexp1_vary_width:\n  combinations:\n    - width: [1, 3]\n    - seed: [42, 43]\n',
    );
    const { stdout } = plan(['new.yaml']);
    expect(stdout).toMatch(/^exp1_vary_width +4 +3 +1 +0 +results_exp1_vary_width$/m);
  });

  test('the plan as JSON can be read by Python', () => {
    const { stdout } = plan(['--json']);
    const script =
      'import json, sys; p = json.load(sys.stdin); print(p["size"], len(p["tasks"]), p["tasks"][2]["parameters"]["width"])';
    expect(spawnSync(python, ['-c', script], { input: stdout, encoding: 'utf8' }).stdout).toBe('4 4 2.0\n');
    const { counts, phases } = JSON.parse(plan(['--json']).stdout);
    expect(counts.new).toBe(4);
    expect(phases[0]).toMatchObject({
      phase: 'exp1_vary_width',
      size: 4,
      outputDirectories: ['results_mnist'],
    });
  });

  test('the JSON of a search whose trials are not known before has no tasks', () => {
    const { stdout } = plan(['--json', '--grid', 'x=1,2', '--method', 'tpe', '--metric', 'loss']);
    expect(JSON.parse(stdout)).toMatchObject({ tasks: [], counts: { new: 100 } });
  });

  test('a plan is made of a grid, a command and files, and of commands from standard input', () => {
    expect(plan(['--grid', 'width=1,2', 'seed=-1..1', '--', 'echo', '{width}']).stdout).toMatch(
      /^grid +6 +6/m,
    );
    expect(plan(['configs/config_exp1.yaml', '--grid', 'a=1']).stdout).toMatch(/^all +5 +5/m);
    expect(plan(['--commands', '-'], 'echo 1\necho 2\n').stdout).toContain('command=echo 1\n');
  });

  const REFUSED: [words: string[], code: number, message: string][] = [
    [
      ['--grid', 'seed=1..10000000'],
      64,
      'that would be 10,000,000 tasks (grid: seed 10,000,000); to confirm, add --yes',
    ],
    [['seed=1'], 64, "'seed=1' looks like a part of a grid; write --grid seed=1"],
    [['--grid', 'a=1', '--', 'echo', '{b}'], 64, '{b} names no parameter; the known ones are {a}'],
    [
      ['--grid', 'lr', '0.1', '0.2'],
      64,
      "'lr' has no '='; an axis is NAME=VALUE,VALUE, as in --grid lr=0.1,0.2 seed=1..3",
    ],
    [['--grid', 'lr=0.1,', '0.2,', '0.3', 'seed=1'], 64, "'0.2,' has no '='"],
    [['nothing.yaml'], 78, "nothing.yaml: it doesn't exist"],
    [['--project', '/nonexistent'], 64, '/nonexistent'],
    [['--commands', '-'], 78, 'standard input:1: there is no command in it'],
    [['--gird', 'a=1'], 64, 'did you mean --grid?'],
  ];

  test('what makes no sense is refused, with what to write instead', () => {
    const lines = REFUSED.map(([words]) => ['exp', 'run', '--dry-run', ...words]);
    const { stdout } = start([join(root, 'test/fixtures/commands.cjs')], JSON.stringify(lines));
    const results = stdout
      .split('\n')
      .filter(Boolean)
      .map((line) => JSON.parse(line));
    for (const [at, [, code, message]] of REFUSED.entries())
      expect(results[at]).toMatchObject({ code, stdout: '', stderr: expect.stringContaining(message) });
  });
});

async function taskIds(queue: Queue): Promise<string[]> {
  const ids: string[] = [];
  for await (const { task } of queue.tasks()) ids.push(task.id);
  return ids;
}
