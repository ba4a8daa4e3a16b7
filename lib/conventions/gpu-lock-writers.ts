// Programs of gpu_lock that have looked at a lock file and not yet written theirs. They run nvidia-smi in between, which takes
// seconds where nothing keeps the driver awake; the process table shows it.
import {
  bootMilliseconds,
  now,
  processIds,
  readProcessStat,
  readSmallFile,
  sleeping,
  TIMEOUTS,
  type Waiting,
  warnOnce,
} from '../platform/index.ts';
import { isIntact, type Mark } from './convention.ts';
import { interopRoot } from './paths.ts';

/** An nvidia-smi that is older hangs in the driver, or is no single query. */
const MAX_QUERY_MS = 120_000;
const POLL_MS = 20;
const NOTICE_MS = 1_000;
/** The kernel's ticks in /proc are of this length on every architecture. */
const TICK_MS = 10;
/** One process in this many is asked for its age: reading a name is quicker. */
const AGE_STEP = 8;
/** After this many old ones in a row, the others are older as well. */
const MAX_OLD = 4;

/**
 * Waits until each program that looked before these marks were made has written its lock file, or has been seen to write none.
 * Ends early when a mark was replaced.
 */
export function* awaitWriters(marks: readonly Mark[]): Waiting<void> {
  const until = Math.max(...marks.map(({ contestedUntil = Number.NEGATIVE_INFINITY }) => contestedUntil));
  if (until === Number.NEGATIVE_INFINITY || !marks.every(isIntact)) return;
  if (until > now()) yield* sleeping(until - now());
  const queries = findQueries(until);
  if (queries.length === 0) return;
  const began = now();
  for (let left = queries; left.length > 0 && marks.every(isIntact); left = left.filter(isRunning)) {
    if (now() - began > NOTICE_MS) {
      warnOnce(
        `waiting for nvidia-smi (pid ${left[0]?.pid}): the Python program that started it may be about to lock a GPU with gpu_lock.`,
      );
    }
    yield* sleeping(POLL_MS);
  }
  for (const end = now() + TIMEOUTS.gpuLock; now() < end && marks.every(isIntact); ) yield* sleeping(POLL_MS);
}

interface Query {
  pid: number;
  startTicks: string;
}

/** The queries of nvidia-smi by Python programs that had begun by then and still run. @param until on the clock of `now()`, in ms */
function findQueries(until: number): Query[] {
  const boot = bootMilliseconds();
  const latest = (boot - now() + until) / TICK_MS + 1;
  const earliest = (boot - MAX_QUERY_MS) / TICK_MS;
  const found: Query[] = [];
  let old = 0;
  for (const [i, pid] of newestFirst().entries()) {
    const isNamed = readSmallFile(`/proc/${pid}/comm`) === 'nvidia-smi\n';
    if (!isNamed && i % AGE_STEP !== 0) continue;
    const stat = readProcessStat(pid);
    const start = Number(stat?.startTicks);
    const isOld = start < earliest;
    if (
      isNamed &&
      stat !== null &&
      !isOld &&
      start <= latest &&
      isQuery(pid) &&
      isPython(stat.parent) &&
      isOnThisMachine(pid)
    )
      found.push({ pid, startTicks: stat.startTicks });
    if (i % AGE_STEP === 0) old = isOld ? old + 1 : 0;
    if (old === MAX_OLD) break;
  }
  return found;
}

/** The kernel hands out numbers in turn, so those just below the last one are of the newest processes. */
function newestFirst(): number[] {
  const last = Number(readSmallFile('/proc/loadavg')?.split(' ')[4]);
  const pids = processIds().sort((a, b) => b - a);
  const first = pids.findIndex((pid) => pid <= last);
  return first < 0 ? pids : [...pids.slice(first), ...pids.slice(0, first)];
}

function wordsOf(pid: number): string[] {
  return readSmallFile(`/proc/${pid}/cmdline`)?.split('\0') ?? [];
}

/** A zombie has no words: its program goes on. One that repeats its query is a monitor's. */
function isQuery(pid: number): boolean {
  const words = wordsOf(pid);
  return (
    words.some((word) => word.startsWith('--query-gpu')) && !words.some((word) => /^(-l|--loop)/.test(word))
  );
}

/** Monitors in other languages ask nvidia-smi as well. */
function isPython(pid: number): boolean {
  return /(^|\/)(python|pypy)[^/]*$/.test(wordsOf(pid)[0] ?? '');
}

/** The process table is that of all simulated machines; an nvidia-smi is of the one whose lock files its program uses. */
function isOnThisMachine(pid: number): boolean {
  const root = interopRoot();
  if (root === '') return true;
  const pairs = readSmallFile(`/proc/${pid}/environ`)?.split('\0') ?? [];
  return interopRoot(Object.fromEntries(pairs.map((pair) => pair.split(/=(.*)/s, 2)))) === root;
}

function isRunning({ pid, startTicks }: Query): boolean {
  return readProcessStat(pid)?.startTicks === startTicks && isQuery(pid);
}
