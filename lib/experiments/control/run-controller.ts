import { hostName } from '../../platform/index.ts';
import { Eta, isOver, Manager, type RunProgress, readProgress } from '../manager/index.ts';
import { MetricsCollector, openMetrics, queueFamilies } from '../metrics/index.ts';
import type { Sweep } from '../sweep/index.ts';
import type { WorkerEnd, WorkerEvent } from '../worker/index.ts';
import { type ControllerOptions, concludeRun, type RunEnd, type RunView } from './experiment.ts';
import { type HostRequest, HostWorkers } from './host-workers.ts';
import { announce, type Pool, settingsFor, WorkerPool, type WorkerRequest } from './worker-pool.ts';

type RunOptions = ControllerOptions & {
  /** Workers of this process. */
  request: WorkerRequest;
  /** Workers on other machines; null: there are none, but those of this process. */
  hosts: HostRequest | null;
};

const MAX_FAILURES = 10;

/** Runs `exp run`, from the sweep to the end. */
export class RunController {
  readonly #options: RunOptions;
  readonly #host = hostName();
  readonly #manager: Manager;
  readonly #failures: { name: string; error: string }[] = [];
  readonly #collector = new MetricsCollector();
  #pool: Pool | null = null;
  #now: RunProgress | null = null;
  #eta: Eta | null = null;
  #paused = '';

  constructor(options: RunOptions) {
    const { queue, project, reporter } = options;
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
  }

  /** @param sweep null: what the queue has */
  async run(sweep: Sweep | null, { replaceCommands = false, only = false } = {}): Promise<RunEnd> {
    const { queue, signals, reporter } = this.#options;
    const families = async () => [
      ...(await queueFamilies(queue, this.#manager.manages)),
      ...this.#collector.families(),
    ];
    const metrics = await openMetrics(this.#options.metrics, families, (text) => reporter.line(text));
    try {
      await this.#manager.begin();
      const { needs } = this.#options.request;
      const adding = { replaceCommands, needs, requireCommands: true, signal: signals.drain };
      if (sweep !== null) await this.#manager.enqueue(sweep, adding);
      if (sweep !== null && only) await this.#manager.cancelOthers();
      if (!signals.drain.aborted) await this.#manager.firstSync();
      await this.#unpause();
      const done = signals.drain.aborted ? { workers: [], tablesComplete: false } : await this.#work();
      return await concludeRun(this.#manager, this.#options, done);
    } finally {
      metrics?.close();
      await this.#manager.close();
    }
  }

  /** Ends a pause that workers have made: a new start is to continue. */
  async #unpause(): Promise<void> {
    const pause = await this.#options.queue.paused();
    if (pause?.by !== 'failures') return;
    await this.#options.queue.resume();
    this.#options.reporter.line('the pause after failures is over: tasks are started again');
  }

  async #work(): Promise<{ workers: readonly WorkerEnd[]; tablesComplete: boolean }> {
    const { reporter, signals } = this.#options;
    const now = await this.#manager.readProgress();
    this.#eta = new Eta(Date.now(), now.asked.ended);
    const over = new AbortController();
    if (isOver(now)) {
      return { workers: [], tablesComplete: await this.#manager.finish(signals.drain) };
    }
    const pool = await this.#makePool(now);
    this.#pool = pool;
    signals.forwardTo(pool, (text) => reporter.line(text));
    reporter.show(() => this.#view());
    const managing = this.#manager.run(over.signal);
    const ends = await pool.run();
    await this.#pauseAfterFailures(
      ends.flatMap((end) => (end.why === 'failures' ? [end.message ?? ''] : [])),
      ends.length,
    );
    over.abort();
    this.#pool = null; // the end reports what became of its workers
    await managing;
    return { workers: ends, tablesComplete: await this.#manager.finish(signals.drain) };
  }

  async #makePool({ counts }: RunProgress): Promise<Pool> {
    const { queue, project, request, hosts } = this.#options;
    const logEvent = (text: string) => this.#manager.logEvent(text);
    const onFailure = (name: string, error: string) => {
      this.#failures.unshift({ name, error });
      this.#failures.length = Math.min(this.#failures.length, MAX_FAILURES);
    };
    const listeners = { collector: this.#collector, logEvent, onFailure };
    if (hosts !== null) {
      // The manager logs attempts of other processes itself.
      const report = (event: WorkerEvent) => announce(event, { ...listeners, logEvent: () => {} });
      const tell = (text: string) => this.#manager.tell(text);
      return new HostWorkers({ ...hosts, queue, report, tell, logEvent });
    }
    const report = (event: WorkerEvent) => announce(event, listeners);
    const { workers, ...settings } = await settingsFor(request, await queue.needs());
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
    const { pause } = now;
    const paused = pause?.by === 'person' ? `paused${pause.message === '' ? '' : `: ${pause.message}`}` : '';
    if (paused !== this.#paused) {
      this.#options.reporter.line(
        paused === '' ? 'the pause is over' : `${paused}; to resume: gpu-owner exp resume`,
        'event',
      );
    }
    this.#paused = paused;
  }

  #endingNotes(): string[] {
    const { drain, stop } = this.#options.signals;
    if (stop.aborted) return ['ending at once: running tasks are stopped and requeued'];
    return drain.aborted ? ['ending when running tasks finish; a second Ctrl-C stops them'] : [];
  }

  #view(): RunView {
    const now = this.#now as RunProgress;
    const own = this.#pool?.lines ?? [];
    const others = now.running
      .filter(({ worker }) => this.#pool?.owns(worker) !== true)
      .map(({ worker, taskName, since }) => ({
        worker: worker.host === this.#host ? worker.name : `${worker.host} ${worker.name}`,
        doing: taskName,
        since,
      }));
    const notes = [
      ...(this.#paused === '' ? [] : [`${this.#paused}; to resume: gpu-owner exp resume`]),
      ...this.#endingNotes(),
    ];
    return {
      progress: { ...now, ...now.asked },
      eta: this.#eta as Eta,
      best: now.best,
      workers: [...own, ...others],
      failures: this.#pool === null ? [] : this.#failures,
      notes,
    };
  }
}
