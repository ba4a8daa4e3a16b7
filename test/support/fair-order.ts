// A model of the wait queue's order, written from its description and not from the code: what processes do is compared with it. Every
// GPU will do for every request. Times are hours.

export interface ModelRequest {
  id: string;
  user: string;
  count: number;
  joined: number;
  /** Requests are served in the order of these. */
  start: number;
  end: number;
  isSuspended: boolean;
  /** How long it will run at most; Infinity: it isn't known. */
  hours: number;
  /** When it joined, among all. */
  turn: number;
}

interface ModelJob {
  user: string;
  count: number;
  began: number;
  hours: number;
}

export class FairModel {
  readonly gpus: number;
  readonly order: 'fair' | 'fifo';
  /** How many GPUs a user may have at a time. */
  readonly limits: Readonly<Record<string, number>>;
  /** So long a command takes to end after its time. */
  readonly grace: number;
  waiting: ModelRequest[] = [];
  readonly running = new Map<string, ModelJob>();
  #turns = 0;

  constructor(
    gpus: number,
    order: 'fair' | 'fifo' = 'fair',
    limits: Readonly<Record<string, number>> = {},
    grace = 0,
  ) {
    this.gpus = gpus;
    this.order = order;
    this.limits = limits;
    this.grace = grace;
  }

  held(user: string): number {
    return [...this.running.values()].reduce((sum, job) => sum + (job.user === user ? job.count : 0), 0);
  }

  get free(): number {
    return [...this.running.values()].reduce((left, { count }) => left - count, this.gpus);
  }

  /** The smallest start of those who wait, each with its age: a day counts as much as a GPU. */
  virtualTime(at: number): number {
    const aged = this.waiting.map(({ start, joined }) => start + (at - joined) / 24);
    return aged.length === 0 ? 0 : Math.min(...aged);
  }

  join(id: string, user: string, count: number, at: number, hours = Number.POSITIVE_INFINITY): ModelRequest {
    const time = this.virtualTime(at);
    const lastEnd = Math.max(0, ...this.waiting.filter((each) => each.user === user).map(({ end }) => end));
    const start = this.order === 'fifo' ? 0 : Math.max(time, time + this.held(user), lastEnd);
    const turn = this.#turns++;
    const request = {
      id,
      user,
      count,
      joined: at,
      start,
      end: start + count,
      isSuspended: false,
      hours,
      turn,
    };
    this.waiting.push(request);
    this.serve(at);
    return request;
  }

  /** All waiting requests, as they will be served. */
  get queue(): ModelRequest[] {
    return this.waiting.toSorted((a, b) => a.start - b.start || a.turn - b.turn);
  }

  leave(id: string, at: number): void {
    this.waiting = this.waiting.filter((each) => each.id !== id);
    this.serve(at);
  }

  suspend(id: string, isSuspended: boolean, at: number): void {
    for (const each of this.waiting) if (each.id === id) each.isSuspended = isSuspended;
    this.serve(at);
  }

  finish(id: string, at: number): void {
    this.running.delete(id);
    this.serve(at);
  }

  /** The first request gets GPUs, all or none. Until there are enough, the free ones are kept for it. */
  serve(at: number): void {
    const ahead: ModelRequest[] = [];
    for (const request of this.queue) {
      const { id, user, count, hours, isSuspended } = request;
      if (isSuspended || this.held(user) + count > (this.limits[user] ?? Number.POSITIVE_INFINITY)) continue;
      // Behind others: only if none of those starts later for it than if everybody takes as long as they may.
      if (count > this.free || (ahead.length > 0 && !this.fitsBefore(ahead, count, hours, at))) {
        ahead.push(request);
        continue;
      }
      this.waiting = this.waiting.filter((each) => each !== request);
      this.running.set(id, { user, count, began: at, hours });
    }
  }

  fitsBefore(ahead: readonly ModelRequest[], count: number, hours: number, at: number): boolean {
    const end = at + hours + this.grace;
    const plain = this.#latestStarts(ahead, at);
    const later = this.#latestStarts(ahead, at, { count, end });
    return plain.every((start, i) =>
      // One whose start isn't known can't start before those before it.
      Number.isFinite(start)
        ? (later[i] as number) <= start
        : plain.some((known, j) => j < i && Number.isFinite(known) && end <= known),
    );
  }

  /** When each of these starts at the latest, in their order. */
  #latestStarts(requests: readonly ModelRequest[], at: number, guest = { count: 0, end: 0 }): number[] {
    // One that should have ended may go on for ever.
    const expected = (end: number) => (end > at ? end : Number.POSITIVE_INFINITY);
    const ends = [...this.running.values()].flatMap(({ count, began, hours }) =>
      Array(count).fill(expected(began + hours + this.grace)),
    );
    const free = this.gpus - ends.length;
    let times = [...ends, ...Array(free - guest.count).fill(at), ...Array(guest.count).fill(guest.end)];
    return requests.map(({ count, hours }) => {
      times = times.sort((a, b) => a - b);
      const start = times[count - 1] ?? Number.POSITIVE_INFINITY;
      times = times.map((time, i) => (i < count ? start + hours + this.grace : time));
      return start;
    });
  }
}

/** When each of these starts, in hours. @param arrivals by time, each with how long it runs */
export function startsOf(
  model: FairModel,
  arrivals: readonly { id: string; user: string; count: number; at: number; hours: number }[],
): Map<string, number> {
  const starts = new Map<string, number>();
  const lasts = new Map(arrivals.map(({ id, hours }) => [id, hours]));
  const coming = [...arrivals];
  for (;;) {
    const ends = [...model.running].map(([id, { began }]) => ({ id, at: began + (lasts.get(id) ?? 0) }));
    const [end] = ends.sort((a, b) => a.at - b.at);
    const [next] = coming;
    if (end !== undefined && (next === undefined || end.at <= next.at)) model.finish(end.id, end.at);
    else if (next !== undefined)
      model.join(next.id, next.user, next.count, (coming.shift() ?? next).at, next.hours);
    else return starts;
    for (const [id, { began }] of model.running) starts.set(id, began);
  }
}
