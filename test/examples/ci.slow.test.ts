// The recipe of docs/simulator.md as its readers run it: with pytest and NVIDIA's binding from PyPI.
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import { launcher, root } from '../support/machine.ts';

const directory = mkdtempSync(join(tmpdir(), 'ci-recipe-'));
afterAll(() => rmSync(directory, { recursive: true, force: true }));
const venv = join(directory, 'venv');
const recipe = join(root, 'examples/ci');

/** null: pytest and nvidia-ml-py are there. */
function whyNotInstalled(): string | null {
  // A pip of its own would take longer to install than all else.
  const made = spawnSync('python3', ['-m', 'venv', '--without-pip', venv], { encoding: 'utf8' });
  if (made.status !== 0) return `no Python with venv: ${made.stdout}${made.stderr}`;
  const pip = ['-m', 'pip', '--python', join(venv, 'bin/python'), '--disable-pip-version-check'];
  const words = [...pip, 'install', '--quiet', 'pytest', 'nvidia-ml-py'];
  const { status, stderr } = spawnSync('python3', words, { encoding: 'utf8', timeout: 120_000 });
  return status === 0 ? null : `pytest can't be installed: ${stderr.trim().split('\n').at(-1)}`;
}

const missing = whyNotInstalled();

describe.skipIf(missing !== null)(`with pytest${missing === null ? '' : `: ${missing}`}`, () => {
  const project = join(directory, 'project');
  const bin = join(directory, 'bin');
  mkdirSync(bin);
  symlinkSync(launcher, join(bin, 'gpu-owner'));
  cpSync(recipe, project, { recursive: true });
  const env: NodeJS.ProcessEnv = {
    PATH: [bin, join(venv, 'bin'), process.env.PATH].join(delimiter),
    HOME: directory,
    GPU_OWNER_SIMULATE_DIR: join(directory, 'simulated'),
  };
  const shell = (line: string) =>
    spawnSync('bash', ['-euo', 'pipefail', '-c', line], {
      cwd: project,
      env,
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'pipe'],
    });

  test("the workflow's command runs the example's tests, and they pass", () => {
    const { steps } = parse(readFileSync(join(recipe, 'workflow.yml'), 'utf8')).jobs.test;
    const lines = steps.flatMap(({ run }: { run?: string }) => run ?? []);
    expect(lines).toHaveLength(2);
    expect(lines[0]).toBe('pip install gpu-owner nvidia-ml-py pytest');
    const { status, stdout, stderr } = shell(lines[1]);
    expect(stdout + stderr).toMatch(/^=+ 6 passed in/m);
    expect(status).toBe(0);
    // The same as in the image, and on the page.
    const [, words] = /^CMD (.*)$/m.exec(
      readFileSync(join(recipe, 'Containerfile'), 'utf8'),
    ) as RegExpExecArray;
    expect(JSON.parse(words as string).join(' ')).toBe(lines[1]);
  });

  test('a test that expects the wrong GPU fails: the simulated occupants are seen', () => {
    const text = readFileSync(join(recipe, 'test_scheduling.py'), 'utf8');
    writeFileSync(join(project, 'test_scheduling.py'), text.replace('[0, 1, 3]', '[0, 1, 2, 3]'));
    const { status, stdout } = shell('gpu-owner simulate --machine 2 shell -- pytest');
    expect(stdout).toMatch(/FAILED .*test_a_busy_gpu_is_left_alone[\s\S]*1 failed, 5 passed/);
    expect(status).toBe(1);
  });

  test('without `simulate shell`, the fixture says how the tests are started', () => {
    const { status, stdout } = shell('pytest');
    expect(stdout).toContain('start the tests by `gpu-owner simulate --machine 2 shell -- pytest`');
    expect(status).toBe(1);
  });
});
