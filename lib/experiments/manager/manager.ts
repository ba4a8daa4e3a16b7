import { join } from 'node:path';
import { GPUOwnerError } from '../../errors.ts';
import { pause } from '../../platform/index.ts';
import { withKnownSeeds } from '../plan/index.ts';
import { type AttemptInfo, isRedisURL, type Management, type Queue, QueueRemovedError, commandText, NO_COMMAND_TEXT } from '../queue/index.ts';
import { OutputDirectories, ResultTables, type RowsOfTask, refuseUnusable, tablePath, findRecordedTasks } from '../results/index.ts';
import type { Sweep } from '../sweep/index.ts';
import { History, ManagerLog } from './log.ts';
import { formatProgress, isOver, type Overview, overview } from './progress.ts';
import { type TaskCommand, taskId } from '../task/index.ts';

export interface ManagerOptions {
  queue: Queue;
  /** The directory of the project: it has the tables, and the log. */
  project: string;
  /** What the project keeps of itself. */
  state: string;
  host: string;
  pid: number;
  /** For people: what happens. `event`: of one task, `message`: of the whole. */
  tell: (text: string, kind: 'event' | 'message') => void;
  /** Gets how things stand, whenever it has been looked at. */
  onLook: (overview: Overview) => void;
}

const LOG = 'experiment_manager.log';
/** How often everything is looked at, at least, in ms: tables may be changed by others. */
const LOOK = 5_000;
/** And at most: many tasks that end at once are one piece of work. */
const PAUSE = 300;
/** How often a table that can't be written is tried again, in ms. */
const RETRY = 5_000;
/** Of times that the queue tells, in ms. */
const JITTER = 50;

/**
 * Adds the tasks, keeps the tables current, and says what happens. Of several on a queue one manages; the others watch, and one of
 * them takes over when it is gone. It may be killed at any time: another one goes on from what queue and tables say.
 */
export class Manager {
  readonly #options: ManagerOptions;
  readonly #history: History;
  readonly #log: ManagerLog;
  /** null: the queue is this project's own. */
  readonly #directories: OutputDirectories | null;
  #tables: ResultTables | null = null;
  #last: Overview | null = null;
  #office: Management | null = null;
  /** Who manages, as was told. */
  #told: string | null = null;
  /** What keeps the queue from being used, as was told. */
  #trouble: string | null = null;
  #gone: QueueRemovedError | null = null;
  /** As of the last time that the queue could be used: everything has come to its end, and all its rows are in the tables. */
  #whole = false;
  /** It could not be asked for how things stand at the end. */
  #deaf = false;
  #logged = '';

  constructor(options: ManagerOptions) {
    this.#options = options;
    this.#log = new ManagerLog(join(options.project, LOG), (message) =>
      options.tell(`warning: ${message}`, 'message'),
    );
    this.#directories = isRedisURL(options.queue.url)
      ? new OutputDirectories(options.project, options.state)
      : null;
    this.#history = new History(options, (text) => this.record(text));
  }

  get manages(): boolean {
    return this.#office !== null;
  }

  /** Becomes the manager, unless somebody is; says who is. */
  async begin(): Promise<void> {
    const { queue, project, host, pid, tell } = this.#options;
    if (this.#office?.lost?.aborted) await this.#resign();
    if (this.#office !== null) return;
    if (this.#told === null) await this.#history.begin();
    this.#office = await queue.manage({ host, pid });
    if (this.#office === null) return this.#tellWhoManages();
    this.#tables = new ResultTables(
      queue,
      project,
      (message) => this.#note(message),
      (directory) => this.#directories?.includes(directory) ?? true,
    );
    if (this.#told !== null)
      tell('the other manager is gone: this one writes the tables from now on', 'message');
    this.#told = null;
  }

  /** Somebody else may write the tables by now, or what is known of the queue isn't so any longer. */
  async #resign(): Promise<void> {
    await this.#leaveOffice();
    await this.#tables?.close();
    this.#tables = null;
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

  /**
   * What was added when the signal comes stays; the next start adds the rest.
   * @param asked as it was written @param options requireCommands: what is left to be run needs one
   * @throws what `Queue.enqueue` throws, and what is wrong with a task; ERR_CONFIGURATION if its table couldn't be written here
   */
  async enqueue(
    asked: Sweep,
    options: { replaceCommands: boolean; requireCommands: boolean; signal: AbortSignal },
  ): Promise<void> {
    const { queue, project } = this.#options;
    const sweep = await withKnownSeeds(asked, queue);
    if (options.requireCommands) await refuseCommandless(sweep, queue, project);
    await refuseUnusable(sweep, queue, project);
    this.#directories?.name(sweep);
    const enqueued = await queue.enqueue(sweep.tasks(), options).catch((error) => {
      if (!options.signal.aborted) throw error;
    });
    if (enqueued === undefined) return;
    const { added, known, placed } = enqueued;
    if (placed > 0) this.#tables?.placesChanged();
    this.#note(`Generated ${added + known} total tasks`);
    if (known > 0) {
      const places = placed > 0 ? `, of which ${placed} get one more row` : '';
      this.#note(`${added} of them are new, ${known} are known already${places}`);
    }
  }

  /**
   * Reads the tables for the first time: what has its row needn't be run.
   * @throws ERR_CONFIGURATION if a table can't be read: what it has would be run again
   */
  async firstSync(): Promise<void> {
    if (this.#tables === null) return;
    await this.#sync();
    await this.#refuseUnreadable(this.#tables.standing.unreadable);
    const { completed } = await this.look();
    this.#note(`Marked ${completed} tasks as already completed`);
  }

  /** Tables whose tasks are all cancelled keep nobody from anything. */
  async #refuseUnreadable(unreadable: readonly { path: string; why: string }[]): Promise<void> {
    if (unreadable.length === 0) return;
    const { queue, project } = this.#options;
    for (const state of ['pending', 'active', 'failed', 'completed'] as const) {
      for await (const { task } of queue.tasks({ state })) {
        const paths = task.places.map(({ outputDirectory }) => tablePath(project, outputDirectory));
        const found = unreadable.find(({ path }) => paths.includes(path));
        if (found === undefined) continue;
        throw new GPUOwnerError(
          'ERR_CONFIGURATION',
          `a table of results can't be read, and tasks that have their row there would be run again: put it right or move it away, or take its tasks out (gpu-owner exp cancel ${task.name} ...), and start again. ${found.why}`,
        );
      }
    }
  }

  /**
   * Works until the signal comes; then everything that was completed before is in the tables, unless they can't be written.
   * @param whileGone for how many ms a queue that was removed may come back, or be begun anew
   * @throws QueueRemovedError after that
   */
  async run(signal: AbortSignal, whileGone = Number.POSITIVE_INFINITY): Promise<void> {
    const { queue } = this.#options;
    let since: number | null = null;
    while (!signal.aborted) {
      // From before the look: others of this process may notice what happens in the pause, and then it is no news any longer.
      const change = queue.changed(LOOK, signal).catch(() => {}); // the next look tells
      await this.#round();
      if (this.#gone === null) since = null;
      else {
        if (since === null && Number.isFinite(whileGone)) {
          this.#note(`this waits ${whileGone / 1000} s for it to be put back, or begun anew, and ends then`);
        }
        since ??= performance.now();
        if (performance.now() - since >= whileGone) throw this.#gone;
      }
      await pause(this.#trouble === null ? PAUSE : Math.min(RETRY, whileGone), signal);
      if (this.#trouble === null) await change;
    }
    await this.#round();
  }

  /** Tries until the tables are in step. @returns false: the signal came first @throws QueueRemovedError */
  async finish(signal: AbortSignal): Promise<boolean> {
    // Other processes may have brought some; that is worth a look at every task only at the very end.
    if (this.#last !== null && isOver(this.#last)) this.#tables?.placesChanged();
    for (let tries = 0; !(await this.#round()); tries++) {
      if (signal.aborted) return false;
      if (this.#whole) return true; // what it could not be asked any longer is known
      if (this.#gone !== null) throw this.#gone;
      if (tries === 0) {
        this.#note(
          'no worker is left, and no GPU is held; this waits until the tables can be written. Ctrl-C: the next start does that',
        );
      }
      await pause(RETRY, signal);
    }
    return this.manages || (await this.#othersWrite(signal));
  }

  /**
   * Whoever manages writes the tables, if it lives: that shows by now, or by a sign of life. Otherwise this one takes over.
   * @returns are the tables somebody's, or written? false: the signal came first
   */
  async #othersWrite(signal: AbortSignal): Promise<boolean> {
    const { queue } = this.#options;
    const since = performance.now();
    let first: number | null = null;
    for (let told = false; !signal.aborted; ) {
      if (this.manages) return this.finish(signal);
      const who = await queue.manager().catch(() => undefined);
      if (who === null) {
        await this.#round();
      } else if (who !== undefined) {
        first ??= who.until ?? null;
        if (who.until === undefined || who.until > (first ?? 0) + JITTER) return true;
        if (!told && performance.now() - since > RETRY) {
          told = true;
          this.#note(
            `pid ${who.pid} on ${who.host}, which writes the tables, gives no sign of life: this waits, and takes over once its time has run out. Ctrl-C: the next start does that`,
          );
        }
      }
      await pause(PAUSE, signal);
    }
    return false;
  }

  /** @returns are the tables in step, as far as that is ours? false also where the queue can't be used at the moment, which is told */
  async #round(): Promise<boolean> {
    try {
      await this.begin();
      const inStep = await this.#sync();
      // Where nobody asks for tasks, nobody else would notice.
      if (this.manages) await this.#options.queue.endLost();
      await this.#history.look();
      const now = await this.look();
      this.#whole = inStep && isOver(now) && this.#tables?.standing.completed === now.completed;
      this.#logProgress(now);
      this.#log.flush();
      if (this.#trouble !== null) this.#note('the queue can be used again');
      this.#trouble = null;
      this.#gone = null;
      return inStep;
    } catch (error) {
      if (!(error instanceof GPUOwnerError)) throw error;
      if (this.#trouble !== error.message) this.#note(error.message);
      this.#trouble = error.message;
      this.#gone = error instanceof QueueRemovedError ? error : null;
      // What is begun anew has other tasks, and counts its completions from 1.
      if (this.#gone !== null) await this.#resign().catch(() => {}); // tables tell their trouble themselves
      return false;
    }
  }

  async look(): Promise<Overview> {
    const now = await overview(this.#options.queue);
    this.#last = now;
    this.#options.onLook(now);
    return now;
  }

  /**
   * How things stand at the end. If the queue can't be asked any longer, but all had come to its end and was in the tables, it is what
   * it said last: nobody has to wait for it then.
   * @throws ERR_QUEUE
   */
  async conclude(): Promise<Overview> {
    if (this.#deaf) return this.#last as Overview;
    try {
      return await this.look();
    } catch (error) {
      if (!(error instanceof GPUOwnerError) || !this.#whole) throw error;
      this.#deaf = true;
      this.#options.tell(
        `everything has come to its end, and is in the tables; but ${error.message}`,
        'message',
      );
      return this.#last as Overview;
    }
  }

  /** @returns false: something is still to be written, and that can't be done now; it has been told */
  async #sync(): Promise<boolean> {
    if (this.#tables === null) return true;
    await this.#tables.sync();
    return this.#tables.standing.missing === 0;
  }

  /** Of results; null: somebody else looks after them. */
  get tables(): readonly string[] | null {
    return this.#tables?.standing.tables ?? null;
  }

  #logProgress({ completed, total }: Overview): void {
    const progress = `Progress: ${formatProgress(completed, total)}`;
    if (progress === this.#logged || !this.manages) return;
    this.#logged = progress;
    this.#log.write(progress);
    this.#options.tell(progress, 'event');
  }

  /**
   * What the table of a task has that may be its row; null: somebody else looks after the tables, or it can't be read.
   * @param inStep after everything else that is known has been written: rows that are other tasks' say so then
   */
  async rowsOf(taskId: string, inStep: boolean): Promise<RowsOfTask | null> {
    const tables = this.#tables;
    if (inStep) await tables?.sync();
    return (await tables?.rowsOf(taskId)) ?? null;
  }

  /** An attempt of a worker that asks this process for tasks has begun, or ended. */
  note(attempt: AttemptInfo): void {
    this.#history.note(attempt);
  }

  /** For the log, and for people. */
  tell(text: string): void {
    this.#note(text);
  }

  /** What a worker does; those of this process say it here. */
  record(text: string): void {
    if (this.manages) this.#log.write(text);
    this.#options.tell(text, 'event');
  }

  #note(text: string): void {
    if (this.manages) this.#log.write(text);
    this.#options.tell(text, 'message');
  }

  async close(): Promise<void> {
    await this.#tables?.close().catch(() => {}); // its trouble has been told
    this.#tables = null;
    await this.#leaveOffice();
    this.#log.close();
  }

  /** Never rejected: where the queue can't be told, the time of this one runs out. */
  async #leaveOffice(): Promise<void> {
    const office = this.#office;
    this.#office = null;
    await office?.release().catch(() => {});
  }
}

/** Tasks per question to the queue. */
const BATCH = 500;

/**
 * Refuses a sweep without a command, before anything of it is added, unless all that is left of it has one: from an earlier start.
 * @throws what the sweep says is wrong then
 */
export async function refuseCommandless(
  sweep: Sweep,
  queue: Pick<Queue, 'lookUp'>,
  project: string,
): Promise<void> {
  const { commandless } = sweep;
  if (commandless === null) return;
  let recorded: ReadonlyMap<string, string> | null = null;
  let batch: string[] = [];
  const check = async () => {
    for (const [at, row] of (await queue.lookUp(batch)).entries()) {
      if (row !== null) {
        if (['pending', 'active'].includes(row.state) && isNone(row.task.command)) throw commandless;
        continue;
      }
      recorded ??= await findRecordedTasks(sweep, project, queue);
      if (!recorded.has(batch[at] as string)) throw commandless;
    }
    batch = [];
  };
  for (const { parameters, command } of sweep.tasks()) {
    if (isNone(command) && batch.push(taskId(parameters)) === BATCH) await check();
  }
  await check();
}

function isNone(command: TaskCommand): boolean {
  return commandText(command) === NO_COMMAND_TEXT;
}
