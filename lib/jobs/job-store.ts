// A user's background jobs on one machine: a directory for each in the user's state directory, which may be on NFS, and a byte
// of a file in the lock directory. There is no list: a job lives as long as its byte is locked.
// docs/decisions/042-background-jobs.md
import {
  closeSync,
  constants,
  existsSync,
  mkdirSync,
  openSync,
  readdirSync,
  readlinkSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import type { LockDirectory } from '../claims/index.ts';
import { loadConfiguration, simulatedMachine, simulationDirectory } from '../config/index.ts';
import { errorCode, GPUOwnerError, ifPossible } from '../errors.ts';
import { EXCLUSIVE, errno, native, OFD } from '../native.ts';
import {
  errorReason,
  formatBytes,
  hostName,
  pathIn,
  privately,
  stateDirectory,
  statusBehind,
  systemError,
  usageError,
} from '../platform/index.ts';
import {
  isAlive,
  type JobPart,
  type JobRequest,
  MAX_FILE_BYTES,
  REQUEST_OFFSET,
  readJob,
  type StoredJob,
} from './job-record.ts';

const FILE = 'job';
/** The file's name until the job is announced. */
const UNANNOUNCED = 'job.new';
/** The user's arguments of `submit`, and its environment, each ended by a NUL. */
export const ARGUMENTS = 'arguments';
export const ENVIRONMENT = 'environment';
export const OUTPUT = 'output';
/** The directory of an array with a symbolic link for each part that has begun, from its number to that of its job. */
const PARTS = 'parts';

const FOR_OWNER = 0o600;
const MAX_LOCK_FILES = 16;
/** A directory without a job's file is being created; after this time it is a leftover, in ms. */
const MAKING_MS = 60_000;

/** A job that was made: its request, and descriptors that lock it and lead to its file. */
export interface MadeJob {
  request: JobRequest;
  lock: number;
  file: number;
}

/** Where this user's jobs of this machine are. */
export class JobStore {
  readonly path: string;

  private constructor(path: string) {
    this.path = path;
  }

  /**
   * @throws ERR_JOBS where there is no state directory, or it is another user's: only its owner and root can see which jobs
   * live
   */
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

  /** The job that is a part of an array; null: the part has not begun, or its job isn't announced yet, or was removed. */
  jobOfPart({ id, index }: JobPart): number | null {
    try {
      const job = Number(readlinkSync(join(this.directoryOf(id), PARTS, String(index))));
      return existsSync(join(this.directoryOf(job), FILE)) ? job : null;
    } catch (error) {
      if (errorCode(error) === 'ENOENT') return null;
      throw unusable(this.path, error);
    }
  }

  /** The parts of an array that have begun, in no order. */
  begunParts(array: number): number[] {
    const path = join(this.directoryOf(array), PARTS);
    // Most jobs have none, and an error takes longer than a look.
    return existsSync(path) ? readdirSync(path).map(Number) : [];
  }

  /** Makes a job the part of an array. @returns false: another job is that already @throws ERR_JOBS */
  bindPart(job: number, { id, index }: JobPart): boolean {
    const parts = join(this.directoryOf(id), PARTS);
    try {
      mkdirSync(parts, { recursive: true, mode: 0o700 });
      symlinkSync(String(job), join(parts, String(index)));
      return true;
    } catch (error) {
      if (errorCode(error) === 'EEXIST') return false;
      throw unusable(this.path, error);
    }
  }

  /** The numbers of all jobs, in order. */
  ids(): number[] {
    let names: string[];
    try {
      names = readdirSync(this.path);
    } catch (error) {
      if (errorCode(error) === 'ENOENT') return [];
      throw unusable(this.path, error);
    }
    return names
      .filter((name) => /^[1-9]\d{0,8}$/.test(name))
      .map(Number)
      .sort((a, b) => a - b);
  }

  /** @param since in ms since 1970: of jobs that ended before, no more than that is read @returns null: there is none, it is being made, or it ended before */
  read(id: number, since?: number): StoredJob | null {
    const { O_RDONLY, O_NOFOLLOW, O_NONBLOCK } = constants;
    const path = join(this.directoryOf(id), FILE);
    const file = ifPossible(() => openSync(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK), null);
    if (file === null) return null;
    try {
      const job = readJob(file, since);
      return job?.request.id === id ? job : null;
    } finally {
      closeSync(file);
    }
  }

  /**
   * Makes a job under the next number, and locks its byte. The job can't be seen until it is announced.
   * @throws ERR_JOBS, ERR_LOCK_DIRECTORY; nothing is left then
   */
  create(
    request: Omit<JobRequest, 'id' | 'lock' | 'output'>,
    files: { arguments: Uint8Array; environment: Uint8Array },
    locks: LockDirectory,
  ): MadeJob {
    return privately(() => this.#create(request, files, locks));
  }

  #create(
    request: Omit<JobRequest, 'id' | 'lock' | 'output'>,
    files: { arguments: Uint8Array; environment: Uint8Array },
    locks: LockDirectory,
  ): MadeJob {
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
          throw usageError(
            `the job can't be kept: it takes ${formatBytes(file.length)} of ${formatBytes(MAX_FILE_BYTES)}. Name fewer jobs with --after: the last of each chain is enough`,
          );
        const write = (name: string, bytes: Uint8Array) =>
          writeFileSync(join(this.directoryOf(id), name), bytes, { mode: FOR_OWNER, flag: 'wx' });
        write(ARGUMENTS, files.arguments);
        write(ENVIRONMENT, files.environment);
        write(UNANNOUNCED, file);
        return { request: whole, lock: lock.descriptor, file: this.#openFile(id, UNANNOUNCED) };
      } catch (error) {
        this.remove(id);
        throw unusable(this.path, error);
      }
    } catch (error) {
      closeSync(lock.descriptor);
      throw error;
    }
  }

  /** Makes the directory of the next free number. */
  #take(): number {
    for (let id = (this.ids().at(-1) ?? 0) + 1; ; id++) {
      try {
        mkdirSync(this.directoryOf(id), { mode: 0o700 });
        return id;
      } catch (error) {
        if (errorCode(error) !== 'EEXIST') throw unusable(this.path, error);
      }
    }
  }

  /** Opens a job's file for {@link writeBlock}. @throws what openSync throws */
  openFile(id: number): number {
    return this.#openFile(id, FILE);
  }

  #openFile(id: number, name: string): number {
    return openSync(join(this.directoryOf(id), name), constants.O_RDWR | constants.O_NOFOLLOW);
  }

  /** Lets a job that was made be seen. @throws ERR_JOBS */
  announce(id: number): void {
    try {
      renameSync(join(this.directoryOf(id), UNANNOUNCED), join(this.directoryOf(id), FILE));
    } catch (error) {
      throw unusable(this.path, error);
    }
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
    // The parts of an array are kept as long as the array, and count with it.
    const partsOf = new Map(
      ids.map((id) => [id, this.begunParts(id).map((index) => this.jobOfPart({ id, index }))]),
    );
    const parts = new Set([...partsOf.values()].flat());
    const whole = ids.filter((id) => !parts.has(id));
    const unwanted = whole.filter((id, newer) => {
      const path = this.directoryOf(id);
      // The job's file was last written at its end: one that ran for a month is kept as long as others.
      const age = Date.now() - (mtimeOf(join(path, FILE)) ?? mtimeOf(path) ?? Date.now());
      for (const each of [id, ...(partsOf.get(id) ?? [])])
        if (each !== null) size += sizeOf(join(this.directoryOf(each), OUTPUT));
      const isWanted = newer < jobsKept && age < jobsKeptFor && size < jobLogsSize;
      return newer > 0 && !isWanted;
    });
    if (unwanted.length === 0) return;
    const followed = new Set<number>();
    for (const id of ids) {
      const job = this.read(id);
      if (job === null || !isAlive(job)) continue;
      const { after, part } = job.request;
      for (const { id: before } of after) followed.add(this.read(before)?.request.part?.id ?? before);
      if (part !== undefined) followed.add(part.id);
    }
    for (const id of unwanted) {
      const job = this.read(id);
      if (followed.has(id) || (job === null ? !this.#isRemains(id) : isAlive(job))) continue;
      for (const part of partsOf.get(id) ?? []) if (part !== null) this.remove(part);
      this.remove(id);
    }
  }

  /** Whether that job can't be in the making any longer. */
  #isRemains(id: number): boolean {
    return Date.now() - (mtimeOf(this.directoryOf(id)) ?? Date.now()) > MAKING_MS;
  }
}

/**
 * The file for the output of a job; the number in its name is the array's for a part.
 * @returns undefined: one in the job's own directory; also for an array whose file is that of a part, and the other way round
 */
function outputOf(
  { outputPattern, name, part }: Pick<JobRequest, 'outputPattern' | 'name' | 'part'>,
  own: number,
): string | undefined {
  if (outputPattern === null || isOfPart(outputPattern) !== (part !== undefined)) return;
  const id = String(part?.id ?? own);
  const fields: Record<string, string> = { '%n': name ?? id, '%a': String(part?.index), '%%': '%' };
  // Slurm has %x for the name, and %A for the number.
  return outputPattern.replace(/%[aAjnx%]/g, (field) => fields[field === '%x' ? '%n' : field] ?? id);
}

/** Whether a pattern has the number of a part: each writes to a file of its own then. */
export function isOfPart(outputPattern: string): boolean {
  return outputPattern.replaceAll('%%', '').includes('%a');
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

/**
 * Locks a byte of the file for a new job. Any free byte will do: its number stands in the job's file, and no two jobs ever have
 * the same, also not those of two state directories, whose numbers can be.
 */
function lockByte(descriptor: number): number {
  for (;;) {
    const byte = Math.floor(Math.random() * Number.MAX_SAFE_INTEGER);
    const error = native().lockTry(descriptor, OFD, EXCLUSIVE, byte, 1);
    if (error === 0) return byte;
    if (error !== errno.EAGAIN && error !== errno.EACCES)
      throw new GPUOwnerError('ERR_LOCK_DIRECTORY', `no job can be locked: ${systemError(error)}.`);
  }
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
  return new GPUOwnerError(
    'ERR_JOBS',
    `background jobs can't be kept in ${path}: ${errorReason(error)}. Make room there, correct its mode, or set XDG_STATE_HOME.`,
    { cause: error },
  );
}

/** This user's file of locks. In a directory for everybody, another user may have taken its name. */
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
  return ifPossible(() => (statSync(path, { throwIfNoEntry: false })?.blocks ?? 0) * 512, 0);
}

function ownerOf(path: string): number | null {
  return ifPossible(() => statSync(path).uid, null);
}

function mtimeOf(path: string): number | null {
  return ifPossible(() => statSync(path).mtimeMs, null);
}
