import { join } from 'node:path';
import { GPUOwnerError, ifFailed } from '../../errors.ts';
import { listWords, sanitize, sleep } from '../../platform/index.ts';
import { isKnownAhead, type SeededSearch, type Sweep } from '../files/index.ts';
import {
  BestTrials,
  formatProgress,
  isOver,
  type RunProgress,
  readProgress,
  tallyOf,
} from '../progress/index.ts';
import type { Project } from '../project/index.ts';
import { type Counts, type Management, type Queue, QueueRemovedError } from '../queue/index.ts';
import { findLeft, noteSearch, SearchRun, type WorkersHere } from '../search/index.ts';
import { ResultTables, refuseUnusable, tablePath } from '../tables/index.ts';
import { pythonOf, type TaskSpec, type Values } from '../task/index.ts';
import { AskedTasks } from './asked-tasks.ts';
import { refuseCommandless } from './commands.ts';
import { AttemptEvents, ManagerLog } from './log.ts';
import { refuseToWait, refuseUnusableTables } from './unusable-tables.ts';

interface ManagerOptions {
  queue: Queue;
  /** The project whose directory has the tables, and the log. */
  project: Project;
  host: string;
  pid: number;
  /** Tells people what happens. `event`: to one task, `message`: to the experiment. */
  tell: (text: string, kind: 'event' | 'message') => void;
  /** The workers of this process; absent, null: other processes have them all. */
  workers?: () => WorkersHere | null;
  /** Gets the state of the experiment after each look. */
  onProgress: (progress: RunProgress) => void;
}

interface Adding {
  signal: AbortSignal;
}

const LOG = 'experiment_manager.log';
/** The longest time between two looks: others may change tables. */
const MAX_LOOK_INTERVAL_MS = 5_000;
/** The shortest time between two looks: tasks that end together are handled together. */
const MIN_LOOK_INTERVAL_MS = 300;
/** How often a table that can't be written is tried again. */
const RETRY_MS = 5_000;
/** How many names of values a message has. */
const MAX_NAMES = 10;
/** The inaccuracy of times that the queue tells. */
const JITTER_MS = 50;

/**
 * Adds the tasks, keeps the tables current, and tells what happens. One process per queue manages; the others watch, and one of
 * them takes over when it has gone. A manager may be killed at any time: queue and tables have all that another one needs.
 */
export class Manager {
  readonly #options: ManagerOptions;
  readonly #attemptEvents: AttemptEvents;
  readonly #log: ManagerLog;
  #tables: ResultTables | null = null;
  #last: RunProgress | null = null;
  #asked = new AskedTasks(null);
  /** Adds trials that aren't known ahead. */
  #search: SearchRun | null = null;
  /** null: a sweep without a search was asked for. */
  #best: BestTrials | null;
  #leadership: Management | null = null;
  /** The other manager that was told of. */
  #told: string | null = null;
  /** The error of the queue that was told. */
  #trouble: string | null = null;
  #queueRemoved: QueueRemovedError | null = null;
  #toldMissingValue = false;
  #logged = '';

  constructor(options: ManagerOptions) {
    this.#options = options;
    this.#best = new BestTrials(options.queue);
    this.#log = new ManagerLog(join(options.project.directory, LOG), (message) =>
      options.tell(`warning: ${message}`, 'message'),
    );
    this.#attemptEvents = new AttemptEvents(options, (text) => this.logEvent(text));
  }

  get manages(): boolean {
    return this.#leadership !== null;
  }

  /** Becomes the manager, unless another process is; then tells which. */
  async begin(): Promise<void> {
    const { queue, project, host, pid, tell } = this.#options;
    if (this.#leadership?.lost?.aborted) await this.#resign();
    if (this.#leadership !== null) return;
    if (this.#told === null) await this.#attemptEvents.begin();
    this.#leadership = await queue.manage({ host, pid });
    if (this.#leadership === null) return this.#tellWhoManages();
    this.#tables = new ResultTables(queue, project.directory, (message) => this.tell(message));
    if (this.#told !== null) tell('the other manager is gone: this process now writes the tables', 'message');
    this.#told = null;
  }

  /** Stops managing: another process may write the tables by now, or the queue is another one. */
  async #resign(): Promise<void> {
    await this.#releaseLeadership();
    await this.#tables?.close();
    this.#tables = null;
  }

  async #tellWhoManages(): Promise<void> {
    const who = await this.#options.queue.manager();
    if (who === null) return; // the manager has just gone; the next try will do
    const name = `pid ${who.pid}${who.host === this.#options.host ? '' : ` on ${who.host}`}`;
    if (this.#told === name) return;
    this.#told = name;
    this.#options.tell(
      `${name} manages this queue and writes its tables; this process takes over when that one is gone`,
      'message',
    );
  }

  /**
   * Adds the tasks of a sweep. Tasks that were added before the signal stay; the next start adds the rest.
   * @param options requireCommands: tasks that are left to run need one
   * @throws what `Queue.enqueue` throws, and what is wrong with a task; ERR_CONFIGURATION if its table couldn't be written here
   */
  async enqueue(sweep: Sweep, options: Adding & { requireCommands: boolean }): Promise<void> {
    const { queue, project } = this.#options;
    if (options.requireCommands) await refuseCommandless(sweep, queue);
    refuseUnusable(sweep.samples(), project.directory);
    if (sweep.search !== null && !isKnownAhead(sweep.search))
      return this.#beginSearch(sweep, sweep.search, options);
    const enqueued = await queue.enqueue(sweep.tasks(), options).catch((error) => {
      if (!options.signal.aborted) throw error;
    });
    if (enqueued === undefined) return;
    this.#asked = new AskedTasks(sweep);
    if (sweep.comparison === null) this.#best = null;
    else {
      const counts = Object.values(await queue.counts());
      const hasOthers = counts.reduce((sum, each) => sum + each, 0) > enqueued.added + enqueued.known;
      const left = sweep.search === null || !hasOthers ? {} : await findLeft(queue, sweep.search, null, null);
      await noteSearch(queue, sweep.comparison, true, null, left);
    }
    const { added, known, placed, replaced, failed, unreplaced } = enqueued;
    await queue.retry({ ids: failed });
    if (placed > 0) this.#tables?.rereadQueue();
    this.tell(`Generated ${added + known} total tasks`);
    const repeated = sweep.phases.reduce((sum, { repeatedLines }) => sum + repeatedLines, 0);
    if (repeated > 0)
      this.tell(`${repeated} ${repeated === 1 ? 'line is' : 'lines are'} repeated: equal commands run once`);
    if (known > 0) {
      const moreRows = placed > 0 ? `, of which ${placed} get one more row` : '';
      this.tell(`${added} of them are new, ${known} are known already${moreRows}`);
    }
    if (replaced > 0) this.tell(`${replaced} of them get another command`);
    if (unreplaced > 0)
      this.tell(
        `warning: ${unreplaced} of them run or are completed with another command, and keep it; to run them again: gpu-owner exp retry NAME`,
      );
  }

  /** Adds trials from now on. @throws ERR_INVALID_ARGUMENT if it can't */
  async #beginSearch(sweep: Sweep, search: SeededSearch, options: Adding): Promise<void> {
    const { queue, project, workers = () => null } = this.#options;
    const [sample] = sweep.samples();
    const run = new SearchRun({
      queue,
      search,
      python: pythonOf((sample as TaskSpec).command),
      directory: project.directory,
      manages: () => this.manages,
      add: async (task) => {
        await queue.enqueue([task], options);
      },
      workers,
      tell: (text) => this.tell(text),
    });
    try {
      await run.begin(options.signal);
    } catch (error) {
      run.close();
      if (options.signal.aborted) return;
      throw error;
    }
    await noteSearch(queue, search, run.remaining === 0, search.seed, run.left);
    this.#search = run;
    this.#asked = new AskedTasks(sweep, run.trials);
    const known = run.trials.size === 0 ? '' : `, of which ${run.trials.size} are known already`;
    const left = Object.keys(run.left).length;
    const others = left === 0 ? '' : `; ${left} others of its phase are of another space or seed`;
    this.tell(`Searching with ${search.trials} trials (${search.method})${known}${others}`);
  }

  /** Waits for a trial that a worker can have. @returns false: none comes, or other tasks are there that it can't have now */
  async awaitTrial(signal: AbortSignal): Promise<boolean> {
    const { queue } = this.#options;
    while (!signal.aborted && (await queue.paused()) === null) {
      const seen = queue.changeCount;
      if ((await queue.counts()).pending > 0) return (await queue.nextTime()) === null;
      if (this.#search === null || this.#search.remaining === 0) return false;
      await queue.changed(MAX_LOOK_INTERVAL_MS, signal, seen);
    }
    return false;
  }

  /**
   * Reads the tables for the first time: tasks that have a row needn't run.
   * @throws ERR_CONFIGURATION if a table can't be read: its tasks would run again; or if no row could be written to it
   */
  async firstSync(): Promise<void> {
    await this.#endSearchOfOthers();
    if (this.#tables === null) return;
    await this.#sync();
    await refuseUnusableTables(this.#tables.tableState, this.#options.queue, this.#options.project.directory);
    const { asked, others } = await this.readProgress();
    this.tell(`Marked ${asked.completed} tasks as already completed`);
    const waiting = others.counts.pending + others.counts.active;
    if (waiting > 0)
      this.tell(
        `besides, the task list has ${waiting} ${waiting === 1 ? 'task' : 'tasks'} of other sweeps to run; to leave them out: gpu-owner exp cancel`,
      );
  }

  /** Workers needn't wait for trials of a search that no process goes on with. */
  async #endSearchOfOthers(): Promise<void> {
    const { queue } = this.#options;
    if (this.#search !== null || !this.manages) return;
    const search = await queue.search();
    if (search === null || search.isOver) return;
    await queue.setSearch({ ...search, isOver: true });
    this.tell(`the search ${search.phase} isn't continued: to do so, repeat its command line`);
  }

  /**
   * Works until the signal comes. Then every completed task is in the tables, unless they can't be written. Ends before that if the queue
   * was removed: `finish` says so.
   */
  async run(signal: AbortSignal): Promise<void> {
    const ending = new AbortController();
    const searching = this.#search?.run(AbortSignal.any([signal, ending.signal]));
    try {
      await this.#look(signal);
    } finally {
      ending.abort();
      await searching;
    }
    await this.#round();
  }

  async #look(signal: AbortSignal): Promise<void> {
    const { queue } = this.#options;
    while (!signal.aborted) {
      // Before the look: workers of this process may notice changes in the pause, which are no news to `changed` then.
      const change = queue.changed(MAX_LOOK_INTERVAL_MS, signal).catch(ifFailed(undefined)); // the next look tells
      await this.#round();
      if (this.#queueRemoved !== null) return;
      await sleep(this.#trouble === null ? MIN_LOOK_INTERVAL_MS : RETRY_MS, signal);
      if (this.#trouble === null) await change;
    }
  }

  /**
   * Tries until the tables are current.
   * @returns false: the signal came first
   * @throws QueueRemovedError; ERR_CONFIGURATION if a person has to correct a table first; what has ended a search
   */
  async finish(signal: AbortSignal): Promise<boolean> {
    const isCurrent = await this.#finish(signal);
    if (this.#search?.error) throw this.#search.error;
    return isCurrent;
  }

  async #finish(signal: AbortSignal): Promise<boolean> {
    // Other processes may have added some. Only at the very end is it worth looking at every task for that.
    if (this.#last !== null && isOver(this.#last)) this.#tables?.rereadQueue();
    for (let tries = 0; !(await this.#round()); tries++) {
      if (signal.aborted) return false;
      if (this.#queueRemoved !== null) throw this.#queueRemoved;
      // An editor may be about to correct a table; later, nothing but a person would.
      if (tries > 0) refuseToWait(this.#tables?.tableState);
      else {
        this.tell(
          'all workers have ended, and no GPU is held; waiting until the tables can be written. After Ctrl-C, the next start writes them',
        );
      }
      await sleep(RETRY_MS, signal);
    }
    return this.manages || (await this.#otherManagerLives(signal));
  }

  /**
   * Waits for a heartbeat of the process that manages: then it writes the tables. If it is dead, this process takes over.
   * @returns whether the tables are written or will be; false: the signal came first
   */
  async #otherManagerLives(signal: AbortSignal): Promise<boolean> {
    const { queue } = this.#options;
    const since = performance.now();
    let first: number | null = null;
    for (let told = false; !signal.aborted; ) {
      if (this.manages) return this.#finish(signal);
      const who = await queue.manager().catch(ifFailed(undefined));
      if (who === null) {
        await this.#round();
      } else if (who !== undefined) {
        first ??= who.until ?? null;
        if (who.until === undefined || who.until > (first ?? 0) + JITTER_MS) return true;
        if (!told && performance.now() - since > RETRY_MS) {
          told = true;
          this.tell(
            `pid ${who.pid} on ${who.host}, which writes the tables, sends no heartbeat. This process waits, and takes over when the other one's leadership expires. After Ctrl-C, the next start does that`,
          );
        }
      }
      await sleep(MIN_LOOK_INTERVAL_MS, signal);
    }
    return false;
  }

  /** @returns whether the tables are current, if this process writes them; false also if the queue can't be used, which is reported */
  async #round(): Promise<boolean> {
    try {
      await this.begin();
      const tablesComplete = await this.#sync();
      // Without workers that ask for tasks, no other process would notice.
      if (this.manages) await this.#options.queue.endLost();
      await this.#attemptEvents.update();
      this.#logProgress(await this.readProgress());
      if (this.#trouble !== null) this.tell('the queue works again');
      this.#trouble = null;
      this.#queueRemoved = null;
      return tablesComplete;
    } catch (error) {
      if (!(error instanceof GPUOwnerError)) throw error;
      if (this.#trouble !== error.message) this.tell(error.message);
      this.#trouble = error.message;
      this.#queueRemoved = error instanceof QueueRemovedError ? error : null;
      return false;
    }
  }

  /** The tasks that this call asked for: all, unless a sweep was added. */
  get asked(): AskedTasks {
    return this.#asked;
  }

  async readProgress(): Promise<RunProgress> {
    const { queue } = this.#options;
    const { counts, ...progress } = await readProgress(queue);
    const { asked, others } = await this.#asked.split(queue, counts);
    // Trials to come are waiting, too.
    const more = this.#search?.remaining ?? 0;
    const withMore = (known: Counts) => tallyOf({ ...known, pending: known.pending + more });
    await this.#best?.update();
    this.#tellMissingValue();
    const best = this.#best?.best(1) ?? null;
    const now = { ...progress, ...withMore(counts), asked: withMore(asked.counts), others, best };
    this.#last = now;
    this.#options.onProgress(now);
    return now;
  }

  /** Tells once that trials have no value by which they could be compared. */
  #tellMissingValue(): void {
    const trial = this.#best?.withoutValue;
    const metric = this.#best?.search?.metric?.name;
    if (!trial || metric === undefined || this.#toldMissingValue) return;
    this.#toldMissingValue = true;
    const names = Object.keys(trial.result);
    const has = names.length === 0 ? 'it has none' : `it has ${listWords(names.slice(0, MAX_NAMES))}`;
    this.tell(
      `warning: ${trial.task.name} ${this.#search === null ? "isn't compared with others" : 'counts as failed in the search'}: its result has no number ${sanitize(metric, 100)} (${sanitize(has, 300)}). ` +
        'The program writes it to the file in GPU_OWNER_RESULT; another value: --metric NAME',
    );
  }

  /** @returns false: rows are missing that can't be written now, which has been told */
  async #sync(): Promise<boolean> {
    if (this.#tables === null) return true;
    await this.#tables.sync();
    return this.#tables.tableState.missing === 0;
  }

  /** The tables of results of the tasks that were asked for; null: another process writes them. */
  get tables(): readonly string[] | null {
    if (this.#tables === null) return null;
    const { directory } = this.#options.project;
    const asked = this.#asked.outputDirectories;
    const paths = asked === null ? null : new Set([...asked].map((each) => tablePath(directory, each)));
    const { tables } = this.#tables.tableState;
    return tables.filter(({ path }) => paths?.has(path) ?? true).map(({ shown }) => shown);
  }

  #logProgress({ asked: { completed, total } }: RunProgress): void {
    const progress = `Progress: ${formatProgress(completed, total)}`;
    if (progress === this.#logged || !this.manages) return;
    this.#logged = progress;
    this.#log.write(progress);
    this.#options.tell(progress, 'event');
  }

  /** Reads the result in the row that a running task has in its table; null: there is none, or another process writes the tables. */
  async resultInTable(taskId: string): Promise<Values | null> {
    return (await this.#tables?.resultOf(taskId)) ?? null;
  }

  /** Logs a message, and tells people. */
  tell(text: string): void {
    if (this.manages) this.#log.write(text);
    this.#options.tell(text, 'message');
  }

  /** Logs what a worker of this process does. */
  logEvent(text: string): void {
    if (this.manages) this.#log.write(text);
    this.#options.tell(text, 'event');
  }

  async close(): Promise<void> {
    await this.#tables?.close().catch(() => {}); // the error has been reported
    this.#tables = null;
    await this.#releaseLeadership();
    this.#log.close();
  }

  /** Never rejects: without the queue, the leadership expires. */
  async #releaseLeadership(): Promise<void> {
    const leadership = this.#leadership;
    this.#leadership = null;
    await leadership?.release().catch(() => {});
  }
}
