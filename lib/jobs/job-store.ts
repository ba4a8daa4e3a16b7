// A user's background jobs on one machine: a directory for each in the user's state directory, which may be on NFS, and a byte of a file
// in the lock directory. Nobody keeps a list: a job lives as long as its byte is locked. docs/decisions/042-background-jobs.md
import {
  closeSync,
  constants,
  fstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readSync,
  rmSync,
  statSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import type { LockDirectory } from '../claims/index.ts';
import { loadConfiguration, simulatedMachine, simulationDirectory } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { EXCLUSIVE, errno, native, OFD, SHARED } from '../native.ts';
import {
  formatBytes,
  hostName,
  pathIn,
  privately,
  schema,
  statusBehind,
  systemError,
} from '../platform/index.ts';

/** The request, written once. */
export interface JobRequest {
  id: number;
  name: string | null;
  note: string | null;
  /** The words of this program that its process begins with. */
  start: readonly string[];
  /** For people. */
  command: string;
  /** How many GPUs. */
  count: number;
  /** Their UUIDs, or others that would have done, when it was submitted; null or missing: it doesn't wait for any. */
  wanted?: readonly string[] | null;
  /** Where it starts: an absolute path. */
  directory: string;
  /** The same in hexadecimal, where it isn't UTF-8; otherwise null. */
  directoryBytes: string | null;
  umask: number;
  /** Where its output goes: an absolute path. */
  output: string;
  /** The same with %j and %n, as it was asked for; null: to the job's own directory. */
  outputPattern: string | null;
  /** ms since 1970 */
  submitted: number;
  /** The jobs that must have ended before; `isOk`: with exit code 0. */
  after: readonly { id: number; isOk: boolean }[];
  /** How long the command may run, in ms. */
  limitMs: number | null;
  /** Whether its user is told of its start and end. */
  notify: boolean;
  /** The job that this is once more; null: none. */
  resubmits: number | null;
  /**
   * The process that tells its number once its GPUs are granted: the command starts after that. null: it was told before. Missing in jobs of
   * earlier versions.
   */
  teller?: { pid: number; startTicks: string } | null;
  /** The byte that it has locked, and of which file. */
  lock: { path: string; device: number; inode: number; byte: number };
}

/** The state, as the job's own process tells it until the keeper takes over. */
export interface JobProgress {
  pid: number;
  /** Why it waits, in words. */
  reason?: string;
  /** Its GPUs were claimed, and its number is to be told. */
  isGranted?: boolean;
  /** Written by submit: its number was told. */
  isTold?: boolean;
  /** ms since 1970: its GPUs were claimed. */
  started?: number;
  gpus?: { index: number; instance?: number | null; uuid: string }[];
  /** When the command will be ended, in ms since 1970. */
  until?: number | null;
  /** It ended without having started. */
  failure?: { exitCode: number; code?: string; message: string; ended: number; isCancelled: boolean };
  /** Tasks of a sweep. */
  done?: number;
  total?: number;
}

/** The end, as the keeper tells it; see native/keeper/job_file.h. */
interface JobEnd {
  keeper: number | null;
  front: number | null;
  /** The command. */
  pid: number | null;
  exitCode: number | null;
  ended: number | null;
  cancelled: boolean;
}

/** A cancellation, written before anything is signalled. */
export interface JobCancellation {
  /** ms since 1970 */
  at: number;
  reason: string | null;
}

/** A job as its file has it. */
export interface StoredJob {
  request: JobRequest;
  progress: JobProgress | null;
  end: JobEnd | null;
  cancellation: JobCancellation | null;
}

/**
 * The parts of a job's file, which are written in place: a full disk loses no end. Each has one writer, so that whoever was suspended
 * meanwhile writes over nothing newer. What was asked for stands behind them.
 */
const BLOCKS = {
  progress: { offset: 0, size: 3584 },
  /** Written by submit: stands for the progress until that is there. */
  start: { offset: 3584, size: 512 },
  end: { offset: 4096, size: 512 },
  cancellation: { offset: 4608, size: 512 },
} as const;
const REQUEST_OFFSET = 5120;
/** As much is read, so no more is written: some thousands of jobs to follow. */
const MAX_FILE_BYTES = 1024 * 1024;

const FILE = 'job';
/** The user's arguments of `submit`, and its environment, each ended by a NUL. */
export const ARGUMENTS = 'arguments';
export const ENVIRONMENT = 'environment';
export const OUTPUT = 'output';

const FOR_OWNER = 0o600;
const MAX_LOCK_FILES = 16;
/** Bytes below are nobody's: numbers of jobs, of earlier versions. */
const FIRST_BYTE = 2 ** 32;
const MAX_PID = 2 ** 22;
/** A directory without a job's file is one that is being made, or the remains of that, after so many ms. */
const MAKING_MS = 60_000;

/** Where this user's jobs of this machine are. */
export class JobStore {
  readonly path: string;

  private constructor(path: string) {
    this.path = path;
  }

  /** @throws ERR_JOBS where there is no state directory, or it is another user's: nobody but its owner and root can see who lives */
  static open(): JobStore {
    const path = join(stateDirectory(), 'gpu-owner', 'jobs', machineName());
    const owner = ownerOf(path);
    const user = process.geteuid?.();
    if (owner !== null && owner !== user && user !== 0) throw foreign(path);
    return new JobStore(path);
  }

  /** The place of a job's directory, wherever the environment says that jobs are. */
  static around(directory: string): JobStore {
    return new JobStore(dirname(directory));
  }

  directoryOf(id: number): string {
    return join(this.path, String(id));
  }

  /** The numbers of all jobs, in order. */
  ids(): number[] {
    let names: string[];
    try {
      names = readdirSync(this.path);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
      throw unusable(this.path, error);
    }
    return names
      .filter((name) => /^[1-9]\d{0,8}$/.test(name))
      .map(Number)
      .sort((a, b) => a - b);
  }

  /** @param since in ms since 1970: of jobs that ended before, no more than that is read @returns null: there is none, it is being made, or it ended before */
  read(id: number, since?: number): StoredJob | null {
    let file: number;
    try {
      const { O_RDONLY, O_NOFOLLOW, O_NONBLOCK } = constants;
      file = openSync(join(this.directoryOf(id), FILE), O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    } catch {
      return null;
    }
    try {
      const job = readJob(file, since);
      return job?.request.id === id ? job : null;
    } finally {
      closeSync(file);
    }
  }

  /**
   * Makes a job under the next number, and locks its byte.
   * @returns descriptors that lock it and lead to its file
   * @throws ERR_JOBS, ERR_LOCK_DIRECTORY; nothing is left then
   */
  create(
    request: Omit<JobRequest, 'id' | 'lock' | 'output'>,
    files: { arguments: Uint8Array; environment: Uint8Array },
    locks: LockDirectory,
  ): { request: JobRequest; lock: number; file: number } {
    return privately(() => this.#create(request, files, locks));
  }

  #create(
    request: Omit<JobRequest, 'id' | 'lock' | 'output'>,
    files: { arguments: Uint8Array; environment: Uint8Array },
    locks: LockDirectory,
  ): { request: JobRequest; lock: number; file: number } {
    makePrivate(this.path);
    const lock = openLockFile(locks);
    try {
      const byte = lockByte(lock.descriptor);
      const id = this.#take();
      const whole = {
        ...request,
        id,
        output: outputOf(request, id) ?? join(this.directoryOf(id), OUTPUT),
        lock: { path: lock.path, device: lock.device, inode: lock.inode, byte },
      };
      try {
        const head = Buffer.alloc(REQUEST_OFFSET, ' ');
        const file = Buffer.concat([head, Buffer.from(`${JSON.stringify(whole)}\n`)]);
        if (file.length > MAX_FILE_BYTES)
          throw new GPUOwnerError(
            'ERR_INVALID_ARGUMENT',
            `the job can't be kept: it takes ${formatBytes(file.length)} of ${formatBytes(MAX_FILE_BYTES)}. Name fewer jobs with --after: the last of each chain is enough`,
          );
        const write = (name: string, bytes: Uint8Array) =>
          writeFileSync(join(this.directoryOf(id), name), bytes, { mode: FOR_OWNER, flag: 'wx' });
        write(ARGUMENTS, files.arguments);
        write(ENVIRONMENT, files.environment);
        write(FILE, file);
        return { request: whole, lock: lock.descriptor, file: this.openFile(id) };
      } catch (error) {
        this.remove(id);
        throw unusable(this.path, error);
      }
    } catch (error) {
      closeSync(lock.descriptor);
      throw error;
    }
  }

  /** Makes the directory of the next number that is nobody's. */
  #take(): number {
    for (let id = (this.ids().at(-1) ?? 0) + 1; ; id++) {
      try {
        mkdirSync(this.directoryOf(id), { mode: 0o700 });
        return id;
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw unusable(this.path, error);
      }
    }
  }

  /** Opens a job's file for {@link writeBlock}. @throws what openSync throws */
  openFile(id: number): number {
    return openSync(join(this.directoryOf(id), FILE), constants.O_RDWR | constants.O_NOFOLLOW);
  }

  remove(id: number): void {
    rmSync(this.directoryOf(id), { recursive: true, force: true });
  }

  /**
   * Removes ended jobs that are too old or too many, or whose output is too much: oldest first, never the newest, and none that a job which
   * waits is to follow. @throws ERR_JOBS
   */
  prune(): void {
    const { jobsKept, jobsKeptFor, jobLogsSize } = jobLimits();
    let size = 0;
    const ids = this.ids().reverse();
    const unwanted = ids.filter((id, newer) => {
      const path = this.directoryOf(id);
      // Its file was last written at its end: one that ran for a month is kept as long as others.
      const age = Date.now() - (mtimeOf(join(path, FILE)) ?? mtimeOf(path) ?? Date.now());
      size += sizeOf(join(path, OUTPUT));
      const isWanted = newer < jobsKept && age < jobsKeptFor && size < jobLogsSize;
      return newer > 0 && !isWanted;
    });
    if (unwanted.length === 0) return;
    const followed = new Set<number>();
    for (const id of ids) {
      const job = this.read(id);
      if (job !== null && isAlive(job)) for (const before of job.request.after) followed.add(before.id);
      else if (unwanted.includes(id) && !followed.has(id) && (job !== null || this.#isRemains(id)))
        this.remove(id);
    }
  }

  /** Whether nobody can be making that job any longer. */
  #isRemains(id: number): boolean {
    return Date.now() - (mtimeOf(this.directoryOf(id)) ?? Date.now()) > MAKING_MS;
  }
}

function outputOf(
  { outputPattern, name }: Pick<JobRequest, 'outputPattern' | 'name'>,
  id: number,
): string | undefined {
  return outputPattern?.replace(/%[jn%]/g, (field) =>
    field === '%j' ? String(id) : field === '%n' ? (name ?? String(id)) : '%',
  );
}

/** Nothing of it is kept. */
let buffer: Buffer | null = null;

/** A job as its open file has it; null: that is none, or it ended before `since`. Reading it waits for nobody, whatever it is. */
export function readJob(file: number, since = Number.NEGATIVE_INFINITY): StoredJob | null {
  buffer ??= Buffer.alloc(MAX_FILE_BYTES);
  const bytes = buffer;
  let length = 0;
  try {
    if (!fstatSync(file).isFile()) return null;
    length = readSync(file, bytes, 0, MAX_FILE_BYTES, 0);
  } catch {
    return null;
  }
  const part = <T>({ offset, size }: { offset: number; size: number }, check: schema.Check<T>) =>
    parse(bytes.subarray(offset, Math.min(offset + size, length)), check);
  const end = part(BLOCKS.end, END);
  if ((end?.ended ?? since) < since) return null;
  const request = parse(bytes.subarray(REQUEST_OFFSET, length), REQUEST);
  if (request === null) return null;
  const start = part(BLOCKS.start, PROGRESS);
  const progress = part(BLOCKS.progress, PROGRESS);
  return {
    request,
    progress: start !== null && progress !== null ? { ...start, ...progress } : (progress ?? start),
    end,
    cancellation: part(BLOCKS.cancellation, CANCELLATION),
  };
}

/** Writes a part of a job's file. A failure is nobody's: the job goes on without it. */
export function writeBlock(file: number, name: keyof typeof BLOCKS, contents: object): boolean {
  const { offset, size } = BLOCKS[name];
  const block = Buffer.alloc(size, ' ');
  let text = JSON.stringify(contents);
  for (let left = contents; Buffer.byteLength(text) >= size; text = JSON.stringify(left)) {
    const shorter = shortened(left);
    if (shorter === null) return false;
    left = shorter;
  }
  block.write(text);
  block[size - 1] = 0x0a;
  try {
    writeSync(file, block, 0, size, offset);
    return true;
  } catch {
    return false;
  }
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

/** Whether somebody has the job's byte locked. */
export function isAlive({ request: { lock }, progress, end }: StoredJob): boolean {
  const descriptor = native().fileOpenForProbe(lock.path);
  if (descriptor >= 0) {
    try {
      if (isSameFile(descriptor, lock))
        // With shared mode: whoever waits for its end has read locks.
        return native().lockProbe(descriptor, OFD, SHARED, lock.byte, 1) >= 0;
    } finally {
      native().fileClose(descriptor);
    }
  }
  // Somebody has removed the file. Processes of the job have it open still.
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

/** Limits of what is kept of jobs, of the configuration or by default. */
export function jobLimits() {
  const {
    jobsKept = 1_000,
    jobsKeptFor = 30 * 86_400_000,
    jobLogSize = 2 ** 30,
    jobLogsSize = 10 * 2 ** 30,
  } = loadConfiguration();
  return { jobsKept, jobsKeptFor, jobLogSize, jobLogsSize };
}

/** What a block has, or the request. null: nothing that can be read. */
function parse<T>(bytes: Buffer, check: schema.Check<T>): T | null {
  // Most of it are blanks: the end is looked for in the bytes.
  const length = bytes.lastIndexOf('}') + 1;
  return length === 0 ? null : schema.readAs(schema.jsonOf(check), bytes.toString('utf8', 0, length));
}

const { epochMs, flag, listOf, nullable, optional, or, record, text, whole } = schema;
const PID = whole(MAX_PID, 1);

const REQUEST = record({
  id: whole(),
  name: nullable(text),
  note: nullable(text),
  start: listOf(text),
  command: text,
  count: whole(),
  wanted: optional(nullable(listOf(text))),
  directory: text,
  directoryBytes: nullable(text),
  umask: whole(),
  output: text,
  outputPattern: nullable(text),
  submitted: epochMs,
  after: listOf(record({ id: whole(), isOk: flag })),
  limitMs: or(schema.amount(), null),
  notify: or(flag, false),
  resubmits: nullable(whole()),
  teller: optional(nullable(record({ pid: PID, startTicks: text }))),
  lock: record({ path: text, device: schema.amount(), inode: schema.amount(), byte: whole() }),
});

const PROGRESS = record({
  pid: PID,
  reason: optional(text),
  isGranted: optional(flag),
  isTold: optional(flag),
  started: optional(epochMs),
  gpus: optional(listOf(record({ index: whole(), instance: optional(nullable(whole())), uuid: text }))),
  until: optional(nullable(epochMs)),
  failure: optional(
    record({
      exitCode: whole(),
      code: optional(text),
      message: text,
      ended: epochMs,
      isCancelled: or(flag, false),
    }),
  ),
  done: optional(whole()),
  total: optional(whole()),
});

const END = record({
  keeper: nullable(PID),
  front: nullable(PID),
  pid: nullable(PID),
  exitCode: nullable(whole()),
  ended: nullable(epochMs),
  cancelled: or(flag, false),
});

const CANCELLATION = record({ at: epochMs, reason: nullable(text) });

/**
 * Locks a byte of the file for a new job. Any will do that is nobody's: it stands in the job's file, and no two jobs ever have the same,
 * also not those of two state directories, whose numbers can be.
 */
function lockByte(descriptor: number): number {
  for (;;) {
    const byte = FIRST_BYTE + Math.floor(Math.random() * (Number.MAX_SAFE_INTEGER - FIRST_BYTE));
    const error = native().lockTry(descriptor, OFD, EXCLUSIVE, byte, 1);
    if (error === 0) return byte;
    if (error !== errno.EAGAIN && error !== errno.EACCES)
      throw new GPUOwnerError('ERR_LOCK_DIRECTORY', `no job can be locked: ${systemError(error)}.`);
  }
}

function stateDirectory(): string {
  const { XDG_STATE_HOME: given, HOME: home } = process.env;
  if (schema.isAbsolutePath(given)) return given;
  if (schema.isAbsolutePath(home)) return join(home, '.local/state');
  throw new GPUOwnerError(
    'ERR_JOBS',
    'there is no place for background jobs: HOME is not set. Set it, or XDG_STATE_HOME, to an absolute path.',
  );
}

/** A home directory may be that of many machines. */
function machineName(): string {
  const host = hostName().replace(/[^A-Za-z0-9._-]/g, '-') || 'machine';
  const simulated = simulatedMachine();
  return simulated === null ? host : `${host}.simulated.${pathEnd(simulationDirectory(simulated))}`;
}

function pathEnd(path: string): string {
  return path.slice(path.lastIndexOf('/') + 1);
}

/** Arguments and environments are secrets. */
function makePrivate(path: string): void {
  try {
    mkdirSync(path, { recursive: true, mode: 0o700 });
    const { uid, mode } = statSync(path);
    if (uid === process.geteuid?.() && (mode & 0o022) === 0) return;
    throw foreign(path);
  } catch (error) {
    throw unusable(path, error);
  }
}

function foreign(path: string): GPUOwnerError {
  return new GPUOwnerError(
    'ERR_JOBS',
    `${path} belongs to another user, or others may write to it: background jobs have secrets in their environment. ` +
      'Set XDG_STATE_HOME to a directory of your own, or correct owner and mode.',
  );
}

/** Jobs can't be kept there. */
export function unusable(path: string, error: unknown): GPUOwnerError {
  if (error instanceof GPUOwnerError) return error;
  const { errno: number = 0 } = error as NodeJS.ErrnoException;
  return new GPUOwnerError(
    'ERR_JOBS',
    `background jobs can't be kept in ${path}: ${systemError(-number)}. Make room there, correct its mode, or set XDG_STATE_HOME.`,
    { cause: error },
  );
}

/** This user's file of locks. In a directory for everybody, somebody else may have taken its name. */
function openLockFile(locks: LockDirectory): {
  descriptor: number;
  path: string;
  device: number;
  inode: number;
} {
  const uid = process.geteuid?.() ?? 0;
  for (let i = 0; i < MAX_LOCK_FILES; i++) {
    const name = `jobs-${uid}${i === 0 ? '' : `.${i}`}`;
    const descriptor = locks.openOwn(name, FOR_OWNER);
    if (descriptor < 0) continue;
    const status = statusBehind(descriptor);
    if (status?.uid === uid)
      return { descriptor, path: pathIn(locks.path, name), device: status.device, inode: status.inode };
    closeSync(descriptor);
  }
  throw new GPUOwnerError(
    'ERR_LOCK_DIRECTORY',
    `no file for the locks of background jobs can be made in ${locks.path}: jobs-${uid} belongs to somebody else. Remove it (as root).`,
  );
}

function sizeOf(path: string): number {
  try {
    return statSync(path).blocks * 512;
  } catch {
    return 0;
  }
}

function ownerOf(path: string): number | null {
  try {
    return statSync(path).uid;
  } catch {
    return null;
  }
}

function mtimeOf(path: string): number | null {
  try {
    return statSync(path).mtimeMs;
  } catch {
    return null;
  }
}
