// Shared by the tests of docs/recipes.md: the libraries from PyPI, and a simulated machine whose trainings witness their GPUs.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { chmodSync, cpSync, existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { delimiter, join } from 'node:path';
import { type Finished, launcher, Machine, root, signalAll } from '../support/machine.ts';
import { processesWith } from '../support/processes.ts';

export const recipes = join(root, 'examples/recipes');
const fixtures = join(import.meta.dirname, 'fixtures');
export const fixture = (name: string) => join(fixtures, name);

/** A virtual environment, or why there is none. */
export type Installed = { venv: string; missing: null } | { venv: null; missing: string };

/** Installs what a file in examples/recipes names. The environment is kept for the next time. */
export function install(requirements: string, timeoutS: number): Installed {
  const file = join(recipes, requirements);
  const version = spawnSync('python3', ['--version'], { encoding: 'utf8' }).stdout;
  const key = createHash('sha256')
    .update(version + readFileSync(file, 'utf8'))
    .digest('hex');
  const cache = join(process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'), 'gpu-owner-tests');
  mkdirSync(cache, { recursive: true });
  const venv = join(cache, key.slice(0, 16));
  const script = `[ -e "$0/complete" ] && exit
    rm -rf "$0"; python3 -m venv "$0" && "$0/bin/pip" install --quiet --disable-pip-version-check -r "$1" && touch "$0/complete"`;
  const words = [`${venv}.lock`, 'timeout', '-k', '5', String(timeoutS), 'sh', '-c', script, venv, file];
  const { status, stdout, stderr } = spawnSync('flock', words, { encoding: 'utf8' });
  if (status === 0) return { venv, missing: null };
  if (status === 124) return { venv: null, missing: `PyPI needs more than ${timeoutS} s` };
  const last = `${stdout}\n${stderr}`.trim().split('\n').at(-1);
  return { venv: null, missing: `the libraries can't be installed: ${last}` };
}

interface Training {
  pid: number;
  gpu: string;
  lr: number;
}

/** A directory with the recipes, on a simulated machine. */
export class Lab {
  readonly machine: Machine;
  readonly directory: string;
  readonly env: Record<string, string | undefined>;

  /** @param together how many GPUs must be in use at the same time */
  constructor(venv: string, gpus: number, together = gpus) {
    this.machine = new Machine(gpus);
    this.directory = join(this.machine.directory, 'recipes');
    const [bin, home, witness] = ['bin', 'home', 'witness'].map((name) => join(this.machine.directory, name));
    for (const path of [bin, home, witness] as string[]) mkdirSync(path);
    cpSync(recipes, this.directory, { recursive: true });
    cpSync(join(fixtures, 'witness.py'), join(this.directory, 'model.py'));
    symlinkSync(launcher, join(bin as string, 'gpu-owner'));
    this.env = {
      PATH: [bin, join(venv, 'bin'), process.env.PATH].join(delimiter),
      PYTHONPATH: join(root, 'python'),
      PYTHONDONTWRITEBYTECODE: '1',
      HOME: home,
      XDG_CACHE_HOME: undefined,
      RAY_TMPDIR: join(this.machine.directory, 'ray'),
      WITNESS: witness,
      WITNESS_TOGETHER: String(together),
    };
  }

  /** The words that run a line as a reader does, where CUDA is the simulated one. */
  words(line: string): string[] {
    return [launcher, 'simulate', 'shell', '--', 'bash', '-euo', 'pipefail', '-c', line];
  }

  run(line: string, env: Record<string, string> = {}, cwd = this.directory): Promise<Finished> {
    return this.machine.run(this.words(line), { env: { ...this.env, ...env }, cwd });
  }

  /** Puts programs of the virtual environment in PATH that find no simulated CUDA: PyTorch can't start its runtime on it. */
  hideCuda(venv: string, programs: string[]): void {
    for (const program of programs) {
      const path = join(this.machine.directory, 'bin', program);
      writeFileSync(path, `#!/bin/sh\nunset LD_LIBRARY_PATH\nexec ${join(venv, 'bin', program)} "$@"\n`);
      chmodSync(path, 0o755);
    }
  }

  trainings(): Training[] {
    const log = join(this.machine.directory, 'witness/log');
    if (!existsSync(log)) return [];
    const lines = readFileSync(log, 'utf8').split('\n').slice(0, -1);
    return lines.map((line) => JSON.parse(line));
  }

  /** By process: its GPUs. */
  gpusOf(): Map<number, Set<string>> {
    const all = new Map<number, Set<string>>();
    for (const { pid, gpu } of this.trainings()) all.set(pid, (all.get(pid) ?? new Set()).add(gpu));
    return all;
  }

  /** Ends what a failed test has left behind, too: daemons of Ray, a program that waits for its debugger. */
  async close(): Promise<void> {
    signalAll(processesWith(`WITNESS=${this.env.WITNESS}`), 'SIGKILL');
    await this.machine.close();
  }
}
