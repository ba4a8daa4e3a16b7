import { closeSync, constants, openSync, readlinkSync, readSync, type Stats, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { decodeRecord, type LockDirectory, leaseInfo, RECORD_SIZE } from '../claims/index.ts';
import { namesIn, statOf } from './files.ts';
import type { Report } from './finding.ts';
import { list } from './gpus.ts';
import { type KernelLock, readLocks } from '../platform/index.ts';

/** The byte of a lease file that is the lease. */
const LEASE = 0;
const MOST_GPUS = 1024;

/** Leases whose file has lost its name: the GPU can be leased a second time. Returns how many there are. */
export function reportRemoved(report: Report, directory: LockDirectory): number {
  const leases = new Set(
    (readLocks() ?? [])
      .filter(isLease)
      .map(({ inode }) => inode),
  );
  if (leases.size === 0) return 0;
  report.step('looking for leases whose file was removed');
  const named = new Set(directory.all.flatMap(inodesIn));
  const files = new Set<string>();
  const holders = new Map<string, { count: number; gpus: number[]; what: string }>();
  for (const { descriptor, pid, place } of openFilesIn(directory)) {
    const stat = statBehind(descriptor);
    if (stat === null || named.has(keyOf(stat)) || !leases.has(stat.ino)) continue;
    const file = keyOf(stat);
    if (files.has(file)) continue; // the processes of a job share it
    files.add(file);
    const record = recordOf(descriptor);
    const { user, command, pid: holder } = leaseInfo(record);
    const what = `removed from ${place} while ${user} holds the lease (pid ${holder ?? pid}${command === null ? '' : `: ${command}`})`;
    const known = holders.get(what) ?? { count: 0, gpus: indicesIn(record), what };
    holders.set(what, { ...known, count: known.count + 1 });
  }
  for (const { count, gpus, what } of holders.values()) {
    // Which of several GPUs it is, its file doesn't say.
    const all = gpus.length === count;
    const which = all ? ` of ${list(gpus.map((index) => ({ index })))}` : '';
    const subject = count === 1 ? 'The lease file' : all ? 'The lease files' : `${count} lease files`;
    report.add(
      'lease-file-removed',
      `${subject}${which} ${count === 1 ? 'was' : 'were'} ${what}: others can lease the same ${count === 1 ? 'GPU' : 'GPUs'}.`,
      'Stop whatever cleans there. End the job and start it again, or keep others from what it has until it ends: `gpu-owner hold --devices …`.',
    );
  }
  return files.size;
}

/** A removed file may have another name somewhere, in a backup for instance: nobody looks for it there. */
function inodesIn(path: string): string[] {
  return namesIn(path).flatMap((name) => {
    const stat = statOf(join(path, name));
    return stat === null ? [] : [keyOf(stat)];
  });
}

function keyOf({ dev, ino }: Stats): string {
  return `${dev}:${ino}`;
}

function isLease({ kind, exclusive, start }: KernelLock): boolean {
  return kind === 'OFDLCK' && exclusive && start === LEASE;
}

/** The GPUs of the claim, as its record has them: anybody may have written it. */
function indicesIn(record: Record<string, unknown> | null): number[] {
  const gpus = Array.isArray(record?.gpus) ? (record.gpus as unknown[]) : [];
  const indices = gpus.map((gpu) => (gpu as { index?: unknown } | null)?.index);
  return indices.filter(
    (index): index is number =>
      Number.isSafeInteger(index) && Number(index) >= 0 && Number(index) < MOST_GPUS,
  );
}

/** Of the processes that this user may look into: one's own, or all for root. */
function* openFilesIn(
  directory: LockDirectory,
): Generator<{ descriptor: string; pid: number; place: string }> {
  for (const pid of namesIn('/proc')) {
    if (!/^\d+$/.test(pid)) continue;
    for (const number of namesIn(`/proc/${pid}/fd`)) {
      const descriptor = `/proc/${pid}/fd/${number}`;
      try {
        // Of a file that was made without a name, the link never has the right one, but always the directory.
        const place = dirname(readlinkSync(descriptor));
        if (directory.all.includes(place)) yield { descriptor, pid: Number(pid), place };
      } catch {
        // closed meanwhile
      }
    }
  }
}

/** Of an open file, which a link of /proc leads to. */
function statBehind(link: string): Stats | null {
  try {
    return statSync(link);
  } catch {
    return null;
  }
}

function recordOf(path: string): Record<string, unknown> | null {
  try {
    const block = Buffer.alloc(RECORD_SIZE);
    // Whoever has it open may have put a FIFO there meanwhile.
    const descriptor = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK | constants.O_NOCTTY);
    try {
      readSync(descriptor, block, 0, RECORD_SIZE, 0);
    } finally {
      closeSync(descriptor);
    }
    return decodeRecord(block);
  } catch {
    return null;
  }
}
