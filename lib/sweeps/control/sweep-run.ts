import { setTimeout as sleep } from 'node:timers/promises';
import { ifFailed } from '../../errors.ts';
import { hostName } from '../../platform/index.ts';
import type { Sweep } from '../files/index.ts';
import { describeEvent, firstLine, Manager } from '../manager/index.ts';
import { Eta, isOver, type RunProgress, readFailures, readProgress } from '../progress/index.ts';
import { ProtocolService, type ProtocolSettings } from '../protocol/index.ts';
import type { WorkerEnd, WorkerEvent } from '../worker/index.ts';
import type { Experiment, Reporter, RunEnd, RunView } from './experiment.ts';
import { type HostRequest, HostWorkers } from './host-workers.ts';
import { describeStops, type Pool, settingsFor, WorkerPool, type WorkerRequest } from './worker-pool.ts';

interface SweepRunOptions extends Experiment {
  reporter: Reporter;
  /** Workers of this process, or on other machines over ssh; null: other processes have them all, as with `exp manager`. */
  own: { request: WorkerRequest; hosts: HostRequest | null } | null;
  /** How many GPUs each task of the list gets, if the user has said it. */
  gpusPerTask: number | null;
  /** How workers that ask over TCP are served; absent: they aren't. */
  protocol?: ProtocolSettings;
  /** Without own workers: goes on when every task has ended. */
  stay?: boolean;
  /** The command that ends a pause. */
  resumeCommand?: string;
}

const MAX_FAILURES = 10;
/** How long the end waits, when no task is left, for workers over TCP that will ask once more. */
const FAREWELL_TIMEOUT_MS = 10_000;
const FAREWELL_INTERVAL_MS = 200;

/** Runs a sweep from its start to its end: `exp run`, or `exp manager`, which has no workers of its own. */
export class SweepRun {
  readonly #options: SweepRunOptions;
  readonly #host = hostName();
  readonly #manager: Manager;
  readonly #service: ProtocolService | null;
  readonly #failures: { name: string; error: string }[] = [];
  /** Without own workers: aborted when no task is left. */
  readonly #over = new AbortController();
  #serves = false;
  #pool: Pool | null = null;
  #now: RunProgress | null = null;
  #eta: Eta | null = null;
  #paused = '';

  constructor(options: SweepRunOptions) {
    const { queue, project, reporter, protocol, signals } = options;
    this.#options = options;
    this.#manager = new Manager({
      queue,
      project,
      host: this.#host,
      pid: process.pid,
      tell: (text, kind) => reporter.line(text, kind),
      workers: () => {
        const pool = this.#pool;
        if (!(pool instanceof WorkerPool)) return null;
        return { count: pool.size, isOwn: (worker) => pool.owns(worker) };
      },
      onProgress: (now) => this.#noteProgress(now),
    });
    this.#service =
      protocol === undefined
        ? null
        : new ProtocolService({
            ...protocol,
            queue,
            resultInTable: (taskId) => this.#manager.resultInTable(taskId),
            awaitTrial: () => this.#manager.awaitTrial(signals.drain),
            tell: (message) => this.#manager.tell(message),
          });
  }

  /** @param sweep null: what the queue has */
  async run(sweep: Sweep | null): Promise<RunEnd> {
    const { signals, own, gpusPerTask, protocol } = this.#options;
    try {
      await this.#manager.begin();
      // First: where that can't be, nothing is to be changed. Requests wait until the tables are read.
      await this.#service?.listen(this.#manager.manages);
      const requireCommands = protocol === undefined || protocol.endpoints.length === 0;
      if (gpusPerTask !== null) await this.#options.queue.setGPUsPerTask(gpusPerTask);
      const adding = { requireCommands, signal: signals.drain };
      if (sweep !== null) await this.#manager.enqueue(sweep, adding);
      if (!signals.drain.aborted) await this.#manager.firstSync();
      if (own !== null) await this.#unpause();
      const done = signals.drain.aborted ? { workers: [], tablesComplete: false } : await this.#work();
      const stops = describeStops(done.workers);
      return await this.#conclude({ ...done, stops });
    } finally {
      await this.#service?.close();
      await this.#manager.close();
    }
  }

  async #conclude(done: Pick<RunEnd, 'workers' | 'stops' | 'tablesComplete'>): Promise<RunEnd> {
    const { queue, reporter, signals } = this.#options;
    const { asked, others, best, ...all } = await this.#manager.readProgress();
    const isAsked = (id: string) => this.#manager.asked.includes(id);
    const end = {
      ...done,
      progress: { ...all, ...asked },
      others,
      best,
      interrupted: signals.exitCode,
      tables: this.#manager.tables,
      failures: await readFailures(queue, asked, isAsked).catch(ifFailed([])),
    };
    reporter.conclude(end);
    return end;
  }

  /** Ends a pause that workers have made: a new start is to continue. */
  async #unpause(): Promise<void> {
    const pause = await this.#options.queue.paused();
    if (pause?.by !== 'failures') return;
    await this.#options.queue.resume();
    this.#options.reporter.line('the pause after failures is over: tasks are started again');
  }

  async #work(): Promise<{ workers: readonly WorkerEnd[]; tablesComplete: boolean }> {
    const { own, signals } = this.#options;
    const now = await this.#manager.readProgress();
    this.#eta = new Eta(Date.now(), now.asked.ended);
    let workers: readonly WorkerEnd[] = [];
    if (own === null) await this.#serve(now);
    else if (!isOver(now)) workers = await this.#runWorkers(now, own);
    try {
      return { workers, tablesComplete: await this.#manager.finish(signals.drain) };
    } finally {
      this.#serves = false;
      await this.#farewell();
    }
  }

  /** Manages until workers of other processes have ended all tasks. */
  async #serve(now: RunProgress): Promise<void> {
    this.#service?.open();
    this.#serves = true;
    this.#noteProgress(now);
    const end = AbortSignal.any([this.#options.signals.drain, this.#over.signal]);
    await this.#manager.run(end);
  }

  /** Waits for workers of the original system: they end when they learn that no task is left, and complain if no answer comes. */
  async #farewell(): Promise<void> {
    const { drain } = this.#options.signals;
    const end = performance.now() + FAREWELL_TIMEOUT_MS;
    while (this.#service?.isQuiet === false && !drain.aborted && performance.now() < end)
      await sleep(FAREWELL_INTERVAL_MS);
  }

  async #runWorkers(
    now: RunProgress,
    own: NonNullable<SweepRunOptions['own']>,
  ): Promise<readonly WorkerEnd[]> {
    const { reporter, signals } = this.#options;
    const pool = await this.#makePool(now, own);
    this.#pool = pool;
    signals.forwardTo(pool, (text) => reporter.line(text));
    reporter.show(() => this.#view());
    const over = new AbortController();
    const managing = this.#manager.run(over.signal);
    const ends = await pool.run();
    await this.#pauseAfterFailures(
      ends.flatMap((end) => (end.why === 'failures' ? [end.message ?? ''] : [])),
      ends.length,
    );
    over.abort();
    this.#pool = null; // the end reports what became of its workers
    await managing;
    return ends;
  }

  async #makePool(
    { counts }: RunProgress,
    { request, hosts }: NonNullable<SweepRunOptions['own']>,
  ): Promise<Pool> {
    const { queue, project } = this.#options;
    const logEvent = (text: string) => this.#manager.logEvent(text);
    const onFailure = (name: string, error: string) => {
      this.#failures.unshift({ name, error: firstLine(error) });
      this.#failures.length = Math.min(this.#failures.length, MAX_FAILURES);
    };
    if (hosts !== null) {
      const tell = (text: string) => this.#manager.tell(text);
      return new HostWorkers({ ...hosts, queue, onFailure, tell });
    }
    const report = (event: WorkerEvent) => {
      const text = describeEvent(event);
      // A display shows what is waited for, and hides events of tasks.
      if (event.type === 'waiting') this.#manager.tell(event.text);
      else if (text !== null) logEvent(text);
      if (event.type === 'failed') onFailure(event.task.name, event.error);
    };
    const { workers, ...settings } = await settingsFor(request, await queue.gpusPerTask());
    const wanted = Math.max(1, counts.pending + counts.active);
    const host = this.#host;
    return new WorkerPool({ ...settings, queue, project, host, workers: Math.min(workers, wanted), report });
  }

  /** All workers have stopped for failures, and no others run anything. */
  async #pauseAfterFailures(messages: readonly string[], workers: number): Promise<void> {
    const { queue } = this.#options;
    const message = messages.at(-1);
    if (message === undefined || messages.length < workers) return;
    const { counts } = await readProgress(queue);
    if (counts.active > 0 || counts.pending === 0 || (await queue.paused()) !== null) return;
    await queue.pause('failures', message);
  }

  #noteProgress(now: RunProgress): void {
    this.#now = now;
    this.#eta?.note(Date.now(), now.asked.ended);
    this.#tellPause(now);
    if (!this.#serves) return;
    this.#service?.retry();
    if (isOver(now) && !this.#options.stay) this.#over.abort();
  }

  /** The end tells of a pause by own workers. */
  #tellPause({ pause }: RunProgress): void {
    const { own, reporter } = this.#options;
    const isOwn = pause?.by === 'failures' && own !== null;
    const why = pause === null || pause.message === '' ? '' : `: ${pause.message.split('\n')[0]}`;
    const paused =
      pause === null || isOwn ? '' : `paused${pause.by === 'failures' ? ' after failures' : ''}${why}`;
    if (paused !== this.#paused)
      reporter.line(paused === '' ? 'the pause is over' : `${paused}; ${this.#howToResume}`, 'event');
    this.#paused = paused;
  }

  get #howToResume(): string {
    return `to resume: ${this.#options.resumeCommand ?? 'gpu-owner exp resume'}`;
  }

  #endingNotes(): string[] {
    const { drain, stop } = this.#options.signals;
    if (stop.aborted) return ['ending at once: running tasks are stopped and requeued'];
    return drain.aborted ? ['ending when running tasks finish; a second Ctrl-C stops them'] : [];
  }

  #view(): RunView {
    const now = this.#now as RunProgress;
    const notes = [
      ...(this.#paused === '' ? [] : [`${this.#paused}; ${this.#howToResume}`]),
      ...this.#endingNotes(),
    ];
    return {
      progress: { ...now, ...now.asked },
      eta: this.#eta as Eta,
      best: now.best,
      failures: this.#pool === null ? [] : this.#failures,
      notes,
    };
  }
}
