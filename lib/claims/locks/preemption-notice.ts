// The leases that were asked to give way. Requests write them into the file that the keepers of preemptible leases watch. Anybody
// may write there: a forged entry ends no more than a forged request, and a removed one is written again by the process that asked.
import { closeSync } from 'node:fs';
import { loadConfiguration } from '../../config/index.ts';
import { native } from '../../native.ts';
import { bootMilliseconds, schema } from '../../platform/index.ts';
import { isEpochLocked, leaseName } from './lease-file.ts';
import type { LockDirectory } from './lock-directory.ts';
import { type JobFile, readJobFile } from './parent-job.ts';
import { encodeRecord, MAX_EPOCHS, readRecord } from './record.ts';

export const PREEMPTION_NOTICE = 'preemption.notice';

/** A lease that a request has asked to give way. */
interface Asked {
  /** In ms since boot. */
  at: number;
  /** The grace was over, and the request still there. */
  isOverdue: boolean;
}

/** How long a grace counts where the configuration has no `preemptionGrace`, in ms. */
const MAX_PATIENCE_MS = 600_000;
/** How long a keeper may take to see that it is asked, and to end what is left after the grace, in ms. */
const SLACK_MS = 5_000;
/** As many entries fit into the file. */
const MAX_ENTRIES = 60;

const NOTICE = schema.record({
  asked: schema.validOf(
    schema.record({ epoch: schema.whole(MAX_EPOCHS), at: schema.amount(), isOverdue: schema.flag }),
  ),
});

/** The leases that requests have asked, by their epochs, as far as the file says. */
export function readAsked(directory: LockDirectory): ReadonlyMap<number, Asked> {
  const asked = new Map<number, Asked>();
  for (const descriptor of directory.filesNamed(PREEMPTION_NOTICE, [directory.path]))
    for (const { epoch, at, isOverdue } of schema.readAs(NOTICE, readRecord(descriptor))?.asked ?? [])
      asked.set(epoch, { at, isOverdue });
  return asked;
}

/** Has the keepers of preemptible leases look at the wait queue. @param own the leases that this process has asked */
export function notifyPreemptible(directory: LockDirectory, own: ReadonlyMap<number, Asked>): void {
  const descriptor = directory.openIfPossible(PREEMPTION_NOTICE);
  if (descriptor < 0) return; // they look once a minute
  const lasting = [...readAsked(directory)].filter(([epoch]) => readJobFile(directory, epoch) !== null);
  const entries = [...new Map([...lasting, ...own])].slice(-MAX_ENTRIES);
  const asked = entries.map(([epoch, { at, isOverdue }]) => ({ epoch, at, isOverdue }));
  native().fileWriteBlock(descriptor, encodeRecord({ asked }));
  closeSync(descriptor);
}

/** How long until a preemptible lease that was asked is overdue, in ms; 0 or less: it is. */
export function untilOverdue(askedAt: number, graceMs: number): number {
  const patience = Math.min(graceMs, loadConfiguration().preemptionGrace ?? MAX_PATIENCE_MS);
  return askedAt + patience + SLACK_MS - bootMilliseconds();
}

/** A preemptible lease that was asked to give way, and hasn't within its grace. */
export interface OverdueLease {
  epoch: number;
  job: JobFile;
  /** When it was asked, in ms since 1970. */
  askedAt: number;
}

/** Preemptible leases that haven't given way in time, as far as the notice says. */
export function readOverdue(directory: LockDirectory): OverdueLease[] {
  return [...readAsked(directory)].flatMap(([epoch, { at, isOverdue }]) => {
    const job = isOverdue ? readJobFile(directory, epoch) : null;
    if (job === null || job.graceMs === null) return [];
    return [{ epoch, job, askedAt: Date.now() - bootMilliseconds() + at }];
  });
}

/** The one of these leases that holds the GPU; undefined: none does. */
export function findOverdue(
  directory: LockDirectory,
  uuid: string,
  overdue: readonly OverdueLease[],
): OverdueLease | undefined {
  if (overdue.length === 0) return undefined;
  for (const descriptor of directory.filesNamed(leaseName(uuid))) {
    const found = overdue.find(({ epoch }) => isEpochLocked(descriptor, epoch));
    if (found !== undefined) return found;
  }
  return undefined;
}
