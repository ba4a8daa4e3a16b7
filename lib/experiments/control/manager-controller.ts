import { GPUOwnerError } from '../../errors.ts';
import { hostName, TIMEOUTS } from '../../platform/index.ts';
import { isOver, Manager, type Progress } from '../manager/index.ts';
import { type Family, MetricsCollector, openMetrics, queueFamilies } from '../metrics/index.ts';
import { PHASE_MEMBER, ProtocolService, type ProtocolSettings } from '../protocol/index.ts';
import type { AttemptInfo, Needs } from '../queue/index.ts';
import type { Sweep } from '../sweep/index.ts';
import type { Values } from '../task/index.ts';
import { type ControllerOptions, concludeRun, type RunEnd } from './experiment.ts';

interface ManagerControllerOptions extends ControllerOptions {
  protocol: ProtocolSettings;
  /** Needs of each task, as far as the user has said them. */
  needs: Partial<Needs>;
  /** Goes on when every task has ended. */
  stay: boolean;
  /** The command that ends a pause. */
  resumeCommand: string;
}

/** How long the manager waits, when no task is left, for workers that will ask once more. */
const FAREWELL_TIMEOUT_MS = 10_000;
const FAREWELL_INTERVAL_MS = 200;

/** Runs `exp manager`, from the sweep to the end. */
export class ManagerController {
  readonly #options: ManagerControllerOptions;
  readonly #manager: Manager;
  readonly #service: ProtocolService;
  readonly #collector = new MetricsCollector();
  /** Aborted when no task is left. */
  readonly #over = new AbortController();
  #serves = false;
  #paused = '';

  constructor(options: ManagerControllerOptions) {
    const { queue, project, reporter, protocol } = options;
    this.#options = options;
    this.#manager = new Manager({
      queue,
      project,
      host: hostName(),
      pid: process.pid,
      tell: (text, kind) => reporter.line(text, kind),
      onProgress: (now) => this.#noteProgress(now),
    });
    this.#service = new ProtocolService({
      ...protocol,
      queue,
      resultInTable: (taskId) => this.#manager.resultInTable(taskId),
      awaitTrial: () => this.#manager.awaitTrial(this.#options.signals.drain),
      report: (attempt) => this.#report(attempt),
      tell: (message) => this.#manager.tell(message),
    });
  }

  /** @param sweep null: what the queue has */
  async run(sweep: Sweep | null, replaceCommands: boolean): Promise<RunEnd> {
    const { signals, reporter, protocol } = this.#options;
    const families = () => this.#families();
    const metrics = await openMetrics(this.#options.metrics, families, (text) => reporter.line(text));
    try {
      await this.#manager.begin();
      // First: where that can't be, nothing is to be changed. Requests wait until the tables are read.
      await this.#service.listen(this.#manager.manages);
      const requireCommands = protocol.endpoints.length === 0;
      if (!requireCommands) await this.#refuseHiddenParameter(sweep);
      const { needs } = this.#options;
      const adding = { replaceCommands, needs, requireCommands, signal: signals.drain };
      if (sweep !== null) await this.#manager.enqueue(sweep, adding);
      if (!signals.drain.aborted) await this.#manager.firstSync();
      const tablesComplete = signals.drain.aborted || (await this.#work());
      this.#serves = false;
      return await concludeRun(this.#manager, this.#options, { workers: [], tablesComplete });
    } finally {
      await this.#service.close();
      await this.#manager.close();
      metrics?.close();
    }
  }

  /** Refuses a parameter that workers over TCP don't get: rows that they write would match no task. */
  async #refuseHiddenParameter(sweep: Sweep | null): Promise<void> {
    const refuse = (parameters: Values): void => {
      if (!Object.hasOwn(parameters, PHASE_MEMBER)) return;
      throw new GPUOwnerError(
        'ERR_CONFIGURATION',
        `'${PHASE_MEMBER}' can't be a parameter of tasks for workers over TCP: they get the phase under this name. Rename the parameter, or use --no-listen and exp worker, or exp run.`,
      );
    };
    if (sweep !== null) for (const { parameters } of sweep.samples()) refuse(parameters);
    else
      for await (const { task } of this.#options.queue.tasks({ state: 'pending' })) refuse(task.parameters);
  }

  /** @returns whether the tables are in step */
  async #work(): Promise<boolean> {
    const { signals } = this.#options;
    this.#service.open();
    this.#serves = true;
    const end = AbortSignal.any([signals.drain, this.#over.signal]);
    this.#noteProgress(await this.#manager.readProgress());
    await this.#manager.run(end, TIMEOUTS.queueReturn);
    try {
      return await this.#manager.finish(signals.drain);
    } finally {
      await this.#farewell();
    }
  }

  #noteProgress(now: Progress): void {
    this.#tellPause(now);
    if (!this.#serves) return;
    this.#service.retry();
    if (isOver(now) && !this.#options.stay) this.#over.abort();
  }

  #tellPause({ pause }: Progress): void {
    const { reporter, resumeCommand } = this.#options;
    const why = pause === null || pause.message === '' ? '' : `: ${pause.message.split('\n')[0]}`;
    const paused = pause === null ? '' : `paused${pause.by === 'failures' ? ' after failures' : ''}${why}`;
    if (paused !== this.#paused) {
      reporter.line(paused === '' ? 'the pause is over' : `${paused}; to resume: ${resumeCommand}`);
    }
    this.#paused = paused;
  }

  /**
   * Stays for workers of the original system: they end when they are told that no task is left, and complain if no answer
   * comes.
   */
  async #farewell(): Promise<void> {
    const { drain } = this.#options.signals;
    const end = performance.now() + FAREWELL_TIMEOUT_MS;
    while (!this.#service.isQuiet && !drain.aborted && performance.now() < end) {
      await new Promise((resolve) => setTimeout(resolve, FAREWELL_INTERVAL_MS));
    }
  }

  #report(attempt: AttemptInfo): void {
    this.#collector.attempt(attempt);
    this.#manager.logAttempt(attempt);
  }

  async #families(): Promise<Family[]> {
    const connections: Family = {
      name: 'gpu_owner_protocol_connections',
      type: 'gauge',
      help: 'Connections of workers that ask over TCP.',
      samples: [{ labels: {}, value: this.#service.connections }],
    };
    const ofQueue = await queueFamilies(this.#options.queue, this.#manager.manages);
    return [...ofQueue, ...this.#collector.families(), connections];
  }
}
