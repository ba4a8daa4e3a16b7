// A user's background jobs on one machine: a directory for each in the user's state directory, which may be on NFS, and a byte of a file
// in the lock directory. Nobody keeps a list: a job lives as long as its byte is locked. docs/decisions/042-background-jobs.md
import {
  closeSync,
  constants,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { dirname, isAbsolute, join } from 'node:path';
import type { LockDirectory } from '../claims/index.ts';
import { loadConfiguration, simulatedMachine, simulationDirectory } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { EXCLUSIVE, errno, native, OFD, SHARED } from '../native.ts';
import { hostName, pathIn, statusBehind, systemError } from '../platform/index.ts';

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
  /** Where it starts: an absolute path. */
  directory: string;
  umask: number;
  /** Where its output goes: an absolute path. */
  output: string;
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
  /** The file whose byte it has locked. */
  lock: { path: string; device: number; inode: number };
}

/** The state, as the job's own process tells it until the keeper takes over. */
export interface JobProgress {
  pid: number;
  /** Why it waits, in words. */
  reason?: string;
  /** ms since 1970: its GPUs were claimed. */
  started?: number;
  gpus?: { index: number; instance?: number | null; uuid: string }[];
  /** When the command will be ended, in ms since 1970. */
  until?: number | null;
  /** It ended without having started. */
  failure?: { exitCode: number; message: string; ended: number; isCancelled: boolean };
  /** Tasks of a sweep. */
  done?: number;
  total?: number;
}

/** The end, as the keeper tells it; see native/keeper/job_file.h. */
export interface JobEnd {
  keeper: number;
  front: number;
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

/** The parts of a job's file, which are written in place: a full disk loses no end. What was asked for stands behind them. */
const BLOCKS = {
  progress: { offset: 0, size: 4096 },
  end: { offset: 4096, size: 512 },
  cancellation: { offset: 4608, size: 512 },
} as const;
const REQUEST_OFFSET = 5120;
const MAX_FILE_BYTES = 64 * 1024;

const FILE = 'job';
/** The user's arguments of `submit`, and its environment, each ended by a NUL. */
export const ARGUMENTS = 'arguments';
export const ENVIRONMENT = 'environment';
export const OUTPUT = 'output';

const FOR_OWNER = 0o600;
const MAX_LOCK_FILES = 16;
const MAX_TRIES = 100;
/** A directory without a job's file is one that is being made, or the remains of that, after so many ms. */
const MAKING_MS = 60_000;

/** Where this user's jobs of this machine are. */
export class JobStore {
  readonly path: string;

  private constructor(path: string) {
    this.path = path;
  }

  /** @throws ERR_JOBS where there is no state directory */
  static open(): JobStore {
    return new JobStore(join(stateDirectory(), 'gpu-owner', 'jobs', machineName()));
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

  /** null: there is none, or it is being made. */
  read(id: number): StoredJob | null {
    let bytes: Buffer;
    try {
      bytes = readFileSync(join(this.directoryOf(id), FILE));
    } catch {
      return null;
    }
    const request = parse<JobRequest>(bytes.subarray(REQUEST_OFFSET, MAX_FILE_BYTES));
    if (request === null || request.id !== id) return null;
    const part = <T>({ offset, size }: { offset: number; size: number }) =>
      parse<T>(bytes.subarray(offset, offset + size));
    return {
      request,
      progress: part<JobProgress>(BLOCKS.progress),
      end: part<JobEnd>(BLOCKS.end),
      cancellation: part<JobCancellation>(BLOCKS.cancellation),
    };
  }

  /**
   * Makes a job under the next number, and locks its byte.
   * @returns descriptors that lock it and lead to its file
   * @throws ERR_JOBS, ERR_LOCK_DIRECTORY; nothing is left then
   */
  create(
    request: Omit<JobRequest, 'id' | 'lock' | 'output'> & { output: string | null },
    files: { arguments: Uint8Array; environment: Uint8Array },
    locks: LockDirectory,
  ): { request: JobRequest; lock: number; file: number } {
    makePrivate(this.path);
    const lock = openLockFile(locks);
    try {
      const id = this.#take(lock.descriptor);
      const whole = {
        ...request,
        id,
        output: (request.output ?? join(this.directoryOf(id), OUTPUT)).replace(/%[jn%]/g, (field) =>
          field === '%j' ? String(id) : field === '%n' ? (request.name ?? String(id)) : '%',
        ),
        lock: { path: lock.path, device: lock.device, inode: lock.inode },
      };
      try {
        const write = (name: string, bytes: Uint8Array) =>
          writeFileSync(join(this.directoryOf(id), name), bytes, { mode: FOR_OWNER, flag: 'wx' });
        write(ARGUMENTS, files.arguments);
        write(ENVIRONMENT, files.environment);
        const head = Buffer.alloc(REQUEST_OFFSET, ' ');
        write(FILE, Buffer.concat([head, Buffer.from(`${JSON.stringify(whole)}\n`)]));
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

  /** The next number that is nobody's, whose byte this descriptor then has locked. */
  #take(descriptor: number): number {
    let id = (this.ids().at(-1) ?? 0) + 1;
    for (let tries = 0; tries < MAX_TRIES; id++) {
      try {
        mkdirSync(this.directoryOf(id), { mode: 0o700 });
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code === 'EEXIST') continue;
        throw unusable(this.path, error);
      }
      // Jobs of another state directory may have the number, too.
      const error = native().lockTry(descriptor, OFD, EXCLUSIVE, id, 1);
      if (error === 0) return id;
      this.remove(id);
      tries++;
    }
    throw new GPUOwnerError('ERR_JOBS', 'no number can be found for a job: each that was tried is in use.');
  }

  /** Opens a job's file for {@link writeBlock}. @throws what openSync throws */
  openFile(id: number): number {
    return openSync(join(this.directoryOf(id), FILE), constants.O_RDWR | constants.O_NOFOLLOW);
  }

  remove(id: number): void {
    rmSync(this.directoryOf(id), { recursive: true, force: true });
  }

  /** Removes ended jobs that are too old or too many, or whose output is too much: oldest first, and never the newest. */
  prune(isOver: (job: StoredJob) => boolean): void {
    const { jobsKept, jobsKeptFor, jobLogsSize } = jobLimits();
    const ids = this.ids();
    const newest = ids.pop();
    if (newest === undefined) return;
    let size = sizeOf(join(this.directoryOf(newest), OUTPUT));
    let kept = 1;
    for (const id of ids.reverse()) {
      const path = this.directoryOf(id);
      const age = Date.now() - (mtimeOf(path) ?? Date.now());
      size += sizeOf(join(path, OUTPUT));
      const isWanted = kept < jobsKept && age < jobsKeptFor && size < jobLogsSize;
      kept++;
      if (isWanted) continue;
      const job = this.read(id);
      if (job === null ? age > MAKING_MS : isOver(job)) this.remove(id);
    }
  }
}

/** Writes a part of a job's file. A failure is nobody's: the job goes on without it. */
export function writeBlock(file: number, name: keyof typeof BLOCKS, contents: object): boolean {
  const { offset, size } = BLOCKS[name];
  const block = Buffer.alloc(size, ' ');
  const text = JSON.stringify(contents);
  if (Buffer.byteLength(text) >= size) return false;
  block.write(text);
  block[size - 1] = 0x0a;
  try {
    writeSync(file, block, 0, size, offset);
    return true;
  } catch {
    return false;
  }
}

/** Whether somebody has the job's byte locked. */
export function isAlive({ request: { id, lock }, progress, end }: StoredJob): boolean {
  const descriptor = native().fileOpenForProbe(lock.path);
  if (descriptor >= 0) {
    try {
      if (isSameFile(descriptor, lock))
        // With shared mode: whoever waits for its end has read locks.
        return native().lockProbe(descriptor, OFD, SHARED, id, 1) >= 0;
    } finally {
      native().fileClose(descriptor);
    }
  }
  // Somebody has removed the file. Processes of the job have it open still.
  return [end?.keeper, end?.front, progress?.pid].some((pid) => signalJob(pid, lock, id, 0) === 0);
}

/** Whether a descriptor leads to the file in which a job has locked its byte. */
export function isSameFile(descriptor: number, { device, inode }: JobRequest['lock']): boolean {
  const status = statusBehind(descriptor);
  return status?.inode === inode && status.device === device;
}

/** Signals a process, if it has the job's byte locked. @param value goes with the signal @returns 0 or -errno */
export function signalJob(
  pid: number | undefined,
  { device, inode }: JobRequest['lock'],
  id: number,
  signal: number,
  value = 0,
): number {
  if (pid === undefined || pid < 1) return -errno.ESRCH;
  return native().processSignal(pid, device, inode, id, signal, value);
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

function parse<T>(bytes: Buffer): T | null {
  const text = bytes.toString('utf8').trim();
  if (text === '') return null;
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null ? (value as T) : null;
  } catch {
    return null;
  }
}

function stateDirectory(): string {
  const { XDG_STATE_HOME: given, HOME: home } = process.env;
  if (given && isAbsolute(given)) return given;
  if (home && isAbsolute(home)) return join(home, '.local/state');
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
    throw new GPUOwnerError(
      'ERR_JOBS',
      `${path} belongs to another user, or others may write to it: background jobs have secrets in their environment. ` +
        'Set XDG_STATE_HOME to a directory of your own, or correct owner and mode.',
    );
  } catch (error) {
    throw unusable(path, error);
  }
}

function unusable(path: string, error: unknown): GPUOwnerError {
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

function mtimeOf(path: string): number | null {
  try {
    return statSync(path).mtimeMs;
  } catch {
    return null;
  }
}
