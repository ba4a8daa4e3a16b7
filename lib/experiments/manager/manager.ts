import { GPUOwnerError } from '../../errors.ts';
import type { Enqueued, Queue } from '../queue/queue.ts';
import type { TaskSpec } from '../task.ts';
import { History } from './history.ts';
import type { ManagerLog } from './log.ts';
import { formatProgress, type Overview, overview } from './overview.ts';

/** Keeps the tables of results in step with the queue. */
export interface Tables {
  sync(): Promise<unknown>;
  close(): Promise<void>;
}

export interface ManagerOptions {
  queue: Queue;
  /** Made when this manager becomes the one that writes them. */
  tables: () => Tables;
  log: ManagerLog;
  host: string;
  pid: number;
  /** For people: what happens. `event`: of one task, `message`: of the whole. */
  tell: (text: string, kind: 'event' | 'message') => void;
  /** Gets how things stand, whenever it has been looked at. */
  onLook: (overview: Overview) => void;
}

/** How often everything is looked at, at least, in ms: tables may be changed by others. */
const LOOK = 5_000;
/** And at most: many tasks that end at once are one piece of work. */
const PAUSE = 300;
/** How often a table that can't be written is tried again, in ms. */
const RETRY = 5_000;

/**
 * Adds the tasks, keeps the tables current, and says what happens. Of several on a queue one manages; the others watch, and one of
 * them takes over when it is gone. It may be killed at any time: another one goes on from what queue and tables say.
 */
export class Manager {
  readonly #options: ManagerOptions;
  readonly #history: History;
  #tables: Tables | null = null;
  #office: { release(): Promise<void> } | null = null;
  /** Who manages, as was told. */
  #told: string | null = null;
  /** The last thing that kept the tables from being written, as was told. */
  #trouble: string | null = null;
  #logged = '';

  constructor(options: ManagerOptions) {
    this.#options = options;
    this.#history = new History(options, (text) => this.record(text));
  }

  get manages(): boolean {
    return this.#office !== null;
  }

  /** Becomes the manager, unless somebody is; says who is. */
  async begin(): Promise<void> {
    const { queue, host, pid, tell, tables } = this.#options;
    if (this.#office !== null) return;
    if (this.#told === null) await this.#history.begin();
    this.#office = await queue.manage({ host, pid });
    if (this.#office === null) return this.#tellWhoManages();
    this.#tables = tables();
    if (this.#told !== null)
      tell('the other manager is gone: this one writes the tables from now on', 'message');
    this.#told = null;
  }

  async #tellWhoManages(): Promise<void> {
    const who = await this.#options.queue.manager();
    if (who === null) return; // it has just gone; the next try will do
    const name = `pid ${who.pid}${who.host === this.#options.host ? '' : ` on ${who.host}`}`;
    if (this.#told === name) return;
    this.#told = name;
    this.#options.tell(
      `${name} manages this queue and writes its tables; this one works, watches, and takes over when it is gone`,
      'message',
    );
  }

  /** @throws what `Queue.enqueue` throws, and what is wrong with a task */
  async enqueue(
    tasks: Iterable<TaskSpec>,
    options: { replaceCommands: boolean; signal: AbortSignal },
  ): Promise<Enqueued> {
    const enqueued = await this.#options.queue.enqueue(tasks, options);
    const { added, known, placed } = enqueued;
    this.#note(`Generated ${added + known} total tasks`);
    if (known > 0) {
      const places = placed > 0 ? `, of which ${placed} get one more row` : '';
      this.#note(`${added} of them are new, ${known} are known already${places}`);
    }
    return enqueued;
  }

  /** Reads the tables for the first time: what has its row needn't be run. Tries until it can. */
  async firstSync(signal: AbortSignal): Promise<void> {
    if (this.#tables === null) return;
    while (!(await this.#sync()) && !signal.aborted) await this.#options.queue.changed(RETRY, signal);
    const { completed } = await this.look();
    this.#note(`Marked ${completed} tasks as already completed`);
  }

  /** Works until the signal comes; then everything that was completed before is in the tables, unless they can't be written. */
  async run(signal: AbortSignal): Promise<void> {
    const { queue } = this.#options;
    while (!signal.aborted) {
      await this.#round();
      await pause(PAUSE, signal);
      await queue.changed(this.#trouble === null ? LOOK : RETRY, signal);
    }
    await this.#round();
  }

  /** Tries until the tables are in step. @returns false: the signal came first */
  async finish(signal: AbortSignal): Promise<boolean> {
    while (this.manages && !(await this.#round())) {
      if (signal.aborted) return false;
      await pause(RETRY, signal);
    }
    return true;
  }

  /** @returns are the tables in step, as far as that is ours? */
  async #round(): Promise<boolean> {
    await this.begin();
    const inStep = await this.#sync();
    await this.#history.look();
    const now = await this.look();
    this.#logProgress(now);
    this.#options.log.flush();
    return inStep;
  }

  async look(): Promise<Overview> {
    const now = await overview(this.#options.queue);
    this.#options.onLook(now);
    return now;
  }

  /** @returns false: they can't be written now; that has been told */
  async #sync(): Promise<boolean> {
    if (this.#tables === null) return true;
    try {
      await this.#tables.sync();
      if (this.#trouble !== null) this.#options.tell('the tables of results are in step again', 'message');
      this.#trouble = null;
      return true;
    } catch (error) {
      if (!isSystemError(error) && !(error instanceof GPUOwnerError)) throw error;
      const { message } = error as Error;
      if (message !== this.#trouble) {
        this.#note(
          `the tables of results can't be brought up to date: ${message.replace(/\.$/, '')}. Nothing is lost: the queue has the results, and it is tried again`,
        );
      }
      this.#trouble = message;
      return false;
    }
  }

  #logProgress({ ended, total }: Overview): void {
    const progress = `Progress: ${formatProgress(ended, total)}`;
    if (progress === this.#logged || !this.manages) return;
    this.#logged = progress;
    this.#options.log.write(progress);
    this.#options.tell(progress, 'event');
  }

  /** What a worker does; those of this process say it here. */
  record(text: string): void {
    if (this.manages) this.#options.log.write(text);
    this.#options.tell(text, 'event');
  }

  #note(text: string): void {
    if (this.manages) this.#options.log.write(text);
    this.#options.tell(text, 'message');
  }

  async close(): Promise<void> {
    await this.#tables?.close();
    await this.#office?.release();
    this.#office = null;
    this.#tables = null;
    this.#options.log.close();
  }
}

function isSystemError(error: unknown): boolean {
  return error instanceof Error && 'syscall' in error && 'code' in error;
}

function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener('abort', end);
      resolve();
    };
    const timer = setTimeout(end, milliseconds);
    signal.addEventListener('abort', end);
  });
}
