import type { AttemptInfo, Queue } from '../queue/index.ts';
import { describeAttempt } from './events.ts';

/** How many completions are read at once, at most. */
const BATCH = 500;

/** What workers of other processes do, as far as the queue tells: those of this one report themselves. */
export class History {
  readonly #queue: Queue;
  readonly #self: { host: string; pid: number };
  readonly #report: (text: string) => void;
  /** Living attempts that have been reported. */
  readonly #living = new Map<string, AttemptInfo>();
  /** Tasks whose completion has been reported, until it is read as one. */
  readonly #completed = new Set<string>();
  /** Attempts that were noted as ended while a look went on: it may have seen them living. */
  readonly #ended = new Set<string>();
  #cursor = 0;

  constructor(
    { queue, host, pid }: { queue: Queue; host: string; pid: number },
    report: (text: string) => void,
  ) {
    this.#queue = queue;
    this.#self = { host, pid };
    this.#report = report;
  }

  /** What was before isn't told. */
  async begin(): Promise<void> {
    this.#cursor = 0;
    for (;;) {
      const before = await this.#queue.completed(this.#cursor, BATCH);
      const last = before.at(-1);
      if (last === undefined) break;
      this.#cursor = last.sequence;
    }
    for (const attempt of await this.#queue.attempts('living')) {
      if (!this.#isOwn(attempt)) this.#living.set(attempt.token, attempt);
    }
  }

  #isOwn({ taker: { host, pid } }: AttemptInfo): boolean {
    return pid === this.#self.pid && host === this.#self.host;
  }

  /** What is known at once, of an attempt that isn't a worker's of this process: that it began, or how it ended. */
  note(attempt: AttemptInfo): void {
    const { token, taskId, outcome } = attempt;
    if (outcome === null) this.#living.set(token, attempt);
    else {
      this.#ended.add(token);
      // A look was faster, or this one was given up for lost before: then completions tell.
      if (!this.#living.delete(token)) return;
      if (outcome === 'completed') this.#completed.add(taskId);
    }
    this.#report(describeAttempt(attempt));
  }

  async look(): Promise<void> {
    this.#ended.clear();
    const living = await this.#queue.attempts('living');
    const tokens = new Set(living.map(({ token }) => token));
    for (const attempt of living) {
      if (this.#isOwn(attempt) || this.#living.has(attempt.token) || this.#ended.has(attempt.token)) continue;
      this.#living.set(attempt.token, attempt);
      this.#report(describeAttempt({ ...attempt, outcome: null }));
    }
    for (const [token, { taskId }] of this.#living) {
      if (tokens.has(token)) continue;
      const ended = (await this.#queue.attempts({ taskId })).find((each) => each.token === token);
      // Noted meanwhile, or begun since the list was made; one that has ended without a word may be told of later.
      if (!this.#living.has(token) || ended?.outcome === null) continue;
      this.#living.delete(token);
      if (ended?.outcome) {
        this.#report(describeAttempt(ended));
        if (ended.outcome === 'completed') this.#completed.add(taskId);
      }
    }
    await this.#completions();
  }

  /** Tasks that came and went between two looks. */
  async #completions(): Promise<void> {
    for (;;) {
      const news = await this.#queue.completed(this.#cursor, BATCH);
      if (news.length === 0) return;
      for (const { sequence, task, source } of news) {
        this.#cursor = sequence;
        if (this.#completed.delete(task.id) || source === 'table') continue;
        const attempts = await this.#queue.attempts({ taskId: task.id });
        const last = attempts.findLast(({ outcome }) => outcome === 'completed');
        if (last === undefined || this.#isOwn(last)) continue;
        this.#living.delete(last.token);
        this.#report(describeAttempt(last));
      }
    }
  }
}
