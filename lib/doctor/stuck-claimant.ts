import { join } from 'node:path';
import { describeProcess } from '../gpus/processes.ts';
import { native } from '../native.ts';
import { statOf } from './files.ts';
import type { Report } from './finding.ts';
import { readLocks } from './kernel-locks.ts';
import { mountOf, readMounts } from './mounts.ts';

const ACQUISITION = 'acquisition.lock';
const STUCK_AFTER = 1_000;

/** Somebody who was stopped in the middle of a claim: each claim waits for it, until its time is up. */
export function reportStuck(report: Report, path: string): void {
  const before = decider(path);
  if (before === null) return;
  native().processSleep(STUCK_AFTER);
  if (decider(path) !== before) return;
  const { name, user } = describeProcess(before);
  report.add(
    'claimant-stuck',
    `${name ?? 'A process'} (pid ${before}, ${user ?? '?'}) has been deciding on a claim for more than a second: it is stopped, or the driver hangs under it. Each claim waits up to 2 s for it, and then goes on.`,
    `If it is stopped: \`kill -CONT ${before}\`; else end it: \`kill ${before}\`.`,
  );
}

/** Who holds the lock under which claimants decide; null: nobody, or nobody who is visible. */
function decider(path: string): number | null {
  const device = mountOf(path, readMounts())?.device;
  const inode = statOf(join(path, ACQUISITION))?.ino;
  const held = readLocks().find(
    (lock) => lock.kind === 'FLOCK' && lock.exclusive && lock.device === device && lock.inode === inode,
  );
  return held?.pid ?? null;
}
