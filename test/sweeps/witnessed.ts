// A project with a sweep on a simulated machine, and everything that is started in it.
import type { ChildProcess } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { binaries } from '../support/binaries.ts';
import { command, type Finished, finished, Machine, python } from '../support/machine.ts';
import { sendSignal } from '../support/processes.ts';
import { pause } from '../support/time.ts';
import { describeProcess, processesOf } from './processes.ts';
import { type ResultRow, readTestimony, type TaskOutcome, type Testimony } from './witness.ts';

const fixtures = join(import.meta.dirname, 'fixtures');
/** Behaves as badly as commands do. */
export const CHAOTIC = [python, '-S', join(fixtures, 'chaotic_task.py')];

/** The integers below `to`, from `from` on. */
export const range = (to: number, from = 0) => Array.from({ length: to - from }, (_, i) => from + i);

export interface TaskOutcomes {
  tasks: TaskOutcome[];
  givenBack: { name: string; why: string }[];
  /** 'ok', or what is wrong with the file. */
  check: string;
  /** Attempts that haven't ended. */
  living: number;
}

export interface Setting {
  /** Seed of the random decisions. */
  seed?: number;
  project?: string;
  /** Where the queue is, and what it says of its tasks in the end; by default it is the project's own. */
  queue?: { url: string; outcomes: () => TaskOutcomes };
  /** One machine of several that have witnesses in common. */
  host?: { name: string; witness: string; words: (words: string[]) => string[] };
}

export class WitnessedExperiment {
  readonly machine: Machine;
  readonly project: string;
  readonly witness: string;
  readonly env: Record<string, string>;

  readonly #setting: Setting;

  constructor(gpus: number, setting: Setting = {}) {
    const { seed = 0, project, host, queue } = setting;
    this.#setting = setting;
    this.machine = new Machine(gpus);
    this.project = project ?? join(this.machine.directory, 'project');
    this.witness = host?.witness ?? join(this.machine.directory, 'witness');
    mkdirSync(join(this.project, 'configs'), { recursive: true });
    mkdirSync(this.witness, { mode: 0o1777, recursive: true });
    this.env = {
      ...(queue === undefined ? {} : { GPU_OWNER_QUEUE: queue.url }),
      ...(host === undefined ? {} : { WITNESS_PLACE: `${host.name}-` }),
      CHAOS_SEED: String(seed),
      WITNESS_DIRECTORY: this.witness,
      WITNESS_LOCKS: this.machine.lockDirectory,
      SIMULATOR_LIBRARIES: join(binaries(), 'simulator'),
    };
  }

  /** @param phases the values of parameters by phase; a list is varied over */
  sweep(words: readonly string[], phases: Record<string, Record<string, unknown>>): void {
    const text = [`command: ${JSON.stringify(words)}`];
    for (const [phase, parameters] of Object.entries(phases)) {
      text.push(`${phase}:`);
      const lists = Object.entries(parameters).filter(([, value]) => Array.isArray(value));
      const others = Object.entries(parameters).filter(([, value]) => !Array.isArray(value));
      text.push(...others.map(([key, value]) => `  ${key}: ${JSON.stringify(value)}`), '  combinations:');
      text.push(...lists.map(([key, value]) => `    - ${key}: ${JSON.stringify(value)}`));
    }
    writeFileSync(join(this.project, 'configs/config_exp.yaml'), `${text.join('\n')}\n`);
  }

  /** Starts `gpu-owner exp …` in the project. */
  start(args: string[], uid?: number): ChildProcess {
    const { words = (all: string[]) => all } = this.#setting.host ?? {};
    return this.machine.start(words([process.execPath, command, 'exp', ...args]), {
      cwd: this.project,
      env: this.env,
      ...(uid === undefined ? {} : { uid }),
    });
  }

  run(args: string[]): Promise<Finished> {
    return finished(this.start(args));
  }

  /** Parses the JSON that it printed. */
  // biome-ignore lint/suspicious/noExplicitAny: the JSON of the command is what tests are about
  async json(args: string[]): Promise<any> {
    const { code, stdout, stderr } = await this.run(args);
    if (code !== 0) throw new Error(`exp ${args.join(' ')}: ${code} ${stderr}`);
    return JSON.parse(stdout);
  }

  testimony(): Testimony[] {
    return readTestimony(this.witness);
  }

  /** All tables of the project, by directory. */
  tables(): string[] {
    return readdirSync(this.project)
      .filter((name) => existsSync(join(this.project, name, 'final_results.csv')))
      .sort();
  }

  /** The cells of a table by Python's csv module, the header first. */
  async cells(table: string): Promise<string[][]> {
    const path = join(this.project, table, 'final_results.csv');
    const { code, stdout, stderr } = await this.machine.run([python, '-S', join(fixtures, 'rows.py'), path]);
    if (code !== 0) throw new Error(stderr);
    return JSON.parse(stdout);
  }

  async rows(): Promise<ResultRow[]> {
    const rows: ResultRow[] = [];
    for (const table of this.tables()) {
      const [header = [], ...cells] = await this.cells(table);
      const task = header.indexOf('task_id');
      const attempt = header.indexOf('attempt');
      for (const row of cells) {
        if (row.length !== header.length) throw new Error(`${table}: a cut row ${JSON.stringify(row)}`);
        rows.push({ table, task: row[task] ?? '', attempt: attempt < 0 ? '' : (row[attempt] ?? '') });
      }
    }
    return rows;
  }

  /** Reads the queue's database. */
  async outcomes(): Promise<TaskOutcomes> {
    if (this.#setting.queue !== undefined) return this.#setting.queue.outcomes();
    const words = [python, '-S', join(fixtures, 'outcomes.py'), join(this.project, '.gpu-owner/queue.db')];
    const { code, stdout, stderr } = await this.machine.run(words);
    if (code !== 0) throw new Error(stderr);
    return JSON.parse(stdout);
  }

  /** The log of the manager. */
  log(): string {
    const path = join(this.project, 'experiment_manager.log');
    return existsSync(path) ? readFileSync(path, 'utf8') : '';
  }

  /** Everything that still runs on the machine. */
  left(): string[] {
    return processesOf(this.machine).map(describeProcess);
  }

  /** Kills what is left, of all kinds, until nothing is. */
  async close(): Promise<void> {
    for (let i = 0; i < 100; i++) {
      const left = processesOf(this.machine);
      if (left.length === 0) break;
      for (const { pid } of left) sendSignal(pid, 'SIGKILL');
      await pause(10);
    }
    await this.machine.close();
  }

  /** Relative to the project. */
  short(path: string): string {
    return relative(this.project, path);
  }
}
