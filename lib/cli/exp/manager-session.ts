import {
  type AttemptInfo,
  type Family,
  isOver,
  Manager,
  type Overview,
  type Project,
  ProtocolService,
  type Queue,
  queueFamilies,
  type Sweep,
  Tally,
} from '../../experiments/index.ts';
import { hostName, shellWords } from '../../platform/index.ts';
import type { Values } from '../arguments.ts';
import type { Ending } from './ending.ts';
import { openMetrics } from './metrics-options.ts';
import { outcomeOf } from './outcome.ts';
import type { ProtocolSettings } from './protocol-options.ts';
import { sameQueue } from './queue-options.ts';
import type { Screen } from './screen.ts';
import { summary } from './summary.ts';

export interface ManagerSessionOptions {
  queue: Queue;
  project: Project;
  protocol: ProtocolSettings;
  /** Goes on when everything has come to its end. */
  stay: boolean;
  screen: Screen;
  ending: Ending;
  values: Values;
}

/** How long a queue that was removed may come back, or be begun anew, in ms: as long as workers wait. */
const WHILE_GONE = 30_000;
/** How long workers are waited for that will ask once more, when nothing is left, in ms. */
const FAREWELL = 10_000;
const FAREWELL_STEP = 200;

/** `exp manager`, from the sweep to the summary. */
export class ManagerSession {
  readonly #options: ManagerSessionOptions;
  readonly #manager: Manager;
  readonly #service: ProtocolService;
  readonly #tally = new Tally();
  /** Aborted when there is nothing left to do. */
  readonly #over = new AbortController();
  #serves = false;
  #paused = '';

  constructor(options: ManagerSessionOptions) {
    const { queue, project, screen, protocol } = options;
    this.#options = options;
    this.#manager = new Manager({
      queue,
      project: project.directory,
      state: project.state,
      host: hostName(),
      pid: process.pid,
      tell: (text, kind) => screen.line(text, kind),
      onLook: (now) => this.#look(now),
    });
    this.#service = new ProtocolService({
      ...protocol,
      queue,
      rowsOf: (taskId, inStep) => this.#manager.rowsOf(taskId, inStep),
      report: (attempt) => this.#report(attempt),
      tell: (message) => this.#manager.tell(message),
    });
  }

  /** @param sweep null: what the queue has. @returns the exit code */
  async run(sweep: Sweep | null, replaceCommands: boolean): Promise<number> {
    const { queue, ending, screen, values, protocol } = this.#options;
    const metrics = await openMetrics(
      values,
      () => this.#families(),
      (text) => screen.line(text),
    );
    try {
      await this.#manager.begin();
      // First: where that can't be, nothing is to be changed. Who asks waits until the tables are read.
      await this.#service.listen(this.#manager.manages);
      const requireCommands = protocol.endpoints.length === 0;
      const adding = { replaceCommands, requireCommands, signal: ending.asked };
      if (sweep !== null) await this.#manager.enqueue(sweep, adding);
      if (!ending.asked.aborted) await this.#manager.firstSync();
      const inStep = ending.asked.aborted || (await this.#work());
      this.#serves = false;
      const now = await this.#manager.conclude();
      const outcome = outcomeOf(now, [], ending.code, inStep);
      const { tables } = this.#manager;
      for (const line of await summary(queue, now, outcome, tables, values, false)) screen.line(line);
      return outcome.code;
    } finally {
      await this.#service.close();
      await this.#manager.close();
      metrics?.close();
    }
  }

  /** @returns are the tables in step? */
  async #work(): Promise<boolean> {
    const { ending } = this.#options;
    this.#service.open();
    this.#serves = true;
    const end = AbortSignal.any([ending.asked, this.#over.signal]);
    this.#look(await this.#manager.look());
    await this.#manager.run(end, WHILE_GONE);
    const inStep = await this.#manager.finish(ending.asked);
    await this.#farewell();
    return inStep;
  }

  #look(now: Overview): void {
    this.#tellPause(now);
    if (!this.#serves) return;
    this.#service.retry();
    if (isOver(now) && !this.#options.stay) this.#over.abort();
  }

  #tellPause({ pause }: Overview): void {
    const { screen, values } = this.#options;
    const why = pause === null || pause.message === '' ? '' : `: ${pause.message.split('\n')[0]}`;
    const paused = pause === null ? '' : `paused${pause.by === 'failures' ? ' after failures' : ''}${why}`;
    if (paused !== this.#paused) {
      const resume = shellWords(['gpu-owner', 'exp', 'resume', ...sameQueue(values)]);
      screen.line(paused === '' ? 'the pause is over' : `${paused}; to go on: ${resume}`);
    }
    this.#paused = paused;
  }

  /** Workers of the original system end when they are told that no task is left, and complain if nobody tells them. */
  async #farewell(): Promise<void> {
    const { asked } = this.#options.ending;
    const end = performance.now() + FAREWELL;
    while (!this.#service.isQuiet && !asked.aborted && performance.now() < end) {
      await new Promise((resolve) => setTimeout(resolve, FAREWELL_STEP));
    }
  }

  #report(attempt: AttemptInfo): void {
    this.#tally.attempt(attempt);
    this.#manager.note(attempt);
  }

  async #families(): Promise<Family[]> {
    const connections: Family = {
      name: 'gpu_owner_protocol_connections',
      type: 'gauge',
      help: 'Connections of workers that ask over TCP.',
      samples: [{ labels: {}, value: this.#service.connections }],
    };
    const ofQueue = await queueFamilies(this.#options.queue, this.#manager.manages);
    return [...ofQueue, ...this.#tally.families(), connections];
  }
}
