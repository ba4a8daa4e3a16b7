// Preemptible leases give way to requests that can't start otherwise. The process that waits decides which ones, and names them in its request;
// their keepers look at it and end their commands. docs/decisions/052-preemption.md
import { closeSync } from 'node:fs';
import { GPUOwnerError } from '../errors.ts';
import { native } from '../native.ts';
import { schema, warnOnce } from '../platform/index.ts';
import type { Claim } from './claim.ts';
import type { Candidate } from './evaluate.ts';
import {
  isLocked,
  isPreemptible,
  type LockDirectory,
  leaseName,
  MAX_EPOCHS,
  readHolder,
} from './locks/index.ts';
import { activeWaiters, readWaiters, type Waiter } from './queue/index.ts';
import { type JoiningRequest, type PreemptibleLease, whoGivesWay } from './rules/index.ts';

/** Keepers of preemptible leases watch this file: it is written to when a request names a lease. */
export const PREEMPTION_NOTICE = 'preemption.notice';

/** The request of a claimant whose turn it is, and the GPUs as it sees them. */
interface Demand {
  candidates: readonly Candidate[];
  directory: LockDirectory;
  gpuRequest: JoiningRequest;
}

/** The epochs of the leases that have to give way, so that a request whose turn it is can start. @param ahead what they could use is theirs */
export function leasesToPreempt(
  { candidates, directory, gpuRequest }: Demand,
  ahead: Iterable<Waiter>,
): number[] {
  const { class: own, scope, count, uuids } = gpuRequest;
  const isAboveLimit = candidates.some(({ verdict }) => verdict.ownLeases !== undefined);
  if (own === 'preemptible' || scope !== null || isAboveLimit) return [];
  const wanted = new Set(uuids);
  const isOurs = ({ gpu, verdict }: Candidate) =>
    wanted.has(gpu.uuid) &&
    verdict.state === 'leased' &&
    verdict.keptFor === undefined &&
    verdict.bookedUntil === undefined;
  const leased = candidates.filter(isOurs);
  const leases = readPreemptible(directory, leased);
  if (leases.length === 0) return [];
  const taken = new Set([...ahead].filter((each) => each.scope === null).flatMap((each) => each.uuids));
  const usable = new Set(leased.map(({ gpu }) => gpu.uuid).filter((uuid) => !taken.has(uuid)));
  const free = candidates.filter(({ verdict }) => verdict.state === 'free' || verdict.transient).length;
  return whoGivesWay(count - free, usable, leases).map(({ epoch }) => epoch);
}

const RECORD = schema.record({
  generation: schema.whole(MAX_EPOCHS),
  since: schema.text,
  givesWay: schema.or(schema.flag, false),
  gpus: schema.or(schema.validOf(schema.record({ uuid: schema.text })), []),
});

/** The preemptible leases of these GPUs. A record may be anybody's, so the file of the job proves it. */
function readPreemptible(directory: LockDirectory, leased: readonly Candidate[]): PreemptibleLease[] {
  const leases = new Map<number, PreemptibleLease & { uuids: string[] }>();
  for (const { gpu } of leased) {
    for (const descriptor of directory.filesNamed(leaseName(gpu.uuid))) {
      const record = isLocked(descriptor) ? schema.readAs(RECORD, readHolder(descriptor)) : null;
      if (record === null || !isPreemptible(directory, record.generation)) continue;
      const { generation: epoch, since, givesWay: isEnding, gpus } = record;
      // A lease of several GPUs ends as a whole.
      const uuids = [...new Set([gpu.uuid, ...gpus.map(({ uuid }) => uuid)])];
      leases.set(epoch, { epoch, since: Date.parse(since) || 0, uuids, isEnding });
    }
  }
  return [...leases.values()];
}

/** Whether a request needs the GPUs of this claim, which is preemptible. As native/keeper/preemption.cc looks at it. */
export function isPreempted({ directory, leases }: Pick<Claim, 'directory' | 'leases'>): boolean {
  const epoch = leases[0]?.record.generation ?? -1;
  const isOurs = (uuid: string) => leases.some((lease) => lease.uuid === uuid);
  for (const { tag, scope, preempts, uuids } of activeWaiters(readWaiters(directory))) {
    if (tag === null || tag.class === 'preemptible' || scope !== null) continue;
    if (preempts.includes(epoch) && uuids.some(isOurs)) return true;
  }
  return false;
}

/** Has the keepers of preemptible leases look at the wait queue. */
export function notifyPreemptible(directory: LockDirectory): void {
  const descriptor = directory.openIfPossible(PREEMPTION_NOTICE);
  if (descriptor < 0) return; // they look once a minute
  native().fileWriteBlock(descriptor, Buffer.from('\n'));
  closeSync(descriptor);
}

/** Makes the file that the keeper of a preemptible lease watches. */
export function openPreemptionNotice(directory: LockDirectory): void {
  try {
    closeSync(directory.openFile(PREEMPTION_NOTICE));
  } catch (error) {
    if (!(error instanceof GPUOwnerError)) throw error;
    warnOnce(`${error.message} This job looks once a second whether it has to give way.`);
  }
}
