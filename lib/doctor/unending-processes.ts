import { statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import type { LockDirectory } from '../claims/index.ts';
import { native } from '../native.ts';
import { describeProcess, listWords, processIds, readLink, readProcessStat } from '../platform/index.ts';
import { namesIn, statOf } from './files.ts';
import type { Report } from './finding.ts';

/** How long a process that was killed may take to end, in ms. */
const ENDING = 500;

/**
 * Processes that were killed and can't end, because a call of a driver is stuck in the kernel: what they had locked stays locked.
 * Root sees all of them, others their own.
 */
export function reportUnending(report: Report, directory: LockDirectory): void {
  const suspects = unending(directory);
  if (suspects.size === 0) return;
  native().processSleep(ENDING);
  for (const [pid, files] of unending(directory)) {
    if (!suspects.has(pid)) continue;
    const { name, user } = describeProcess(pid);
    report.add(
      'process-stuck',
      `${name ?? 'A process'} (pid ${pid}, ${user ?? '?'}) was killed and can't end: a call is stuck in the kernel, most probably in the driver. Until it returns, it keeps ${listWords(files)} locked.`,
      'See `dmesg`. Nothing ends it before the driver lets go of it: reset the GPU (`nvidia-smi --gpu-reset`), or reboot.',
    );
  }
}

/** By PID, the lock files that they have open. */
function unending(directory: LockDirectory): Map<number, string[]> {
  const found = new Map<number, string[]>();
  const names = new Map<number, string>();
  for (const path of directory.all) {
    for (const name of namesIn(path)) names.set(statOf(join(path, name))?.ino ?? 0, name);
  }
  for (const pid of processIds()) {
    if (!/^[ZD]$/.test(readProcessStat(pid)?.state ?? '')) continue;
    if (describeProcess(pid).alive !== 'dying') continue;
    // The main thread, where it has ended, has none open any longer; all others have the same.
    const files = namesIn(`/proc/${pid}/task`).flatMap((thread) =>
      filesOf(`/proc/${pid}/task/${thread}/fd`, directory, names),
    );
    if (files.length > 0) found.set(pid, [...new Set(files)].sort());
  }
  return found;
}

function filesOf(
  descriptors: string,
  directory: LockDirectory,
  names: ReadonlyMap<number, string>,
): string[] {
  return namesIn(descriptors).flatMap((number) => {
    const descriptor = `${descriptors}/${number}`;
    // Of a file that was made without a name, the link never has the right one, but always the directory.
    if (!directory.all.includes(dirname(readLink(descriptor) ?? ''))) return [];
    const name = names.get(statSync(descriptor, { throwIfNoEntry: false })?.ino ?? 0);
    return name === undefined ? [] : [name];
  });
}
