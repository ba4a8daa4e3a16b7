import { isoTime } from '../platform/index.ts';
import type { Ledger, Use } from './read.ts';

export const KINDS = ['user', 'group', 'gpu', 'day', 'job'] as const;
export type Kind = (typeof KINDS)[number];

/** Sums of the leases with one key. Times of GPUs count by the part of the card. */
export interface Sum {
  key: string;
  /** How many leases there were, at least in part. */
  leases: number;
  gpuHours: number;
  /** The part of the time that the machine's GPUs had, from 0 to 1; of the GPU's, or the day's, where the key is one. null: unknown. */
  share: number | null;
  /** How long the leases had been waited for. */
  waitedSeconds: { p50: number; p90: number };
  /** The part of the time in which the GPUs did nothing, of that in which they were read; null: they never were. */
  idleShare: number | null;
  /** The energy of the cards; null: unknown. */
  energyKWh: number | null;
}

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

/** A report, as `--json` prints it. Times are ISO 8601. */
export interface Report {
  since: string;
  until: string;
  by: Kind;
  /** How many GPUs the machine has; null: unknown. */
  gpus: number | null;
  rows: Sum[];
  /** The leases that took the most GPU hours. */
  longest: {
    user: string;
    job: string;
    gpus: number[];
    gpuHours: number;
    since: string;
    exit: number | null;
  }[];
  /** Lines of the ledger that make no sense, and files that aren't those of their user. */
  skipped: number;
}

interface Part {
  key: string;
  ms: number;
}

export const HOUR_MS = 3_600_000;
const JOULES_PER_KWH = 3_600_000;

/** A row for each key, the largest first; days in their order. */
export function sumUses(uses: readonly Use[], options: SumOptions): Sum[] {
  const sums = new Map<
    string,
    { leases: number; ms: number; waited: number[]; idleMs: number; readMs: number; joules: number | null }
  >();
  for (const use of uses) {
    const seen = new Set<string>();
    for (const { key, ms } of partsOf(use, options)) {
      const sum = sums.get(key) ?? { leases: 0, ms: 0, waited: [], idleMs: 0, readMs: 0, joules: null };
      sums.set(key, sum);
      sum.ms += ms;
      // Readings of a part of the lease stand for all of it, and for each of its GPUs.
      const { heldMs, meteredMs, idleMs, energyJoules } = use;
      if (meteredMs > 0) {
        if (idleMs !== null) {
          sum.readMs += ms;
          sum.idleMs += (ms * idleMs) / meteredMs;
        }
        const all = heldMs * cardsOf(use);
        if (energyJoules !== null && all > 0)
          sum.joules = (sum.joules ?? 0) + (energyJoules * (heldMs / meteredMs) * ms) / all;
      }
      if (seen.has(key)) continue;
      seen.add(key);
      sum.leases++;
      sum.waited.push(use.waitedMs / 1000);
    }
  }
  const rows = [...sums].map(([key, { leases, ms, waited, readMs, idleMs, joules }]) => {
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
  return rows.sort((a, b) => (isInOrder ? 0 : b.gpuHours - a.gpuHours) || (a.key < b.key ? -1 : 1));
}

const MAX_LONGEST = 5;

export function reportOf({ uses, foreign, damaged }: Ledger, options: SumOptions): Report {
  const skipped = foreign.length + [...damaged.values()].reduce((sum, lines) => sum + lines, 0);
  const { since, until, by, gpus, showsCommand } = options;
  const hoursOf = (use: Use) => (timeWithin(use, since, until) * cardsOf(use)) / HOUR_MS;
  const longest = [...uses].sort((a, b) => hoursOf(b) - hoursOf(a)).slice(0, MAX_LONGEST);
  return {
    since: isoTime(since),
    until: isoTime(until),
    by,
    gpus,
    rows: sumUses(uses, options),
    longest: longest.map((use) => ({
      user: use.user,
      job: jobOf(use, showsCommand(use.uid)),
      gpus: use.gpus.map(({ index }) => index),
      gpuHours: hoursOf(use),
      since: isoTime(use.since),
      exit: use.exit,
    })),
    skipped,
  };
}

/** How many GPUs it has, parts counted as such. */
export function cardsOf({ gpus }: Use): number {
  return gpus.reduce((sum, { part }) => sum + part, 0);
}

/** A value of a sorted list, below or at which such a part of them lies; 0 for an empty one. */
function percentile(sorted: readonly number[], part: number): number {
  return sorted[Math.max(0, Math.ceil(part * sorted.length) - 1)] ?? 0;
}

/** How long the lease lasted within the time, by GPU. */
export function timeWithin({ since, heldMs }: Use, from: number, until: number): number {
  return Math.max(0, Math.min(since + heldMs, until) - Math.max(since, from));
}

function partsOf(use: Use, { since, until, by, groupOf, showsCommand }: SumOptions): Part[] {
  const ms = timeWithin(use, since, until);
  const cards = cardsOf(use);
  switch (by) {
    case 'gpu':
      return use.gpus.map(({ index, part }) => ({ key: String(index), ms: ms * part }));
    case 'day':
      return daysBetween(Math.max(use.since, since), Math.min(use.since + use.heldMs, until)).map((day) => ({
        key: day.key,
        ms: timeWithin(use, Math.max(since, day.begin), Math.min(until, day.end)) * cards,
      }));
    case 'group':
      return [{ key: groupOf(use), ms: ms * cards }];
    case 'job':
      return [{ key: jobOf(use, showsCommand(use.uid)), ms: ms * cards }];
    default:
      return [{ key: use.user, ms: ms * cards }];
  }
}

/** `alice:7 train`, or `alice:python` for what was no job in the background; `alice` where no more may be shown. */
function jobOf({ user, job, name, program }: Use, isShown: boolean): string {
  if (!isShown) return user;
  const number = job === null ? [] : [String(job)];
  return `${user}:${[...number, name ?? program].join(' ')}`;
}

/** The days, in local time, of which there is a part between two times. */
export function daysBetween(from: number, until: number): { key: string; begin: number; end: number }[] {
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
