import { closeSync } from 'node:fs';
import { errno, native, OFD, SHARED } from '../native.ts';
import {
  Directory,
  formatDuration,
  isStopped,
  locking,
  now,
  TIMEOUTS,
  type Waiting,
  warn,
  warnOnce,
} from '../platform/index.ts';
import type { Claimant, Convention, DecisionGuard } from './convention.ts';
import { holderInfo } from './foreign-files.ts';
import { ensureDirectory, interopRoot, machinePath } from './paths.ts';

const NAME = 'gpu-lock-magic-RaNdOM-This_Name-NEED_BE-THE_SAME-Across_Users';
const DIRECTORY = '/tmp/safe_gpu';
/** Where older versions have it. A lock there is honoured, but never made: the file would lie in /tmp for ever. */
const OLD_DIRECTORY = '/tmp';

/** For how long one that took longer isn't waited for again, in ms. */
const SKIP_MS = 60_000;
const MAX_TRIES = 16;

const skippedUntil = new Map<string, number>();

/**
 * safe-gpu: one POSIX record lock for all GPUs, exclusive, held while it looks for a GPU without a compute process and puts a
 * process of its own on it. We share the lock until our placeholders are visible: that keeps safe-gpu from looking in between,
 * and not other claims. The driver then tells which GPUs are in use.
 */
export class SafeGPU implements Convention {
  readonly name = 'safe-gpu';

  directories(root?: string): string[] {
    return [machinePath(DIRECTORY, root)];
  }

  // Not sticky: in a sticky directory the kernel doesn't let a user open another's file with O_CREAT, as safe-gpu does.
  prepare(): void {
    ensureDirectory(machinePath(DIRECTORY), 0o777);
  }

  *enter(claimant: Claimant): Waiting<DecisionGuard | null> {
    const root = interopRoot();
    const own = ensureDirectory(machinePath(DIRECTORY, root), 0o777);
    const old = Directory.at(machinePath(OLD_DIRECTORY, root));
    const present: LockFile[] = own === null ? [] : [{ directory: own, isOld: false }];
    if (old !== null) present.push({ directory: old, isOld: true });
    const files: OpenFile[] = [];
    const leave = () => {
      for (const { descriptor } of files.splice(0)) closeSync(descriptor);
    };
    try {
      for (const file of present) {
        const descriptor = open(file);
        if (descriptor !== null) files.push({ ...file, descriptor });
      }
      if (files.length === 0) return null;
      const since = now();
      for (const file of files) yield* share(file, since, claimant.timeoutMs);
    } catch (error) {
      leave();
      throw error;
    }
    return { leave };
  }
}

/** The file that is its lock. */
interface LockFile {
  directory: Directory;
  /** Where older versions have it. */
  isOld: boolean;
}

interface OpenFile extends LockFile {
  descriptor: number;
}

/** Only a readable file is needed to share a lock. null: no program can lock by it either, or it isn't what it should be. */
function open({ directory, isOld }: LockFile): number | null {
  let descriptor = directory.openToShare(NAME);
  // Programs of safe-gpu, of all users, open it for writing.
  if (descriptor === -errno.ENOENT && !isOld) descriptor = directory.openShared(NAME);
  if (descriptor >= 0) return descriptor;
  if (descriptor === -errno.ENOENT) return null;
  if (directory.statusOf(NAME) !== null) {
    warnOnce(
      `${directory.pathOf(NAME)} can't be locked here: safe-gpu doesn't see claims before their placeholders start.`,
    );
  }
  return null;
}

/** Shares the lock of the file that has this name, or goes on without: a program that is stopped must not stop us. */
function* share(file: OpenFile, since: number, timeoutMs: number): Waiting<void> {
  for (let i = 0; i < MAX_TRIES; i++) {
    if (!(yield* shareThis(file, since, timeoutMs))) return;
    if (file.directory.isNamed(file.descriptor, NAME)) return;
    const directory = Directory.at(file.directory.path);
    if (directory === null) return;
    file.directory = directory;
    const descriptor = open(file); // removed and created again meanwhile: locks would not meet
    if (descriptor === null) return;
    closeSync(file.descriptor);
    file.descriptor = descriptor;
  }
}

function* shareThis({ directory, descriptor }: OpenFile, since: number, timeoutMs: number): Waiting<boolean> {
  const path = directory.pathOf(NAME);
  if (native().lockTry(descriptor, OFD, SHARED, 0, 1) === 0) return true;
  let pid = native().lockHolder(descriptor, OFD, SHARED, 0, 1);
  while (!isSkipped(path, pid)) {
    if (yield* locking(descriptor, SHARED, 0, timeoutMs)) return true;
    const before = pid;
    pid = native().lockHolder(descriptor, OFD, SHARED, 0, 1);
    const waited = now() - since;
    if (waited < TIMEOUTS.safeGPU && !(pid === before && isStopped(pid))) {
      const most = formatDuration(TIMEOUTS.safeGPU);
      warnOnce(`${lockerName(pid)} has locked ${path}; waiting for it for at most ${most}.`);
      continue;
    }
    skippedUntil.set(`${path} ${pid}`, now() + SKIP_MS);
    warn(
      `${lockerName(pid)} has held ${path} for ${formatDuration(Math.round(waited / 1000) * 1000)}; this claim proceeds without that lock.`,
    );
  }
  return false;
}

function isSkipped(path: string, pid: number): boolean {
  return (skippedUntil.get(`${path} ${pid}`) ?? 0) > now();
}

function lockerName(pid: number): string {
  if (pid === 0) return 'a program that locks as safe-gpu does';
  const { user, command } = holderInfo('safe-gpu', { pid });
  const stopped = isStopped(pid) ? ', stopped' : '';
  return `a program that locks as safe-gpu does (${user}, pid ${pid}${stopped}${command ? `: ${command}` : ''})`;
}
