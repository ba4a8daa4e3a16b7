// A lease's line in the ledger of usage. The line is appended when the lease begins, and its end is overwritten in place: by this process,
// or by the keeper of its command (native/keeper/usage.cc).
import { EXCLUSIVE, errno, native, OFD } from '../native.ts';
import {
  bootMilliseconds,
  Directory,
  FOR_READING,
  isoTime,
  statusBehind,
  TIMEOUTS,
  warnOnce,
} from '../platform/index.ts';
import { LEDGER_NAME, ledgerError, MAX_MONTH_BYTES, ownLedgerName } from './ledger-files.ts';

/** Bytes for the end, as native/keeper/usage.cc has it: a line that is longer when the lease ends would need disk space then. */
export const END_BYTES = 224;
/** Shorter leases aren't metered, in ms: they use little, and the driver renews its counters some ten times a second. */
const MIN_METERED_MS = 1_000;
const FOR_ALL_STICKY = 0o1777;
/** How a name is answered that another user has taken. */
const OF_OTHERS = new Set<number>([errno.EACCES, errno.ENXIO, errno.ELOOP, errno.EISDIR]);

/** A lease as it is when it begins. */
export interface BeginningLease {
  /** ms since 1970 */
  since: number;
  waitedMs: number;
  /** `part`: of the GPU that it is a part of, from 0 to 1; missing: all of it. */
  gpus: readonly { index: number; instance?: number; uuid: string; part?: number }[];
  /** The name of its program. */
  program: string;
  name?: string | undefined;
  job?: number | undefined;
}

const live = new Set<UsageLine>();
let noting: NodeJS.Timeout | undefined;

export class UsageLine {
  readonly #descriptor: number;
  /** Where the end is in the file. */
  readonly #offset: number;
  /** ms since boot */
  readonly #since: number;
  #hasEnded = false;
  #readEnergy: () => number | null = () => null;

  private constructor(descriptor: number, offset: number, since: number) {
    this.#descriptor = descriptor;
    this.#offset = offset;
    this.#since = since;
  }

  /**
   * Appends the line to the ledger; null if that fails: then it warns, and the lease continues.
   * @param path of the ledger's directory, which is made if missing @param keptMs how long lines are kept
   */
  static begin(path: string, lease: BeginningLease, keptMs: () => number): UsageLine | null {
    const uid = process.geteuid?.() ?? 0;
    const directory = Directory.open(path, FOR_ALL_STICKY);
    const month = isoTime(lease.since).slice(0, 7);
    const isShared = typeof directory !== 'number' && canOthersRemove(directory);
    if (isShared) {
      warnOnce(
        `the use of these GPUs isn't noted in ${path}, where other users could remove the file. As root: chmod 1777 ${path}`,
      );
      return null;
    }
    const descriptor = typeof directory === 'number' ? directory : openOwn(directory, uid, month, keptMs);
    const { waitedMs, program, since, gpus, name, job } = lease;
    const gid = process.getegid?.();
    const beginning = JSON.stringify({ since, waited: waitedMs, gid, gpus, program, name, job }).replace(
      /}$/,
      ',',
    );
    const end = endOf(0, false, null);
    const at = descriptor < 0 ? descriptor : native().fileAppend(descriptor, Buffer.from(beginning + end));
    if (at < 0) {
      if (descriptor >= 0) native().fileClose(descriptor);
      warnOnce(
        `the use of these GPUs isn't noted in the ledger, and reports will lack it: ${ledgerError(path, -at)}.`,
      );
      return null;
    }
    const offset = at + Buffer.byteLength(beginning);
    // Shows that the lease lasts, for as long as a process has the descriptor.
    native().lockTry(descriptor, OFD, EXCLUSIVE, offset, 1);
    return new UsageLine(descriptor, offset, bootMilliseconds() - Math.max(0, Date.now() - since));
  }

  /** Options of the keeper, which has the descriptor under another number. */
  keeperOptions(place: (descriptor: number) => number): string[] {
    const { usage: interval } = TIMEOUTS;
    return ['--usage', [place(this.#descriptor), this.#offset, Math.round(this.#since), interval].join(':')];
  }

  /**
   * From now on this process notes that the lease lasts, and its end at the latest when the process exits.
   * @param readEnergy tells what the lease's GPUs have used since it began, in mJ; null: unknown
   */
  keep(readEnergy: () => number | null): void {
    this.#readEnergy = readEnergy;
    live.add(this);
    if (noting !== undefined) return;
    noting = setInterval(() => {
      for (const line of live) line.#write(false);
    }, TIMEOUTS.usage).unref();
    process.prependListener('exit', endAll);
  }

  /** Notes the end. Does nothing the second time. */
  end(): void {
    live.delete(this);
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    this.#write(true);
    native().fileClose(this.#descriptor);
  }

  #write(ended: boolean): void {
    const heldMs = Math.max(0, Math.round(bootMilliseconds() - this.#since));
    const energy = ended && heldMs >= MIN_METERED_MS ? this.#readEnergy() : null;
    native().fileWriteBlock(this.#descriptor, Buffer.from(endOf(heldMs, ended, energy)), this.#offset);
  }
}

/** Whether users who don't own the directory can remove others' files. */
function canOthersRemove({ status: { mode } }: Directory): boolean {
  return (mode & 0o022) !== 0 && (mode & 0o1000) === 0;
}

function endAll(): void {
  for (const line of live) line.end();
}

/** The end of a line, without an exit code: only a command has one. */
function endOf(held: number, ended: boolean, energy: number | null): string {
  const read = energy === null ? {} : { metered: held, energy };
  const text = JSON.stringify({ held, ended, preempted: false, exit: null, ...read });
  return `${text.slice(1).padEnd(END_BYTES - 1)}\n`;
}

/** A descriptor of this user's file, or -errno. The directory is everybody's: a file of this name may be another user's. */
function openOwn(directory: Directory, uid: number, month: string, keptMs: () => number): number {
  const open = (name: string): number | null => {
    const descriptor = directory.openShared(name, 0, FOR_READING);
    const status = descriptor < 0 ? null : statusBehind(descriptor);
    if (status?.uid === uid && status.links === 1 && status.size < MAX_MONTH_BYTES) {
      if (status.size === 0) prune(directory, uid, keptMs());
      return descriptor;
    }
    if (descriptor >= 0) native().fileClose(descriptor);
    if (status?.uid === uid && status.links === 1) return -errno.EFBIG;
    return descriptor >= 0 || OF_OTHERS.has(-descriptor) ? null : descriptor;
  };
  return open(`${uid}-${month}.jsonl`) ?? open(ownLedgerName(directory, uid, month)) ?? -errno.EACCES;
}

/** Removes this user's old files; root's new month removes those of all users. */
function prune(directory: Directory, uid: number, keptMs: number): void {
  const oldest = isoTime(Date.now() - keptMs).slice(0, 7);
  for (const name of directory.names()) {
    const [, owner, month = oldest] = LEDGER_NAME.exec(name) ?? [];
    if (month >= oldest || (uid !== 0 && Number(owner) !== uid)) continue;
    const descriptor = directory.openForProbe(name);
    if (descriptor < 0) continue;
    directory.remove(name, descriptor);
    native().fileClose(descriptor);
  }
}
