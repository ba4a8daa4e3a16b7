// The ledger as it is found. Files are their owners': a line counts for the owner of its file, not for the user it names.
import { readSync } from 'node:fs';
import { errno, native, OFD, SHARED } from '../native.ts';
import {
  Directory,
  type FileStatus,
  isoTime,
  MAX_USER_NAME_LENGTH,
  sanitize,
  schema,
  statusBehind,
  userName,
} from '../platform/index.ts';
import { LEDGER_NAME, ledgerError, MAX_CLAIM_FILES, MAX_MONTH_BYTES } from './ledger-files.ts';
import { END_BYTES } from './line.ts';

/** A lease as the ledger has it. */
export interface Use {
  uid: number;
  user: string;
  gid: number | null;
  gpus: { index: number; instance: number | null; uuid: string; part: number }[];
  /** ms since 1970 */
  since: number;
  heldMs: number;
  waitedMs: number;
  program: string;
  name: string | null;
  job: number | null;
  exit: number | null;
  preempted: boolean;
  /** For how long the GPUs were read; 0: never. */
  meteredMs: number;
  /** For how long they did nothing meanwhile; null: unknown. */
  idleMs: number | null;
  /** All GPUs' energy meanwhile, in J; null: unknown. */
  energyJoules: number | null;
  /** The memory in use of all GPUs, in bytes; null: unknown. */
  memoryBytes: number | null;
  peakMemoryBytes: number | null;
  /** lost: the end isn't noted, and the lease is known to have lasted for `heldMs`. */
  state: 'running' | 'ended' | 'lost';
}

export interface Ledger {
  /** Read as they are asked for, once. */
  uses: Iterable<Use>;
  /** How many lines, and files, were skipped so far, by the user whose they are. */
  skipped: Map<number, number>;
  /** Why the directory can't be read. Missing: it can, or there is none yet. */
  problem?: string;
}

const CHUNK_BYTES = 1024 ** 2;
const MAX_LINE_BYTES = 32 * 1024;
const MAX_SHORT_LINES = 10_000;
/** The GPUs that a machine has at most, where the driver doesn't tell. */
const MAX_GPUS = 256;
/** No card uses more, in W. */
const MAX_WATTS = 10_000;
/** The line begins with it, also after a fragment of a line that a full disk has cut. */
const BEGINNING = '{"since":';

const count = schema.whole(2 ** 50);
const LINE = schema.record({
  since: schema.amount(8.64e15),
  waited: schema.or(schema.amount(), 0),
  gid: schema.or(schema.whole(2 ** 32), null),
  gpus: schema.listOf(
    schema.record({
      index: schema.whole(9_999),
      instance: schema.or(schema.whole(9_999), null),
      uuid: schema.shownText(96),
      part: schema.or(schema.amount(1), 1),
    }),
    1024,
  ),
  program: schema.or(schema.shownText(64), ''),
  name: schema.or(schema.shownText(64), null),
  job: schema.or(schema.whole(2 ** 31), null),
  held: count,
  ended: schema.flag,
  preempted: schema.or(schema.flag, false),
  exit: schema.or(schema.whole(255), null),
  metered: schema.or(count, 0),
  idle: schema.or(count, null),
  energy: schema.or(count, null),
  memory: schema.or(schema.whole(), null),
  peakMemory: schema.or(schema.whole(), null),
});

/** What tells how long a lease lasted. */
const SPAN = schema.record({ since: schema.amount(8.64e15), held: count, ended: schema.flag });

/**
 * Reads what was used since a moment. @param since, now in ms since 1970
 * @param gpus how many the machine has; null: unknown @param uid of the user whose leases are read; null: everybody's
 */
export function readLedger(
  path: string,
  since: number,
  gpus: number | null = null,
  uid: number | null = null,
  now = Date.now(),
): Ledger {
  const skipped = new Map<number, number>();
  const directory = Directory.open(path);
  const isMissing = directory === -errno.ENOENT;
  if (typeof directory === 'number')
    return { uses: [], skipped, ...(isMissing ? {} : { problem: ledgerError(path, -directory) }) };
  return { uses: usesOf(directory, since, gpus, uid, skipped, now), skipped };
}

export function skip(skipped: Map<number, number>, uid: number): void {
  skipped.set(uid, (skipped.get(uid) ?? 0) + 1);
}

function* usesOf(
  directory: Directory,
  since: number,
  gpus: number | null,
  uid: number | null,
  skipped: Map<number, number>,
  now: number,
): Generator<Use> {
  const names = directory.names();
  const wanted = uid === null ? names : names.filter((name) => name.startsWith(`${uid}-`));
  for (const file of filesOf(directory, since, skipped, wanted, now)) {
    for (const { line, end } of linesOf(file)) {
      const use = readLine(file, line, end, now, gpus);
      if (use !== null && use.since + use.heldMs >= since) yield use;
      else if (use === null && line.trim() !== '') skip(skipped, file.uid);
    }
  }
}

/** How many leases tell how long jobs last, how old they may be in ms, and how much of a file is read for them. */
const RECENT_LEASES = 20;
const RECENT_MS = 30 * 24 * 3_600_000;
const TAIL_BYTES = 16 * 1024;
/** How many other users' files are read for a user without leases. */
const MAX_RECENT_FILES = 8;

/**
 * How long a user's leases lasted lately, in hours: the mean of the last 20 that have ended within 30 days. For a user without any,
 * that of other users' leases; null: there are none either. Reads the ends of a few files.
 */
export function meanHours(path: string, uid: number, now = Date.now()): number | null {
  const directory = Directory.at(path);
  if (directory === null) return null;
  const first = isoTime(Math.max(0, now - RECENT_MS)).slice(0, 7);
  const names = directory
    .names()
    .filter((name) => (LEDGER_NAME.exec(name)?.[2] ?? '') >= first)
    .sort((a, b) => a.length - b.length); // usual names before random ones
  const recent = (isWanted: (name: string) => boolean) => {
    const wanted = names.filter(isWanted).slice(0, MAX_CLAIM_FILES);
    return filesOf(directory, now - RECENT_MS, new Map(), wanted, now);
  };
  const isOf = (user: number) => (name: string) => name.startsWith(`${user}-`);
  const own = lastEnded(recent(isOf(uid)), now);
  if (own.length > 0) return mean(own);
  const latest = [...recent(() => true)]
    .sort((a, b) => b.status.changedAt - a.status.changedAt)
    .slice(0, MAX_RECENT_FILES);
  const others = new Set(latest.map((file) => file.uid));
  const found = lastEnded(
    recent((name) => others.has(Number(name.split('-', 1)[0]))),
    now,
  );
  return found.length > 0 ? mean(found) : null;
}

/** The hours of the leases that ended last. */
function lastEnded(files: Iterable<LedgerFile>, now: number): number[] {
  const ended: { since: number; heldMs: number }[] = [];
  for (const file of files) {
    const from = Math.max(0, file.status.size - TAIL_BYTES);
    for (const { line, end } of linesOf(file, from, TAIL_BYTES)) {
      const span = readText(SPAN, line, now); // each claim reads these, and the other fields take milliseconds
      if (span === null || span.since < now - RECENT_MS) continue;
      const { isRunning, heldMs } = heldBy(file, span, end, now);
      if (!isRunning) ended.push({ since: span.since, heldMs });
    }
  }
  return ended
    .sort((a, b) => b.since + b.heldMs - (a.since + a.heldMs))
    .slice(0, RECENT_LEASES)
    .map(({ heldMs }) => heldMs / 3_600_000);
}

function mean(numbers: readonly number[]): number {
  return numbers.reduce((sum, each) => sum + each, 0) / numbers.length;
}

/** A file of the ledger, open. */
interface LedgerFile {
  name: string;
  uid: number;
  user: string;
  descriptor: number;
  status: FileStatus;
  /** Up to where it is read. */
  size: number;
}

/**
 * The files that changed since a moment, each open until the next one. No more than a certain size is read of a user's month, and of all
 * months before that moment together, newest first.
 * @param skipped counts files that don't count, and those of which not all is read @param names those of the directory that are looked at
 */
function* filesOf(
  directory: Directory,
  since: number,
  skipped: Map<number, number>,
  names: readonly string[],
  now: number,
): Generator<LedgerFile> {
  const [first, last] = [since, now].map((time) => isoTime(Math.max(0, time)).slice(0, 7)) as [
    string,
    string,
  ];
  const bytesOf = new Map<string, number>();
  const found = names.flatMap((name) => {
    const [, uid, month = ''] = LEDGER_NAME.exec(name) ?? [];
    return uid === undefined ? [] : [{ name, uid: Number(uid), month }];
  });
  found.sort(
    (a, b) => a.uid - b.uid || (a.month < b.month ? 1 : a.month > b.month ? -1 : a.name < b.name ? -1 : 1),
  );
  for (const { name, uid, month } of found) {
    const descriptor = directory.openForProbe(name);
    try {
      const status = descriptor < 0 ? null : statusBehind(descriptor);
      const key = `${uid} ${month < first ? '' : month}`;
      const bytes = bytesOf.get(key) ?? 0;
      const isOwn = status?.uid === uid && status.links === 1 && month <= last;
      if (status === null || !isOwn) skip(skipped, status?.uid ?? directory.statusOf(name)?.uid ?? uid);
      else if (status.changedAt >= since) {
        const size = Math.min(status.size, MAX_MONTH_BYTES - bytes);
        bytesOf.set(key, bytes + size);
        if (size < status.size) skip(skipped, uid);
        const user = sanitize(userName(uid), MAX_USER_NAME_LENGTH);
        if (size > 0) yield { name, uid, user, descriptor, status, size };
      }
    } finally {
      if (descriptor >= 0) native().fileClose(descriptor);
    }
  }
}

/**
 * The lease of a line; null: the line makes no sense, or says what can't be. @param end where the line ends in the file; 0: the file ends before
 * @param gpus how many the machine has; null: unknown
 */
function readLine(file: LedgerFile, line: string, end: number, now: number, gpus: number | null): Use | null {
  const read = readText(LINE, line, now);
  if (read === null || !areGPUs(read.gpus, gpus ?? MAX_GPUS)) return null;
  const { held: _, waited, ended, metered, idle, energy, memory, peakMemory, ...rest } = read;
  const { isRunning, heldMs } = heldBy(file, read, end, now);
  const isEnergy = energy !== null && energy <= MAX_WATTS * metered * read.gpus.length;
  return {
    uid: file.uid,
    user: file.user,
    heldMs,
    waitedMs: waited,
    state: isRunning ? 'running' : ended ? 'ended' : 'lost',
    meteredMs: metered,
    idleMs: idle === null ? null : Math.min(idle, metered),
    energyJoules: isEnergy ? energy / 1000 : null,
    memoryBytes: memory,
    peakMemoryBytes: peakMemory,
    ...rest,
  };
}

/** The fields of a line; null: it makes no sense. */
function readText<T extends { since: number }>(check: schema.Check<T>, line: string, now: number): T | null {
  if (line.length < END_BYTES - 1) return null;
  const read = schema.readAs(schema.jsonOf(check), line.slice(Math.max(0, line.lastIndexOf(BEGINNING))));
  return read === null || read.since > now + 60_000 ? null : read;
}

/** How long a lease was held, and whether it lasts. @param end where its line ends in the file; 0: the file ends before */
function heldBy(
  { descriptor }: LedgerFile,
  { since, held, ended }: schema.Checked<typeof SPAN>,
  end: number,
  now: number,
): { isRunning: boolean; heldMs: number } {
  // The end of the line has a fixed size, and its first byte is locked for as long as the lease lasts.
  const isRunning = !ended && end > 0 && native().lockProbe(descriptor, OFD, SHARED, end - END_BYTES, 1) >= 0;
  const heldMs = Math.min(isRunning ? Math.max(held, now - since) : held, Math.max(0, now - since));
  return { isRunning, heldMs };
}

/** Whether these are GPUs of the machine, each once. */
function areGPUs(gpus: readonly { index: number; instance: number | null }[], count: number): boolean {
  const seen = new Set(gpus.map(({ index, instance }) => `${index} ${instance}`));
  return gpus.length > 0 && seen.size === gpus.length && gpus.every(({ index }) => index < count);
}

/** Lines, also one that the file ends in; no more after too many that are too short to be one. @param from where the first one begins */
function* linesOf(
  { descriptor, size }: Pick<LedgerFile, 'descriptor' | 'size'>,
  from = 0,
  chunkBytes = CHUNK_BYTES,
): Generator<{ line: string; end: number }> {
  const chunk = Buffer.alloc(Math.max(0, Math.min(chunkBytes, size - from)));
  let rest: Buffer = Buffer.alloc(0);
  let short = 0;
  for (let position = from; position < size; ) {
    const length = readSync(descriptor, chunk, 0, Math.min(chunk.length, size - position), position);
    if (length === 0) break;
    position += length;
    const bytes = Buffer.concat([rest, chunk.subarray(0, length)]);
    let begin = 0;
    for (let newline = bytes.indexOf(10); newline >= 0; newline = bytes.indexOf(10, begin)) {
      if (newline - begin < END_BYTES - 1 && ++short > MAX_SHORT_LINES) return;
      const line = newline - begin > MAX_LINE_BYTES ? '?' : bytes.toString('utf8', begin, newline);
      yield { line, end: position - bytes.length + newline + 1 };
      begin = newline + 1;
    }
    // The rest of a line that is too long makes no sense either.
    rest = bytes.length - begin > MAX_LINE_BYTES ? Buffer.from('?') : Buffer.from(bytes.subarray(begin));
  }
  if (rest.length > 0) yield { line: rest.toString('utf8'), end: 0 };
}
