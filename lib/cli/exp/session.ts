import type { Settings } from '../../claims/index.ts';
import {
  isOver,
  Manager,
  type Overview,
  overview,
  Pace,
  type Project,
  type Queue,
  queueFamilies,
  type Sweep,
  Tally,
} from '../../experiments/index.ts';
import { hostName } from '../../platform/index.ts';
import type { Values } from '../arguments.ts';
import { isTerminal } from '../output.ts';
import { Crew } from './crew.ts';
import type { Ending } from './ending.ts';
import type { View } from './frame.ts';
import { openMetrics } from './metrics-options.ts';
import { type Outcome, outcomeOf } from './outcome.ts';
import type { Screen } from './screen.ts';
import { summary } from './summary.ts';

export interface SessionOptions {
  queue: Queue;
  project: Project;
  settings: Settings;
  workers: number;
  /** In ms; null: no limit. */
  grace: number | null;
  screen: Screen;
  ending: Ending;
  /** The options of the command line, for commands that are named. */
  values: Values;
}

const MOST_FAILURES = 10;

/** `exp run`, from the sweep to the summary. */
export class Session {
  readonly #options: SessionOptions;
  readonly #host = hostName();
  readonly #manager: Manager;
  readonly #failures: { name: string; error: string }[] = [];
  readonly #tally = new Tally();
  #crew: Crew | null = null;
  #now: Overview | null = null;
  #pace: Pace | null = null;
  #paused = '';

  constructor(options: SessionOptions) {
    const { queue, project, screen } = options;
    this.#options = options;
    this.#manager = new Manager({
      queue,
      project: project.directory,
      state: project.state,
      host: this.#host,
      pid: process.pid,
      tell: (text, kind) => screen.line(text, kind),
      onLook: (now) => this.#look(now),
    });
  }

  /** @param sweep null: what the queue has. @returns the exit code */
  async run(sweep: Sweep | null, replaceCommands: boolean): Promise<number> {
    const { queue, ending, values, screen } = this.#options;
    const metrics = await openMetrics(
      values,
      async () => [...(await queueFamilies(queue, this.#manager.manages)), ...this.#tally.families()],
      (text) => screen.line(text),
    );
    try {
      await this.#manager.begin();
      const adding = { replaceCommands, requireCommands: true, signal: ending.asked };
      if (sweep !== null) await this.#manager.enqueue(sweep, adding);
      if (!ending.asked.aborted) await this.#manager.firstSync();
      await this.#unpause();
      const outcome = ending.asked.aborted ? { code: ending.code as number, ends: [] } : await this.#work();
      const now = await this.#manager.conclude();
      this.#options.screen.end();
      for (const line of await summary(queue, now, outcome, this.#manager.tables, values, true))
        this.#options.screen.line(line);
      return outcome.code;
    } finally {
      metrics?.close();
      await this.#manager.close();
    }
  }

  /** Workers have paused it before; who starts it again wants it to go on. */
  async #unpause(): Promise<void> {
    const pause = await this.#options.queue.paused();
    if (pause?.by !== 'failures') return;
    await this.#options.queue.resume();
    this.#options.screen.line('the pause after failures is over: tasks are started again');
  }

  async #work(): Promise<Outcome> {
    const { screen, ending, workers } = this.#options;
    const now = await this.#manager.look();
    this.#pace = new Pace(Date.now(), now.ended);
    const over = new AbortController();
    if (isOver(now)) {
      const inStep = await this.#manager.finish(ending.asked);
      return outcomeOf(now, [], ending.code, inStep);
    }
    const crew = new Crew({
      ...this.#options,
      host: this.#host,
      size: Math.min(workers, Math.max(1, now.counts.pending + now.counts.active)),
      record: (text) => this.#manager.record(text),
      onFailure: (name, error) => {
        this.#failures.unshift({ name, error });
        this.#failures.length = Math.min(this.#failures.length, MOST_FAILURES);
      },
      watched: isTerminal(1),
      tally: this.#tally,
    });
    this.#crew = crew;
    ending.obey(crew, (text) => screen.line(text));
    screen.show(() => this.#view());
    const managing = this.#manager.run(over.signal);
    const ends = await crew.run();
    await this.#pauseAfterFailures(
      ends.flatMap((end) => (end.why === 'failures' ? [end.message ?? ''] : [])),
      ends.length,
    );
    over.abort();
    this.#crew = null; // what became of its workers is for the summary
    await managing;
    const inStep = await this.#manager.finish(ending.asked);
    return outcomeOf(await this.#manager.conclude(), ends, ending.code, inStep);
  }

  /** All workers have stopped for failures, and no others run anything. */
  async #pauseAfterFailures(messages: readonly string[], workers: number): Promise<void> {
    const { queue } = this.#options;
    if (messages.length < workers) return;
    const { counts } = await overview(queue);
    if (counts.active > 0 || counts.pending === 0 || (await queue.paused()) !== null) return;
    await queue.pause('failures', messages.at(-1) as string);
  }

  #look(now: Overview): void {
    this.#now = now;
    this.#pace?.note(Date.now(), now.ended);
    const { pause } = now;
    const paused = pause?.by === 'person' ? `paused${pause.message === '' ? '' : `: ${pause.message}`}` : '';
    if (paused !== this.#paused) {
      this.#options.screen.line(
        paused === '' ? 'the pause is over' : `${paused}; to go on: gpu-owner exp resume`,
        'event',
      );
    }
    this.#paused = paused;
  }

  #view(): View {
    const now = this.#now as Overview;
    const own = this.#crew?.lines ?? [];
    const others = now.running
      .filter(({ taker }) => taker.pid !== process.pid || taker.host !== this.#host)
      .map(({ taker, taskName, since }) => ({
        worker: taker.host === this.#host ? taker.worker : `${taker.host} ${taker.worker}`,
        doing: taskName,
        since,
      }));
    const notes = [
      ...(this.#paused === '' ? [] : [`${this.#paused}; to go on: gpu-owner exp resume`]),
      ...(this.#options.ending.asked.aborted
        ? ['ending when these are finished; Ctrl-C once more: at once']
        : []),
    ];
    return {
      overview: now,
      pace: this.#pace as Pace,
      workers: [...own, ...others],
      failures: this.#crew === null ? [] : this.#failures,
      notes,
    };
  }
}
