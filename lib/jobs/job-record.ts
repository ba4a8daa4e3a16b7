// The file of a background job: blocks that are written in place, and the request. docs/decisions/042-background-jobs.md

import { fstatSync, readSync, writeSync } from 'node:fs';
import { CLASSES } from '../claims/index.ts';
import { ifPossible } from '../errors.ts';
import { errno, native, OFD, SHARED } from '../native.ts';
import { type FileStatus, readBlock, schema, statusBehind, textBlock } from '../platform/index.ts';

const { epochMs, flag, listOf, matching, nullable, optional, or, record, text, whole } = schema;
const PID = whole(2 ** 22, 1);

/** A part of an array: `17_3` is number 3 of job 17. */
const PART = record({ id: whole(), index: whole() });
export type JobPart = schema.Checked<typeof PART>;

/** A job of another machine that must have ended before. */
const ELSEWHERE = record({ host: text, id: whole(), isOk: flag });
export type JobElsewhere = schema.Checked<typeof ELSEWHERE>;

/** The request, written once. */
const REQUEST = record({
  id: whole(),
  name: nullable(text),
  note: nullable(text),
  /** The words of this program that its process begins with. */
  start: listOf(text),
  /** For people. */
  command: text,
  /** How many GPUs. */
  count: whole(),
  /** Their UUIDs, or others that would have done, when it was submitted; null: it doesn't wait for any. */
  wanted: nullable(listOf(text)),
  class: schema.among(CLASSES),
  /** Where it starts: an absolute path. */
  directory: text,
  /** The same in hexadecimal, where it isn't UTF-8; otherwise null. */
  directoryBytes: nullable(text),
  umask: whole(),
  /** Where its output goes: an absolute path. */
  output: text,
  /** The same with %j, %n and, for parts, %a, as it was asked for; null: to the job's own directory. */
  outputPattern: nullable(text),
  /** ms since 1970 */
  submitted: epochMs,
  /**
   * The jobs that must have ended before; `isOk`: with exit code 0. `part`: this part of the array, which had not begun. `samePart`: each
   * part follows the part with its number.
   */
  after: listOf(record({ id: whole(), isOk: flag, part: optional(whole()), samePart: optional(flag) })),
  /** The same of other machines. */
  elsewhere: optional(listOf(ELSEWHERE)),
  /** When it may start, in ms since 1970; missing: at once. */
  notBefore: optional(epochMs),
  /** How long the command may run, in ms. */
  limitMs: or(schema.amount(), null),
  /** The key of this place of a job that may move, as in `MoveRequest`; missing: it stays here. */
  move: optional(record({ key: matching(/^[0-9a-f]{32}$/), isHeld: flag })),
  /** Whether its start and end notify its user. */
  notify: or(flag, false),
  /** The job that this is once more; null: none. */
  resubmits: nullable(whole()),
  /** The parts of an array, as `--array` has them; missing: it is no array. */
  array: optional(text),
  /** The array that it belongs to, and its number there; missing: to none. */
  part: optional(PART),
  /** The byte that it has locked, and of which file. */
  lock: record({ path: text, device: schema.amount(), inode: schema.amount(), byte: whole() }),
});
export type JobRequest = schema.Checked<typeof REQUEST>;

/** The state, as the job's own process tells it until the keeper takes over. */
const PROGRESS = record({
  pid: PID,
  /** Why it waits, in words. */
  reason: optional(text),
  /** The GPUs that its environment leaves out, in words. */
  hidden: optional(nullable(text)),
  /** ms since 1970: its GPUs were claimed. */
  started: optional(epochMs),
  gpus: optional(
    listOf(
      record({
        index: whole(),
        instance: optional(nullable(whole())),
        uuid: text,
        parent: optional(nullable(text)),
      }),
    ),
  ),
  /** How it ended without having started. */
  failure: optional(
    record({
      exitCode: whole(),
      code: optional(text),
      message: text,
      ended: epochMs,
      isCancelled: or(flag, false),
    }),
  ),
  /** The job's tag in the wait queue, as text. */
  order: optional(text),
  /** Tasks of a sweep. */
  done: optional(whole()),
  total: optional(whole()),
});
export type JobProgress = schema.Checked<typeof PROGRESS>;

/** The end, as the keeper tells it; see native/keeper/job_file.h. */
const END = record({
  keeper: nullable(PID),
  front: nullable(PID),
  /** The command. */
  pid: nullable(PID),
  exitCode: nullable(whole()),
  ended: nullable(epochMs),
  /** The time limit that the keeper has, in ms. */
  limit: or(nullable(schema.amount()), null),
  cancelled: or(flag, false),
  /** ms since 1970: its GPUs were given back, and it waits for others; null: it runs, or has ended. */
  requeued: or(nullable(epochMs), null),
  /** How often it was preempted, and how many ms it ran before that. */
  preempted: or(whole(), 0),
  ran: or(schema.amount(), 0),
  /** How often it was restarted after a failure. */
  failures: or(whole(), 0),
});

/** A cancellation, written before anything is signalled; in ms since 1970. */
const CANCELLATION = record({ at: epochMs, reason: nullable(text), moved: optional(flag) });
export type JobCancellation = schema.Checked<typeof CANCELLATION>;

/** The time limit that its user has given it later. */
const LIMIT = record({ ms: schema.amount(Number.MAX_SAFE_INTEGER, 1) });

/** A job as its file has it. */
export interface StoredJob {
  request: JobRequest;
  progress: JobProgress | null;
  end: schema.Checked<typeof END> | null;
  cancellation: JobCancellation | null;
  limit: schema.Checked<typeof LIMIT> | null;
}

/**
 * The parts of a job's file, which are written in place: a full disk loses no end. Each has one writer, so that a process that
 * was suspended meanwhile overwrites nothing newer. The request follows the blocks.
 */
const BLOCKS = {
  progress: { offset: 0, size: 4096 },
  end: { offset: 4096, size: 512 },
  cancellation: { offset: 4608, size: 448 },
  limit: { offset: 5056, size: 64 },
} as const;
export const REQUEST_OFFSET = 5120;
/** As much is read, so no more is written: some thousands of jobs to follow. */
export const MAX_FILE_BYTES = 1024 * 1024;

/** Nothing of it is kept. */
let buffer: Buffer | null = null;

/** Reads a job from an open file without blocking; null if invalid or ended before `since`. */
export function readJob(file: number, since = Number.NEGATIVE_INFINITY): StoredJob | null {
  buffer ??= Buffer.alloc(MAX_FILE_BYTES);
  const bytes = buffer;
  const read = () => (fstatSync(file).isFile() ? readSync(file, bytes, 0, MAX_FILE_BYTES, 0) : null);
  const length = ifPossible(read, null);
  if (length === null) return null;
  const part = <T>({ offset, size }: { offset: number; size: number }, check: schema.Check<T>) =>
    parse(bytes.subarray(offset, Math.min(offset + size, length)), check);
  const end = part(BLOCKS.end, END);
  if ((end?.ended ?? since) < since) return null;
  const request = parse(bytes.subarray(REQUEST_OFFSET, length), REQUEST);
  if (request === null) return null;
  return {
    request,
    progress: part(BLOCKS.progress, PROGRESS),
    end,
    cancellation: part(BLOCKS.cancellation, CANCELLATION),
    limit: part(BLOCKS.limit, LIMIT),
  };
}

/** The limit that a job was given later, in ms; null: none. */
export function readLimit(file: number): number | null {
  const { offset, size } = BLOCKS.limit;
  return parse(readBlock(file, size, offset), LIMIT)?.ms ?? null;
}

/** How long a job may run, in ms; null: for ever. */
export function limitOf({ limit, request }: Pick<StoredJob, 'limit' | 'request'>): number | null {
  return limit?.ms ?? request.limitMs;
}

/** Writes a part of a job's file. A failure is ignored: the job goes on without it. */
export function writeBlock(file: number, name: keyof typeof BLOCKS, contents: object): boolean {
  const { offset, size } = BLOCKS[name];
  let text = JSON.stringify(contents);
  for (let left = contents; Buffer.byteLength(text) >= size; text = JSON.stringify(left)) {
    const shorter = shortened(left);
    if (shorter === null) return false;
    left = shorter;
  }
  return ifPossible(() => {
    writeSync(file, textBlock(text, size), 0, size, offset);
    return true;
  }, false);
}

/** Names a GPU less, or says a reason in fewer words; null: that is nothing any more. The rest stays whole. */
function shortened(contents: Partial<JobProgress & JobCancellation>): typeof contents | null {
  const { gpus = [], failure } = contents;
  if (gpus.length > 0) return { ...contents, gpus: gpus.slice(0, -1) };
  const cut = (text: string) => `${text.slice(0, Math.floor(text.length * 0.9) - 1)}…`;
  const { reason } = contents;
  if (reason != null && reason.length > 1) return { ...contents, reason: cut(reason) };
  if (failure === undefined || failure.message.length < 2) return null;
  return { ...contents, failure: { ...failure, message: cut(failure.message) } };
}

/** The file of locks that was asked last, for those who ask for many jobs: with each close, the kernel goes through all its locks. */
export class OpenLocks {
  #path = '';
  #descriptor = -1;
  #status: FileStatus | null = null;

  /** A descriptor of the file in which a job has locked its byte; -1: the file was removed. */
  at({ path, device, inode }: JobRequest['lock']): number {
    if (path !== this.#path) {
      this.close();
      this.#path = path;
      this.#descriptor = native().fileOpenForProbe(path);
      this.#status = this.#descriptor < 0 ? null : statusBehind(this.#descriptor);
    }
    return this.#status?.inode === inode && this.#status.device === device ? this.#descriptor : -1;
  }

  close(): void {
    if (this.#descriptor >= 0) native().fileClose(this.#descriptor);
    this.#path = '';
    this.#descriptor = -1;
  }
}

/** Whether the job's byte is locked. @param opened stays open, for others */
export function isAlive({ request: { lock }, progress, end }: StoredJob, opened?: OpenLocks): boolean {
  const locks = opened ?? new OpenLocks();
  try {
    const descriptor = locks.at(lock);
    // With shared mode: processes that wait for its end have read locks.
    if (descriptor >= 0) return native().lockProbe(descriptor, OFD, SHARED, lock.byte, 1) >= 0;
  } finally {
    if (opened === undefined) locks.close();
  }
  // The file was removed. Processes of the job have it open still.
  return [end?.keeper, end?.front, end?.pid, progress?.pid].some((pid) => signalJob(pid, lock, 0) === 0);
}

/** Whether a descriptor leads to the file in which a job has locked its byte. */
export function isSameFile(descriptor: number, { device, inode }: JobRequest['lock']): boolean {
  const status = statusBehind(descriptor);
  return status?.inode === inode && status.device === device;
}

/** Signals a process, if it has the job's byte locked. @param value goes with the signal @returns 0 or -errno */
export function signalJob(
  pid: number | null | undefined,
  { device, inode, byte }: JobRequest['lock'],
  signal: number,
  value = 0,
): number {
  if (pid == null || pid < 1) return -errno.ESRCH;
  return native().processSignal(pid, device, inode, byte, signal, value);
}

/** The contents of a block, or the request. null: nothing that can be read. */
function parse<T>(bytes: Buffer, check: schema.Check<T>): T | null {
  // Most of it are blanks: the end is looked for in the bytes.
  const length = bytes.lastIndexOf('}') + 1;
  return length === 0 ? null : schema.readAs(schema.jsonOf(check), bytes.toString('utf8', 0, length));
}
