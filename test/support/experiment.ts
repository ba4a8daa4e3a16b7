import type { ChildProcess } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { readStatus, statusJSON, withQueue } from '../../lib/sweeps/index.ts';
import { type Finished, Machine, type Starting, until } from './machine.ts';

const TRAIN = join(import.meta.dirname, '../sweeps/fixtures/train.sh');

/** A simulated machine with a project on it. */
export class Experiment {
  readonly machine: Machine;
  readonly project: string;
  /** Environment of all commands. */
  readonly env: Record<string, string>;

  constructor(gpus: number, env: Record<string, string> = {}) {
    this.machine = new Machine(gpus);
    this.env = env;
    this.project = join(this.machine.directory, 'project');
    mkdirSync(this.project);
  }

  /** The words of a command of the training script, a shell's. */
  train(...args: string[]): string[] {
    return ['--', 'sh', TRAIN, ...args];
  }

  start(args: string[], starting: Starting = {}): ChildProcess {
    return this.machine.startCommand(['exp', ...args], this.#starting(starting));
  }

  run(args: string[], starting: Starting = {}): Promise<Finished> {
    return this.machine.runCommand(['exp', ...args], this.#starting(starting));
  }

  #starting(starting: Starting): Starting {
    return { cwd: this.project, ...starting, env: { ...this.env, ...starting.env } };
  }

  /** What `exp status --json` prints, read in this process. */
  // biome-ignore lint/suspicious/noExplicitAny: the JSON of the command is what tests are about
  async status(): Promise<any> {
    let status: unknown;
    await withQueue({ directory: this.project, url: this.env.GPU_OWNER_QUEUE ?? null }, async (queue) => {
      status = statusJSON(this.project, queue.url, await readStatus(queue, 1));
    });
    return JSON.parse(JSON.stringify(status));
  }

  /** Names of tasks, as often as they were started. */
  starts(): string[] {
    const path = join(this.project, 'starts.txt');
    if (!existsSync(path)) return [];
    return readFileSync(path, 'utf8')
      .split('\n')
      .slice(0, -1)
      .map((line) => line.split(' ')[0] as string);
  }

  /** Processes of tasks that have been started. */
  pids(): number[] {
    return readFileSync(join(this.project, 'starts.txt'), 'utf8')
      .split('\n')
      .slice(0, -1)
      .map((line) => Number(line.split(' ')[2]));
  }

  log(): string {
    return readFileSync(join(this.project, 'experiment_manager.log'), 'utf8');
  }

  /** Rows of a table, without its header. */
  rows(directory: string): string[] {
    return readFileSync(join(this.project, directory, 'final_results.csv'), 'utf8')
      .trim()
      .split('\n')
      .slice(1);
  }

  untilStarted(count: number): Promise<void> {
    return until(() => this.starts().length >= count);
  }

  close(): Promise<void> {
    return this.machine.close();
  }
}
