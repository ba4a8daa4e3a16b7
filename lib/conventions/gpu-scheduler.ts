import { closeSync } from 'node:fs';
import { type GPU, isBusOrder, type LeaseInfo } from '../gpus/index.ts';
import { EXCLUSIVE, errno, FLOCK, native, SHARED } from '../native.ts';
import {
  Directory,
  type FileStatus,
  FOR_ALL,
  FOR_READING,
  homeDirectory,
  now,
  pathIn,
  sleeping,
  type Waiting,
  warnOnce,
} from '../platform/index.ts';
import {
  type Claimant,
  type Convention,
  type Holders,
  type Leases,
  type Mark,
  removeMark,
} from './convention.ts';
import { flockHolders, holderInfo, nameInLocks } from './foreign-files.ts';
import { cudaOrdinals, ensureDirectory, machinePath, openOwn } from './paths.ts';

const SHARED_DIRECTORY = '/tmp/gpu_locks';
const NAME = /^gpu_\d+\.lock$/;

/** How long a program that only probes a lock may hold it, in ms. */
const PROBE_MS = 50;
const POLL_MS = 5;
/** On a busy machine two looks can be so far apart that each meets another probe. */
const MIN_LOOKS = 6;
const MAX_TRIES = 16;

/** Since when, and in how many looks, which process has been seen to hold a file's lock. */
const seen = new Map<string, { pid: number; since: number; looks: number }>();

/**
 * GPU Scheduler: an exclusive flock on `gpu_{id}.lock`, in `~/.gpu_locks` or, newer, in /tmp/gpu_locks. The number is CUDA's.
 * The tool takes a lock for a moment to find out whether a GPU is locked, so a lock counts only when it lasts. Shares of one GPU
 * share the lock, which keeps the tool out as long as one of them is held.
 */
export class GPUScheduler implements Convention {
  readonly name = 'gpu-scheduler';

  directories(root?: string): string[] {
    const own = homeDirectory();
    return [
      ...(own === null ? [] : [machinePath(pathIn(own, '.gpu_locks'), root)]),
      machinePath(SHARED_DIRECTORY, root),
    ];
  }

  prepare(all: readonly GPU[], byName: boolean): void {
    // A claim would have to start CUDA for it.
    if (!byName && !isBusOrder(all)) return;
    ensureDirectory(machinePath(SHARED_DIRECTORY), 0o777);
    const own = byName ? homeDirectory() : null;
    if (own !== null) ensureDirectory(machinePath(pathIn(own, '.gpu_locks')), 0o755);
  }

  *holders(gpus: readonly GPU[], { isLeased }: Leases): Waiting<Holders> {
    const directories = this.#existing();
    const holders: Holders = new Map();
    // Otherwise it doesn't matter how CUDA counts, which takes a second to find out or can't be known.
    if (!directories.some(isUsed)) return holders;
    const ordinals = cudaOrdinals(gpus);
    let firstSeen: number | null = null;
    for (let looks = 1; ; looks++) {
      holders.clear();
      let doubtful: string[] = [];
      let known: ReadonlyMap<string, number> | undefined;
      const locks = () => {
        known ??= new Map(flockHolders().map(({ file, pid }) => [file, pid]));
        return known;
      };
      for (const [uuid, id] of ordinals) {
        for (const directory of directories) {
          const pid = holderOf(directory, nameFor(id), locks);
          if (pid === undefined) continue;
          holders.set(uuid, holderInfo('gpu-scheduler', { pid: pid || null }));
          // A claim of ours holds it for long, and has its lease for a reason.
          if (!hasLasted(directory.pathOf(nameFor(id)), pid) && !isLeased(uuid)) doubtful.push(uuid);
        }
      }
      // From the end of the first round on: on a busy machine a round takes longer than a probe.
      firstSeen ??= now();
      if (looks > MIN_LOOKS && now() - firstSeen > 2 * PROBE_MS) {
        // One after the other only wanted to know. Whether it can be had is seen when it is marked.
        for (const uuid of doubtful) holders.delete(uuid);
        doubtful = [];
      }
      if (doubtful.length === 0) return holders;
      yield* sleeping(POLL_MS);
    }
  }

  *mark(gpu: GPU, all: readonly GPU[], { isShare }: Claimant): Waiting<Mark[] | LeaseInfo> {
    const marks: Mark[] = [];
    const directories = this.#existing();
    const isWanted = directories.length > 0 && (isBusOrder(all) || directories.some(isUsed));
    const id = isWanted ? cudaOrdinals(all).get(gpu.uuid) : undefined;
    if (id === undefined) return [];
    try {
      const name = nameFor(id);
      for (const directory of directories) {
        const taken = yield* take(directory, name, isShare ? SHARED : EXCLUSIVE);
        if (taken === 'unusable') {
          const path = directory.pathOf(name);
          warnOnce(`${path} can't be locked: GPU Scheduler doesn't see claims of GPU ${gpu.index}.`);
          continue;
        }
        if (typeof taken !== 'number') {
          for (const mark of marks.splice(0)) removeMark(mark);
          return taken;
        }
        marks.push({ kind: 'lock', uuid: gpu.uuid, directory, name, descriptor: taken, token: '' });
        if (isShared(directory)) note(taken);
      }
    } catch (error) {
      for (const mark of marks) removeMark(mark);
      throw error;
    }
    return marks;
  }

  #existing(): Directory[] {
    const shared = machinePath(SHARED_DIRECTORY);
    return this.directories().flatMap((path) => (path === shared ? Directory.at(path) : openOwn(path)) ?? []);
  }
}

/** Whether GPU Scheduler has been there. The directory of the whole machine is made by our claims, too, and has our files. */
function isUsed(directory: Directory): boolean {
  if (!isShared(directory)) return true;
  return directory.names().some((name) => {
    const stat = NAME.test(name) ? directory.statusOf(name) : null;
    return stat !== null && !isUntouched(directory, stat);
  });
}

function nameFor(id: number): string {
  return `gpu_${id}.lock`;
}

/** Reading /proc/locks makes all who lock on this machine wait for milliseconds, so it isn't read where only we have been. */
function holderOf(
  directory: Directory,
  name: string,
  locks: () => ReadonlyMap<string, number>,
): number | undefined {
  const stat = directory.statusOf(name);
  const isLockable = stat?.kind === 'file' && !isUntouched(directory, stat);
  const pid = isLockable ? locks().get(nameInLocks(stat)) : undefined;
  if (pid === undefined) seen.delete(directory.pathOf(name));
  return pid;
}

/** Whether GPU Scheduler hasn't opened the file, which would empty it, since a claim of ours has written into it. */
function isUntouched(directory: Directory, { size }: FileStatus): boolean {
  return size > 0 && isShared(directory);
}

/** Whether it is the directory of the whole machine. In a home directory, other tools may write into these files. */
function isShared({ path }: Directory): boolean {
  return path === machinePath(SHARED_DIRECTORY);
}

function hasLasted(path: string, pid: number): boolean {
  const before = seen.get(path);
  if (before?.pid !== pid) {
    seen.set(path, { pid, since: now(), looks: 1 });
    return false;
  }
  before.looks++;
  return now() - before.since >= PROBE_MS && before.looks >= MIN_LOOKS;
}

/** Into a file that is locked. */
function note(descriptor: number): void {
  native().fileWriteBlock(descriptor, Buffer.from('gpu-owner\n')); // it may only be read, or be somebody else's file
}

/** A descriptor that holds the lock of the file which has this name, or who holds it. The file is never emptied. */
function* take(directory: Directory, name: string, mode: number): Waiting<number | LeaseInfo | 'unusable'> {
  const started = now();
  let looks = 0;
  for (let tries = 0; tries < MAX_TRIES; ) {
    const descriptor = open(directory, name);
    if (descriptor < 0) return 'unusable';
    const error = native().lockTry(descriptor, FLOCK, mode, 0, 0);
    // The last holder may have removed the file meanwhile: a lock on a file without a name excludes no other.
    if (error === 0 && directory.isNamed(descriptor, name)) return descriptor;
    closeSync(descriptor);
    if (error === 0) {
      tries++;
      continue;
    }
    if (error !== errno.EAGAIN) return 'unusable';
    looks++;
    if (now() - started > PROBE_MS && looks >= MIN_LOOKS) {
      const stat = directory.statusOf(name);
      const inLocks = stat === null ? '' : nameInLocks(stat);
      const holder = flockHolders().find(({ file }) => file === inLocks);
      return holderInfo('gpu-scheduler', { pid: holder?.pid || null });
    }
    yield* sleeping(POLL_MS);
  }
  return 'unusable';
}

/** Others' files may be readable only: that is enough for a flock on a local file system. */
function open(directory: Directory, name: string): number {
  // Every user of GPU Scheduler opens the files of the whole machine for writing; those in a home directory, its user alone.
  const descriptor = directory.openShared(name, 0, isShared(directory) ? FOR_ALL : FOR_READING);
  return descriptor === -errno.EACCES ? directory.openForProbe(name) : descriptor;
}
