import { isoTime } from '../platform/index.ts';
import type { Report, Sum } from '../shapes/index.ts';
import { type Ledger, readLedger, skip, type Use } from './read.ts';

export type Kind = Report['by'];
export const KINDS = ['user', 'group', 'gpu', 'day', 'job'] as const satisfies Kind[];

export interface SumOptions {
  /** ms since 1970 */
  since: number;
  until: number;
  by: Kind;
  /** How many GPUs the machine has; null: unknown. */
  gpus: number | null;
  groupOf: (use: Use) => string;
  /** Whether programs and names of this user may be shown. */
  showsCommand: (uid: number) => boolean;
}

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
const JOULES_PER_KWH = 3_600_000;

const MAX_LONGEST = 5;

interface Row {
  leases: number;
  ms: number;
  waited: number[];
  idleMs: number;
  readMs: number;
  joules: number | null;
}

/** Sums leases as they are read: a row for each key, the largest first; days in their order. */
export function reportOf({ uses, skipped }: Ledger, options: SumOptions): Report {
  const { since, until, by, gpus, showsCommand } = options;
  const rows = new Map<string, Row>();
  const passed = new PassedTime(since, until);
  const longest: { use: Use; ms: number }[] = [];
  for (const use of uses) {
    if (use.since >= until) continue;
    const parts = new Map<string, number>();
    const key = by === 'day' || by === 'gpu' ? null : keyOf(use, options);
    let total = 0;
    const isPossible = passed.take(use, (index, day, ms) => {
      const name = key ?? (by === 'gpu' ? String(index) : day);
      parts.set(name, (parts.get(name) ?? 0) + ms);
      total += ms;
    });
    if (!isPossible) {
      skip(skipped, use.uid);
      continue;
    }
    if (total === 0) continue; // such as of a claim that was killed at once
    if (longest.length < MAX_LONGEST || total > (longest.at(-1)?.ms ?? 0)) {
      longest.push({ use, ms: total });
      longest.sort((a, b) => b.ms - a.ms);
      longest.length = Math.min(longest.length, MAX_LONGEST);
    }
    for (const [name, ms] of parts) addTo(rows, name, use, ms);
  }
  return {
    since: isoTime(since),
    until: isoTime(until),
    by,
    gpus,
    rows: inOrder(rows, options),
    longest: longest.map(({ use, ms }) => ({
      user: use.user,
      job: jobOf(use, showsCommand(use.uid)),
      gpus: use.gpus.map(({ index }) => index),
      gpuHours: ms / HOUR_MS,
      since: isoTime(use.since),
      exit: use.exit,
    })),
    skipped: [...skipped.values()].reduce((sum, each) => sum + each, 0),
  };
}

/** Lines between two turns of the event loop. */
const LINES_AT_ONCE = 1_000;

/** What a user had of some days. */
interface DailyHours {
  user: string;
  uid: number;
  /** For each of the days. */
  gpuHours: number[];
}

/**
 * Sums the last local days of a ledger, this one included; 100,000 leases take a second of processor time.
 * @param gpus how many the machine has; null: unknown @returns who used GPUs, the largest sum first. Days such as 2026-01-31
 */
export async function dailyHours(
  path: string,
  gpus: number | null,
  count: number,
): Promise<{ days: string[]; users: DailyHours[] }> {
  const until = Date.now();
  const first = new Date(until);
  first.setDate(first.getDate() - count + 1);
  const begin = first.setHours(0, 0, 0, 0);
  const passed = new PassedTime(begin, until);
  const days = daysBetween(begin, until).map(({ key }) => key);
  const users = new Map<number, DailyHours>();
  let lines = 0;
  for (const use of readLedger(path, begin, gpus, null, until).uses) {
    const { uid, user } = use;
    passed.take(use, (_, day, ms) => {
      const hours = users.get(uid) ?? { user, uid, gpuHours: days.map(() => 0) };
      users.set(uid, hours);
      const at = days.indexOf(day);
      hours.gpuHours[at] = (hours.gpuHours[at] ?? 0) + ms / HOUR_MS;
    });
    if (++lines % LINES_AT_ONCE === 0) await new Promise(setImmediate);
  }
  const sum = ({ gpuHours }: DailyHours) => gpuHours.reduce((all, each) => all + each, 0);
  const used = [...users.values()].filter((each) => sum(each) > 0);
  return { days, users: used.sort((a, b) => sum(b) - sum(a) || a.uid - b.uid) };
}

/**
 * The time of each GPU that a user can have had: what the user's lines say beyond that doesn't count. By GPU and local day, so that
 * a lease that clocks have moved is cut, and not lost.
 */
class PassedTime {
  readonly #since: number;
  readonly #until: number;
  readonly #days: Day[];
  readonly #left = new Map<string, Float64Array>();

  constructor(since: number, until: number) {
    this.#since = since;
    this.#until = until;
    this.#days = daysBetween(since, until);
  }

  /** @param add is given what counts of each GPU and day, in ms @returns false: nothing of it can be */
  take({ uid, gpus, since, heldMs }: Use, add: (index: number, day: string, ms: number) => void): boolean {
    const begin = Math.max(since, this.#since);
    const end = Math.min(since + heldMs, this.#until);
    const first = Math.max(0, Math.floor((begin - (this.#days[0]?.begin ?? 0)) / DAY_MS) - 1);
    let isPossible = begin >= end;
    for (const { index, part } of gpus) {
      const left = this.#leftOf(`${uid} ${index}`);
      for (let i = first; i < this.#days.length; i++) {
        const { key, begin: from, end: to } = this.#days[i] as Day;
        if (from >= end && begin < from) break;
        const wanted = (Math.min(end, to) - Math.max(begin, from)) * part;
        const ms = Math.max(0, Math.min(wanted, left[i] ?? 0));
        if (wanted < 0 || (wanted > 0 && ms === 0)) continue;
        left[i] = (left[i] ?? 0) - ms;
        isPossible = true;
        add(index, key, ms);
      }
    }
    return isPossible;
  }

  #leftOf(key: string): Float64Array {
    let left = this.#left.get(key);
    if (left === undefined) {
      const lengths = this.#days.map(
        ({ begin, end }) => Math.min(end, this.#until) - Math.max(begin, this.#since),
      );
      left = Float64Array.from(lengths);
      this.#left.set(key, left);
    }
    return left;
  }
}

function addTo(rows: Map<string, Row>, key: string, use: Use, ms: number): void {
  const row = rows.get(key) ?? { leases: 0, ms: 0, waited: [], idleMs: 0, readMs: 0, joules: null };
  rows.set(key, row);
  row.leases++;
  row.ms += ms;
  row.waited.push(use.waitedMs / 1000);
  const { heldMs, meteredMs, idleMs, energyJoules } = use;
  if (meteredMs === 0) return;
  // Readings of a part of the lease stand for all of it, and for each of its GPUs.
  if (idleMs !== null) {
    row.readMs += ms;
    row.idleMs += (ms * idleMs) / meteredMs;
  }
  const all = heldMs * cardsOf(use);
  if (energyJoules !== null && all > 0)
    row.joules = (row.joules ?? 0) + (energyJoules * (heldMs / meteredMs) * ms) / all;
}

function inOrder(rows: ReadonlyMap<string, Row>, options: SumOptions): Sum[] {
  const sums = [...rows].map(([key, { leases, ms, waited, readMs, idleMs, joules }]) => {
    waited.sort((a, b) => a - b);
    const capacity = capacityOf(key, options);
    return {
      key,
      leases,
      gpuHours: ms / HOUR_MS,
      share: capacity === null || capacity <= 0 ? null : ms / capacity,
      waitedSeconds: { p50: percentile(waited, 0.5), p90: percentile(waited, 0.9) },
      idleShare: readMs === 0 ? null : idleMs / readMs,
      energyKWh: joules === null ? null : joules / JOULES_PER_KWH,
    };
  });
  const isInOrder = options.by === 'day';
  return sums.sort((a, b) => (isInOrder ? 0 : b.gpuHours - a.gpuHours) || (a.key < b.key ? -1 : 1));
}

/** How many GPUs it has, parts counted as such. */
function cardsOf({ gpus }: Use): number {
  return gpus.reduce((sum, { part }) => sum + part, 0);
}

/** A value of a sorted list, below or at which such a part of them lies; 0 for an empty one. */
function percentile(sorted: readonly number[], part: number): number {
  return sorted[Math.max(0, Math.ceil(part * sorted.length) - 1)] ?? 0;
}

function keyOf(use: Use, { by, groupOf, showsCommand }: SumOptions): string {
  if (by === 'group') return groupOf(use);
  return by === 'job' ? jobOf(use, showsCommand(use.uid)) : use.user;
}

/** `alice:7 train`, or `alice:python` for what was no job in the background; `alice` where no more may be shown. */
function jobOf({ user, job, name, program }: Use, isShown: boolean): string {
  if (!isShown) return user;
  const number = job === null ? [] : [String(job)];
  return `${user}:${[...number, name ?? program].join(' ')}`;
}

interface Day {
  key: string;
  begin: number;
  end: number;
}

/** The days, in local time, of which there is a part between two times. */
function daysBetween(from: number, until: number): Day[] {
  const days = [];
  const day = new Date(from);
  day.setHours(0, 0, 0, 0);
  while (day.getTime() <= until) {
    const begin = day.getTime();
    const two = (number: number) => String(number).padStart(2, '0');
    const key = `${day.getFullYear()}-${two(day.getMonth() + 1)}-${two(day.getDate())}`;
    day.setDate(day.getDate() + 1);
    days.push({ key, begin, end: day.getTime() });
  }
  return days;
}

function capacityOf(key: string, { since, until, by, gpus }: SumOptions): number | null {
  if (by === 'gpu') return until - since;
  if (gpus === null) return null;
  if (by !== 'day') return gpus * (until - since);
  const [day] = daysBetween(Date.parse(`${key}T00:00:00`), Date.parse(`${key}T00:00:00`));
  if (day === undefined) return null;
  return gpus * (Math.min(until, day.end) - Math.max(since, day.begin));
}
