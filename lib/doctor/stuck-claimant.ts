import { join } from 'node:path';
import { EPOCHS } from '../claims/acquisition-lock.ts';
import { describeProcess } from '../gpus/processes.ts';
import type { Report } from './finding.ts';
import { lastingLocks } from './kernel-locks.ts';

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
