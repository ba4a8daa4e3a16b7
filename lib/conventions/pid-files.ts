import { closeSync } from 'node:fs';
import type { GPU, LeaseInfo } from '../gpus/index.ts';
import { errno, native } from '../native.ts';
import {
  type Directory,
  FOR_READING,
  homeDirectory,
  pathIn,
  readSmallFile,
  statusOf,
  type Waiting,
  warnOnce,
} from '../platform/index.ts';
import {
  type Claimant,
  type Convention,
  type Holders,
  keeperOf,
  keepMark,
  type Leases,
  type Mark,
  pidText,
} from './convention.ts';
import { asPid, type ForeignFile, holderInfo, isAlive, readForeign, removeStale } from './foreign-files.ts';
import { cudaOrdinals, ensureDirectory, machinePath, openOwn, workingDirectory } from './paths.ts';

const DIRECTORY = '.gpu_locks';

/**
 * Exclusive GPU allocation: `.gpu_locks/gpu_{id}.lock` in the working directory, whose text is the PID of the worker. The
 * number is CUDA's.
 *
 * Where the working directory is the home directory, these are GPU Scheduler's files: they are left alone.
 */
export class PidFiles implements Convention {
  readonly name = 'pid-files';

  directories(root?: string): string[] {
    const directory = workingDirectory();
    return directory === null ? [] : [machinePath(pathIn(directory, DIRECTORY), root)];
  }

  prepare(_all: readonly GPU[], byName: boolean): void {
    if (byName) for (const path of this.directories()) ensureDirectory(path, 0o755);
  }

  // biome-ignore lint/correctness/useYield: nothing is waited for
  *holders(gpus: readonly GPU[], leases: Leases): Waiting<Holders> {
    const holders: Holders = new Map();
    const directory = this.#existing();
    if (directory === null) return holders;
    for (const [uuid, id] of cudaOrdinals(gpus)) {
      const holder = holderOf(readForeign(directory, nameFor(id)));
      // Shares of the GPU keep it: their leases tell who has it.
      if (holder !== null && keeperOf(directory, nameFor(id)) !== null) continue;
      if (holder !== null && !isInJob(holder.pid, gpus, leases)) holders.set(uuid, holder);
    }
    return holders;
  }

  // biome-ignore lint/correctness/useYield: nothing is waited for
  *mark(gpu: GPU, all: readonly GPU[], claimant: Claimant): Waiting<Mark[] | LeaseInfo> {
    const directory = this.#existing();
    if (directory === null) return [];
    const id = cudaOrdinals(all).get(gpu.uuid);
    if (id === undefined) return [];
    const name = nameFor(id);
    const { isShare } = claimant;
    const made = (isShare ? join(directory, name) : null) ?? make(directory, name, isShare);
    if (made === null || (typeof made !== 'number' && isInJob(made.pid, all, claimant))) {
      warnOnce(
        `${directory.pathOf(name)} can't be made or replaced: programs that lock by PID files don't see claims of GPU ${gpu.index}.`,
      );
      return [];
    }
    if (typeof made !== 'number') return made;
    const token = String(process.pid);
    return [{ kind: 'pid', uuid: gpu.uuid, directory, name, descriptor: made, token, isShared: isShare }];
  }

  #existing(): Directory | null {
    const [path] = this.directories();
    const directory = path === undefined ? null : openOwn(path);
    return directory === null || isSchedulers(directory) ? null : directory;
  }
}

function nameFor(id: number): string {
  return `gpu_${id}.lock`;
}

/** Whether it is GPU Scheduler's, in the home directory: on its files there may be locks. */
function isSchedulers({ status: { device, inode } }: Directory): boolean {
  const path = homeDirectory();
  const other = path === null ? null : statusOf(machinePath(pathIn(path, DIRECTORY)));
  return device === other?.device && inode === other.inode;
}

/**
 * Whether a process runs inside a job of ours: the numbers that it writes count the GPUs of that job, and say nothing of the
 * machine's. Each process can say that of itself only, and locks must prove that the job is there.
 */
function isInJob(pid: number | null, gpus: readonly GPU[], { isHeld }: Leases): boolean {
  const environment = pid === null ? null : readSmallFile(`/proc/${pid}/environ`);
  const job = /(?:^|\0)GPU_OWNER_JOB=(\d{1,15})(?:\0|$)/.exec(environment ?? '')?.[1];
  return job !== undefined && gpus.some(({ uuid }) => isHeld(uuid, Number(job)));
}

function holderOf(file: ForeignFile): LeaseInfo | null {
  if (file.state === 'unreadable') return holderInfo('pid-files', { uid: file.uid });
  if (file.state !== 'file') return null;
  const text = file.text.trim();
  if (text === '' && file.fresh) return holderInfo('pid-files', { uid: file.uid });
  const pid = /^\d{1,10}$/.test(text) ? asPid(Number(text)) : null;
  if (pid === null || pid === process.pid || !isAlive(pid)) return null;
  return holderInfo('pid-files', { pid });
}

const MAX_TRIES = 3;

/** Keeps the file of other shares of the GPU with them; null: there is none. */
function join(directory: Directory, name: string): number | null {
  if (keeperOf(directory, name) === null) return null;
  const descriptor = directory.openShared(name, 0, FOR_READING);
  if (descriptor < 0) return null;
  if (keepMark(directory, name, descriptor)) {
    const file = readForeign(directory, name);
    // The process that it names was killed.
    if (holderOf(file) === null) native().fileWriteBlock(descriptor, Buffer.from(pidText(process.pid)));
    return descriptor;
  }
  closeSync(descriptor);
  return null;
}

/** A descriptor of our file, who was quicker, or null where none can be made. */
function make(directory: Directory, name: string, isShare: boolean): number | LeaseInfo | null {
  for (let i = 0; i < MAX_TRIES; i++) {
    const file = readForeign(directory, name);
    const holder = holderOf(file);
    if (holder !== null) return holder;
    if (file.state === 'strange') return null;
    if (file.state === 'file' && !removeStale(directory, name, file)) continue;
    const descriptor = directory.create(name, Buffer.from(pidText(process.pid)));
    if (descriptor >= 0) {
      if (isShare) keepMark(directory, name, descriptor);
      return descriptor;
    }
    if (descriptor !== -errno.EEXIST) return null;
  }
  return null;
}
