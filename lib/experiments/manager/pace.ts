/** Ends of tasks that the pace is taken from. */
const WINDOW = 200;
/** Fewer say nothing. */
const FEWEST = 2;

/** How fast tasks end, from when the last of them have. */
export class Pace {
  #seen: { at: number; ended: number }[];

  /** @param at now, in ms. @param ended how many have ended before anything was watched */
  constructor(at: number, ended: number) {
    this.#seen = [{ at, ended }];
  }

  /** @param ended how many have ended until now; fewer than before (some were retried): begins anew */
  note(at: number, ended: number): void {
    const last = this.#seen.at(-1);
    if (last !== undefined && ended < last.ended) this.#seen = [];
    else if (last !== undefined && ended === last.ended) return;
    this.#seen.push({ at, ended });
    while (this.#seen.length > 2 && ended - (this.#seen[1]?.ended ?? 0) >= WINDOW) this.#seen.shift();
  }

  /** Tasks per ms; null: not known yet. A task that takes longer than any before slows it down. */
  rate(at: number): number | null {
    const [first] = this.#seen;
    const last = this.#seen.at(-1);
    if (first === undefined || last === undefined || last.ended - first.ended < FEWEST) return null;
    const count = last.ended - first.ended;
    const perTask = (last.at - first.at) / count;
    const passed = Math.max(last.at, at - perTask) - first.at;
    return passed <= 0 ? null : count / passed;
  }

  /** How long the rest takes, in ms; null: not known yet. */
  left(at: number, rest: number): number | null {
    const rate = this.rate(at);
    return rate === null ? null : rest / rate;
  }
}

/** "3.2 tasks/s", in the unit in which it is a number that people like. @param rate tasks per ms */
export function formatRate(rate: number): string {
  for (const [unit, milliseconds] of [
    ['s', 1_000],
    ['min', 60_000],
    ['h', 3_600_000],
  ] as const) {
    const tasks = rate * milliseconds;
    if (tasks >= 1 || unit === 'h')
      return `${tasks >= 100 ? Math.round(tasks) : tasks.toFixed(1)} tasks/${unit}`;
  }
  return '';
}
