// Sums of each user that a server is asked for again and again: what was read is remembered, and only what came since is read.
import { readSync } from 'node:fs';
import { Directory } from '../platform/index.ts';
import { filesOf, type LedgerFile, linesOf, readLine, type Use } from './read.ts';
import { cardsOf, daysBetween, HOUR_MS, timeWithin } from './sums.ts';

/** The last days that {@link UserSums.gpuHours} is about, this one included. */
const DAYS = 30;
/** Lines between two turns of the event loop. */
const LINES_AT_ONCE = 1_000;
/** A line is written just before it is locked. */
const NEW_MS = 60_000;

/** The sums of a user. */
export interface UserSums {
  uid: number;
  user: string;
  leases: number;
  /** As far as it was noted, so that it never gets less. */
  gpuSeconds: number;
  energyJoules: number;
  /** By local day, such as 2026-01-31. */
  gpuHours: Map<string, number>;
}

/** A file as it was read last. Files only grow, but for the ends of leases that last. */
interface KnownFile {
  inode: number;
  /** How far it was read. */
  size: number;
  /** The lines of leases that lasted, or may have had no lock yet. */
  open: { begin: number; end: number }[];
  /** Sums of all other leases. */
  sums: UserSums;
}

type Days = ReturnType<typeof daysBetween>;

/** The sums of a ledger's leases that began since a moment; of days, of all leases in files that changed since. */
export class LedgerSums {
  readonly path: string;
  readonly #since: number;
  #known = new Map<string, KnownFile>();
  #reading: Promise<Map<number, UserSums>> | null = null;

  /** @param since in ms since 1970 */
  constructor(path: string, since: number) {
    this.path = path;
    this.#since = since;
  }

  /** The last days, and what each user used; those who ask together share an answer. @param gpus how many the machine has; null: unknown */
  async read(gpus: number | null, now = Date.now()): Promise<{ days: string[]; users: UserSums[] }> {
    const days = lastDays(now);
    this.#reading ??= this.#readFiles(days, gpus, now).finally(() => {
      this.#reading = null;
    });
    const users = [...(await this.#reading).values()].sort((a, b) => a.uid - b.uid);
    if (gpus !== null) for (const user of users) limitToPassed(user, gpus, this.#since, days, now);
    return { days: days.map(({ key }) => key), users };
  }

  async #readFiles(days: Days, gpus: number | null, now: number): Promise<Map<number, UserSums>> {
    const users = new Map<number, UserSums>();
    const known = this.#known;
    // After a failure in the middle, everything is read again.
    this.#known = new Map();
    const directory = Directory.at(this.path);
    if (directory === null) return users;
    const read = new Map<string, KnownFile>();
    for (const file of filesOf(directory, this.#since)) {
      const { name, uid, user, status } = file;
      const before = known.get(name);
      const isSame = before?.inode === status.inode && before.size <= status.size;
      const each: KnownFile = isSame
        ? { ...before, open: [] }
        : { inode: status.inode, size: 0, open: [], sums: noSums(uid, user) };
      read.set(name, each);
      const total = users.get(uid) ?? noSums(uid, user);
      users.set(uid, total);
      let count = 0;
      for (const { line, begin, end } of changedLines(file, isSame ? before : null)) {
        if (end === 0) continue; // the line isn't complete
        const use = readLine(file, line, end, now, gpus);
        each.size = Math.max(each.size, end);
        const isOpen = use?.state === 'running' || (use?.state === 'lost' && now - use.since < NEW_MS);
        if (isOpen) each.open.push({ begin, end });
        if (use !== null) this.#add(isOpen ? total : each.sums, use, days);
        if (++count % LINES_AT_ONCE === 0) await new Promise(setImmediate);
      }
      addSums(total, each.sums);
    }
    this.#known = read;
    return users;
  }

  #add(sums: UserSums, use: Use, days: Days): void {
    const cards = cardsOf(use);
    if (use.since >= this.#since) {
      sums.leases++;
      sums.gpuSeconds += (use.notedMs * cards) / 1000;
      sums.energyJoules += use.energyJoules ?? 0;
    }
    for (const { key, begin, end } of days) {
      const ms = timeWithin(use, begin, end);
      if (ms > 0) sums.gpuHours.set(key, (sums.gpuHours.get(key) ?? 0) + (ms * cards) / HOUR_MS);
    }
  }
}

/** The lines of leases that lasted when the file was read last, and what came since. */
function* changedLines(file: LedgerFile, before: KnownFile | null): ReturnType<typeof linesOf> {
  const { descriptor } = file;
  for (const { begin, end } of before?.open ?? []) {
    const bytes = Buffer.alloc(end - begin);
    const length = readSync(descriptor, bytes, 0, bytes.length, begin);
    yield { line: bytes.toString('utf8', 0, length - 1), begin, end };
  }
  yield* linesOf(file, before?.size);
}

/** No user has had more GPU time than all GPUs had. */
function limitToPassed(sums: UserSums, gpus: number, since: number, days: Days, now: number): void {
  sums.gpuSeconds = Math.min(sums.gpuSeconds, (gpus * Math.max(0, now - since)) / 1000);
  for (const { key, begin, end } of days) {
    const hours = sums.gpuHours.get(key);
    if (hours !== undefined)
      sums.gpuHours.set(key, Math.min(hours, (gpus * (Math.min(end, now) - begin)) / HOUR_MS));
  }
}

function lastDays(now: number): Days {
  const first = new Date(now);
  first.setDate(first.getDate() - DAYS + 1);
  return daysBetween(first.getTime(), now);
}

function noSums(uid: number, user: string): UserSums {
  return { uid, user, leases: 0, gpuSeconds: 0, energyJoules: 0, gpuHours: new Map() };
}

function addSums(total: UserSums, more: UserSums): void {
  total.leases += more.leases;
  total.gpuSeconds += more.gpuSeconds;
  total.energyJoules += more.energyJoules;
  for (const [day, hours] of more.gpuHours) total.gpuHours.set(day, (total.gpuHours.get(day) ?? 0) + hours);
}
