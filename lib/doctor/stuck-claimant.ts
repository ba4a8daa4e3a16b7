import { join } from 'node:path';
import { EPOCHS, NAME as LINE, Line, type LockDirectory } from '../claims/index.ts';
import { describeProcess, listWords } from '../platform/index.ts';
import type { Report } from './finding.ts';
import { lastingLocks, lockersOf } from './kernel-locks.ts';

const ACQUISITION = 'acquisition.lock';

/** Claims that were suspended while they decided: the others waited for each of them once. */
export function reportStuck(report: Report, path: string): void {
  for (const { pid, starts } of lastingLocks(join(path, ACQUISITION), true)) {
    if (!starts.some((start) => start >= EPOCHS)) continue; // no claim: see foreign-locks.ts
    report.add(
      'claimant-stuck',
      `${whoIs(pid)} has been deciding on a claim for more than a second: it is suspended, or the driver hangs under it. The other claims waited up to 2 s for it, and go on without it.`,
      remedyFor(pid),
    );
  }
}

/** So many places of the wait queue no process of ours has. */
const MANY_PLACES = 64;

/** Processes that lock so much of the wait queue's file that it is of no use. */
export function reportSpoiltQueue(report: Report, directory: LockDirectory): void {
  const line = Line.open(directory);
  if (line === null) return;
  const isSpoilt = line.isSpoilt;
  line.close();
  if (!isSpoilt) return;
  const path = join(directory.path, LINE);
  const holders = lockersOf(path, MANY_PLACES);
  report.add(
    'queue-spoilt',
    `More of ${path} is locked than waiters lock, so claims don't wait in line and go on without it. ${
      holders.length === 0
        ? 'This user may not see by whom.'
        : listWords(holders.map(({ pid, locks }) => `${whoIs(pid)} holds ${locks} locks there.`))
    }`,
    holders.length === 0
      ? 'As root, `gpu-owner doctor` says who does that.'
      : `End what does that: \`kill ${holders.map(({ pid }) => pid).join(' ')}\`.`,
  );
}

/** Claims that keep safe-gpu's programs from deciding. @param path of its lock */
export function reportSharers(report: Report, path: string): void {
  for (const { pid } of lastingLocks(path, false)) {
    report.add(
      'safe-gpu-waits',
      `${whoIs(pid)} has been claiming for more than a second: it is suspended, or CUDA takes long to start. Programs that use safe-gpu wait for it, because it shares ${path}.`,
      remedyFor(pid),
    );
  }
}

function whoIs(pid: number): string {
  const { name, user } = describeProcess(pid);
  return `${name ?? 'A process'} (pid ${pid}, ${user ?? '?'})`;
}

function remedyFor(pid: number): string {
  return `If it is suspended: \`kill -CONT ${pid}\`; else end it: \`kill ${pid}\`.`;
}
