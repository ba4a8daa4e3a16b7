// docs/recipes.md as its readers run it, with the real libraries from PyPI; and the notebooks and debuggers of
// docs/where-it-runs.md. That each worker has one GPU, and no GPU two workers, is told by test/examples/fixtures/witness.py.
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { whyUnchanged } from '../support/changes.ts';
import { finished, root, until } from '../support/machine.ts';
import { fence } from '../support/pages.ts';
import { freePort } from '../support/ports.ts';
import { processesWith, signalLiving } from '../support/processes.ts';
import { fixture, install, Lab, recipes } from './recipes.ts';

const textOf = (page: string) => readFileSync(join(root, 'docs', page), 'utf8');

describe('the page', () => {
  const page = textOf('recipes.md');
  const shown = [...page.matchAll(/^<!-- examples\/recipes\/(\S+) -->\n```\w+\n([\s\S]*?)^```$/gm)];

  test.each(shown.map(([, name, body]) => [name as string, body as string]))(
    'show %s as it is',
    (name, body) => {
      expect(body).toBe(readFileSync(join(recipes, name), 'utf8'));
    },
  );

  test('show or name every file', () => {
    const files = readdirSync(recipes, { recursive: true, withFileTypes: true }).filter((entry) =>
      entry.isFile(),
    );
    for (const { name } of files) if (!name.startsWith('requirements')) expect(page).toContain(name);
    expect(shown.length).toBeGreaterThan(4);
  });

  test('show the same command in the table as in the recipe', () => {
    const commands = [...page.matchAll(/^\| \[.*?\]\((\S*?)#.*?\) \| (`.*`) \|$/gm)];
    expect(commands.length).toBeGreaterThan(8);
    const rest = page.replaceAll(/^\|.*$/gm, '');
    for (const [, name, command = ''] of commands)
      expect(name ? textOf(name) : rest).toContain(command.slice(1, -1));
  });
});

const unchanged = whyUnchanged([
  ...['examples/recipes', 'docs/recipes.md', 'docs/where-it-runs.md', 'python/gpu_owner'],
  ...['test/examples/recipes*', 'test/examples/fixtures', 'lib/sweeps/task'],
]);
const { venv, missing } =
  unchanged === null ? install('requirements.txt', 180) : { venv: null, missing: unchanged };

describe.skipIf(missing !== null)(`with libraries from PyPI${missing === null ? '' : `: ${missing}`}`, () => {
  let lab: Lab;
  afterEach(() => lab.close());
  const open = (gpus: number, together = gpus) => {
    lab = new Lab(venv as string, gpus, together);
    return lab;
  };
  const line = (heading: string) => fence('recipes.md', 'sh', `## ${heading}`);

  /** Each process had one GPU, and all GPUs were used. */
  const expectOneEach = (gpus: number) => {
    const byProcess = [...lab.gpusOf().values()];
    expect(byProcess.map(({ size }) => size)).toEqual(byProcess.map(() => 1));
    expect(new Set(byProcess.flatMap((one) => [...one])).size).toBe(gpus);
  };
  const isFree = async () => (await lab.machine.states()).every((state) => state === 'free');

  test('each worker of Optuna has one GPU', async () => {
    open(2);
    const { code, stderr } = await lab.run(line('One GPU per Optuna worker'));
    expect(code, stderr).toBe(0);
    expectOneEach(2);
    // Each worker may have begun its last trial when another one ended the study.
    expect([20, 21]).toContain(lab.trainings().length);
    expect(await isFree()).toBe(true);
  });

  test('each trial of Optuna has a GPU, in processes of an Executor', async () => {
    open(2);
    const { code, stdout, stderr } = await lab.run(line('One GPU per Optuna trial'));
    expect(code, stderr).toBe(0);
    expectOneEach(2);
    expect(lab.trainings()).toHaveLength(20);
    expect(stdout).toMatch(/^\{'lr': /m);
    expect(await isFree()).toBe(true);
  });

  test('a killed worker of Optuna gives its GPU to the next', async () => {
    open(2);
    const child = lab.machine.start(lab.words(line('One GPU per Optuna worker')), {
      env: lab.env,
      cwd: lab.directory,
    });
    const end = finished(child);
    await until(() => lab.gpusOf().size === 2);
    const [first = 0] = lab.gpusOf().keys();
    signalLiving(first, 'SIGKILL');
    // A third worker, on its GPU.
    await until(() => lab.gpusOf().size > 2);
    expect((await end).code).toBe(123);
    expectOneEach(2);
    expect(lab.trainings().length).toBeGreaterThanOrEqual(20);
  });

  test('workers without a claim fail', async () => {
    open(2);
    const { code, stderr } = await lab.run('python optuna_worker.py');
    expect(code).toBe(1);
    expect(stderr).toContain('CUDA shows 2 GPUs');
    const workers = 'python optuna_worker.py & python optuna_worker.py & wait -n; kill $(jobs -p)';
    const both = await lab.run(`gpu-owner run -- bash -c '${workers}'`);
    expect(both.stderr).toContain('BlockingIOError');
  });

  test('each job of Hydra has one GPU', async () => {
    open(2);
    const { code, stdout, stderr } = await lab.run(line('One GPU per Hydra job'));
    expect(code, stdout + stderr).toBe(0);
    expect(
      lab
        .trainings()
        .map(({ lr }) => lr)
        .sort(),
    ).toEqual([0.003, 0.01, 0.03, 0.1]);
    expect(lab.gpusOf().size).toBe(2);
    expectOneEach(2);
    expect(await isFree()).toBe(true);
  });

  test('a sweep of Hydra that SIGTERM ends leaves no worker', async () => {
    open(2, 3); // no training ends
    const child = lab.machine.start(lab.words(line('One GPU per Hydra job')), {
      env: lab.env,
      cwd: lab.directory,
    });
    const end = finished(child);
    await until(() => lab.gpusOf().size === 2);
    const workers = [...lab.gpusOf().keys()];
    const [first] = processesWith(`WITNESS=${lab.env.WITNESS}`).filter((pid) =>
      readFileSync(`/proc/${pid}/cmdline`, 'utf8').startsWith('python\0hydra_train.py'),
    );
    signalLiving(first ?? 0, 'SIGTERM');
    expect((await end).code).toBe(130);
    await until(isFree);
    for (const pid of workers) expect(existsSync(`/proc/${pid}`)).toBe(false);
  });

  test.each([
    ['after it waited for the others', /^pytest -n 4$/m],
    ['of the GPUs of a job', /^gpu-owner run -n 2 -- pytest -n 2$/m],
  ])('each worker of pytest-xdist has one GPU %s', async (_, command) => {
    open(2);
    const [words = ''] = command.exec(textOf('recipes.md')) ?? [];
    const { code, stdout, stderr } = await lab.run(words);
    expect(code, stdout + stderr).toBe(0);
    expect(stdout).toMatch(/8 passed/);
    expectOneEach(2);
    expect(await isFree()).toBe(true);
  });

  test('a notebook claims in its first cell', async () => {
    open(2);
    const [first, second] = fence('python.md', 'python', 'In any other kernel').split('\n\n');
    const cells = JSON.stringify([first, 'from model import train; train(0.1)', second, 'print(gpus.held)']);
    const program = `import json, nbformat, nbclient
cells = [nbformat.v4.new_code_cell(each) for each in json.loads(${JSON.stringify(cells)})]
nbclient.NotebookClient(notebook := nbformat.v4.new_notebook(cells=cells), kernel_name="python3").execute()
print(notebook.cells[-1].outputs[0].text.strip())`;
    writeFileSync(join(lab.directory, 'notebook.py'), program);
    const { code, stdout, stderr } = await lab.run('python notebook.py', { WITNESS_TOGETHER: '1' });
    expect(code, stderr).toBe(0);
    expect(stdout.trim()).toBe('False');
    expect(lab.trainings()).toHaveLength(1);
    await until(isFree);
  });

  test('a debugger attaches to a program that has its GPU', async () => {
    open(1);
    writeFileSync(join(lab.directory, 'train.py'), 'from model import train\ntrain(0.1)\n');
    const port = String(await freePort());
    const words = fence('where-it-runs.md', 'sh', "- **Python's debugger**").trim();
    expect(words).toContain('--listen 5678');
    const child = lab.machine.start(lab.words(words.replace('5678', port)), {
      env: lab.env,
      cwd: lab.directory,
    });
    const end = finished(child);
    const debuggerProgram = lab.machine.start(['python', fixture('debugger.py'), port], { env: lab.env });
    const ended = finished(debuggerProgram);
    await new Promise((resolve) => debuggerProgram.stdout?.once('data', resolve));
    expect(await lab.machine.states()).toEqual(['leased']);
    expect(lab.trainings()).toEqual([]);
    debuggerProgram.stdin?.end('\n');
    expect(await ended).toMatchObject({ code: 0 });
    const { code, stderr } = await end;
    expect(code, stderr).toBe(0);
    expect(lab.trainings()).toHaveLength(1);
  });
});
