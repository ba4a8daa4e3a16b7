// A model of the wait queue's order, start-time fair queueing, written from its description and not from the code: what processes do is
// compared with it. Every GPU will do for every request. Times are hours.

export interface ModelRequest {
  id: string;
  user: string;
  count: number;
  joined: number;
  /** Requests are served in the order of these; in millionths of a GPU hour. */
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
  /** The largest start and end that each user was granted, and the leases that have ended. */
  readonly granted = new Map<string, { start: number; end: number }>();
  readonly ended: { user: string; hours: number }[] = [];
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

  /** How long a user's next job is expected to last: as long as the last 20, from a minute to a day, and no longer than it may. */
  expectedHours(user: string, limit: number): number {
    const own = this.ended.filter((each) => each.user === user);
    const last = (own.length > 0 ? own : this.ended).slice(-20);
    const mean = last.length === 0 ? 0 : last.reduce((sum, each) => sum + each.hours, 0) / last.length;
    return Math.min(24, Math.max(1 / 60, Math.min(mean, limit)));
  }

  /** The start of a user's next request. */
  startFor(user: string): number {
    if (this.order === 'fifo') return 0;
    const time = Math.max(0, ...[...this.granted.values()].map(({ start }) => start));
    const lastEnd = this.waiting.filter((each) => each.user === user).map(({ end }) => end);
    return Math.max(time, this.granted.get(user)?.end ?? 0, ...lastEnd);
  }

  join(id: string, user: string, count: number, at: number, hours = Number.POSITIVE_INFINITY): ModelRequest {
    const time = Math.max(0, ...[...this.granted.values()].map(({ start }) => start));
    const lastEnd = this.waiting.filter((each) => each.user === user).map(({ end }) => end);
    const start = this.order === 'fifo' ? 0 : Math.max(time, this.granted.get(user)?.end ?? 0, ...lastEnd);
    const turn = this.#turns++;
    const request = {
      id,
      user,
      count,
      joined: at,
      start,
      end: start + Math.ceil(count * this.expectedHours(user, hours) * 1e6),
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
    const job = this.running.get(id);
    if (job !== undefined) this.ended.push({ user: job.user, hours: at - job.began });
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
      this.grant(request);
      this.serve(at); // others may come first now
      return;
    }
  }

  /** A granted request, and those of the user that wait, are charged with what is known now. */
  grant({ user, count, hours, start, end }: ModelRequest): void {
    const cost = Math.ceil(count * this.expectedHours(user, hours) * 1e6);
    const before = this.granted.get(user) ?? { start: 0, end: 0 };
    const after = { start: Math.max(before.start, start), end: Math.max(before.end, start + cost) };
    this.granted.set(user, after);
    if (Math.max(cost, end - start) <= 1.25 * Math.min(cost, end - start) || this.order === 'fifo') return;
    const time = Math.max(...[...this.granted.values()].map((each) => each.start));
    let last = after.end;
    for (const each of this.queue.filter((other) => other.user === user)) {
      const joiningNow = Math.max(time, last);
      each.start = joiningNow < each.start ? joiningNow : Math.max(last, each.start);
      last = each.start + Math.ceil(each.count * this.expectedHours(user, each.hours) * 1e6);
      each.end = last;
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
