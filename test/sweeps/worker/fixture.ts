// Workers in this process on a simulated machine, with a queue of their own.

import { mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach } from 'vitest';
import { type ClaimOptions, checkOptions } from '../../../lib/claims/options.ts';
import { openQueue } from '../../../lib/sweeps/queue/index.ts';
import type { AttemptInfo, Queue, TaskRow } from '../../../lib/sweeps/queue/queue.ts';
import type { TaskCommand, TaskSpec, Values } from '../../../lib/sweeps/task/index.ts';
import {
  Worker,
  type WorkerEnd,
  type WorkerEvent,
  type WorkerOptions,
} from '../../../lib/sweeps/worker/worker.ts';
import { Machine, python, until } from '../../support/machine.ts';

export const script = join(import.meta.dirname, 'fixtures/task.py');

interface Working {
  worker: Worker;
  events: WorkerEvent[];
  ended: Promise<WorkerEnd>;
  types(): string[];
  /** Waits for the event, the nth of its type. */
  event<Type extends WorkerEvent['type']>(type: Type, nth?: number): Promise<WorkerEvent & { type: Type }>;
}

// The process opens the driver once, so all tests of a file are on one machine, with a process of its own.
const machine = new Machine(3);
for (const [name, value] of Object.entries(machine.env)) {
  if (value === undefined) delete process.env[name];
  else process.env[name] = value;
}
afterAll(() => machine.close());

/** A project with a queue. */
export class WorkerFixture {
  readonly machine = machine;
  readonly project: { directory: string; state: string };
  queue: Queue;
  readonly #working: Working[] = [];

  private constructor(directory: string, queue: Queue) {
    this.project = { directory, state: join(directory, '.gpu-owner') };
    this.queue = queue;
  }

  static async open(): Promise<WorkerFixture> {
    const directory = realpathSync(mkdtempSync(join(tmpdir(), 'gpu-owner-worker-')));
    mkdirSync(join(directory, '.gpu-owner'));
    const fixture = new WorkerFixture(directory, await openQueue(null, directory));
    fixtures.push(fixture);
    return fixture;
  }

  /** Enqueues tasks: their parameters are their number and their words. */
  async add(...commands: (readonly string[] | TaskCommand)[]): Promise<void> {
    await this.queue.enqueue(commands.map((command, i) => this.spec(i, command)));
  }

  spec(i: number, command: readonly string[] | TaskCommand, more: Values = {}): TaskSpec {
    const taskCommand: TaskCommand = Array.isArray(command)
      ? { words: [python, script, ...command] }
      : (command as TaskCommand);
    return {
      phase: 'phase1',
      outputDirectory: 'results/deep',
      parameters: { i, seed: 42, command: JSON.stringify(command), ...more },
      command: taskCommand,
    };
  }

  work(options: Partial<WorkerOptions> = {}, claim: ClaimOptions = {}): Working {
    const events: WorkerEvent[] = [];
    const worker = new Worker({
      queue: this.queue,
      project: this.project,
      settings: checkOptions(claim),
      report: (event) => events.push(event),
      ...options,
    });
    const working: Working = {
      worker,
      events,
      ended: worker.run(),
      types: () => events.map(({ type }) => type),
      event: async (type, nth = 1) => {
        const found = () => events.filter((event) => event.type === type);
        await until(() => found().length >= nth).catch(() => {
          throw new Error(`no ${type} in ${JSON.stringify(events, null, 1)}`);
        });
        return found()[nth - 1] as never;
      },
    };
    this.#working.push(working);
    return working;
  }

  async rows(): Promise<TaskRow[]> {
    const rows: TaskRow[] = [];
    for await (const row of this.queue.tasks()) rows.push(row);
    return rows;
  }

  async results(): Promise<Values[]> {
    return (await this.queue.completions(0, 100)).map(({ result }) => result);
  }

  async attempts(name: string): Promise<AttemptInfo[]> {
    const row = (await this.rows()).find(({ task }) => task.name === name);
    return this.queue.attempts({ taskId: row?.task.id ?? '' });
  }

  log(worker = 'gpu0'): string {
    return readFileSync(join(this.project.directory, `results/deep/worker_${worker}.log`), 'utf8');
  }

  path(name: string): string {
    return join(this.project.directory, name);
  }

  async close(): Promise<void> {
    for (const { worker } of this.#working) worker.stop();
    await Promise.all(this.#working.map(({ ended }) => ended));
    await this.queue.close();
    rmSync(this.project.directory, { recursive: true, force: true });
  }
}

const fixtures: WorkerFixture[] = [];

afterEach(async () => {
  for (const fixture of fixtures.splice(0)) await fixture.close();
});
