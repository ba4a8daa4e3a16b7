// The limits of this process's user, by the configuration files. Nothing stops programs that don't claim.
import { type Configuration, loadConfiguration } from '../../config/index.ts';
import { type GPU, isInstance, type Sharing, type Verdict } from '../../gpus/index.ts';
import {
  findGid,
  formatDuration,
  groupNames,
  machineUid,
  usageError,
  userName,
} from '../../platform/index.ts';
import type { LockDirectory } from '../locks/index.ts';
import { type JoiningRequest, limitOf, type TogetherLimit, type UserLimit } from '../rules/index.ts';
import { reachedLimit, readHoldings } from './holdings.ts';

interface Judged {
  gpu: GPU;
  verdict: Verdict;
  sharing?: Sharing;
}

/** The limits of this process's user, and of the user's groups. */
interface OwnLimit extends UserLimit {
  together: readonly TogetherLimit[];
}

const NO_LIMIT: OwnLimit = { gpus: Number.POSITIVE_INFINITY, ms: Number.POSITIVE_INFINITY, together: [] };

type Limited = Pick<Configuration, 'limits' | 'ownLimits'>;

/** @throws ERR_CONFIGURATION */
function ownLimit({ limits, ownLimits }: Limited = loadConfiguration()): OwnLimit {
  if (limits === undefined && ownLimits === undefined) return NO_LIMIT;
  const uid = machineUid();
  const groups = uid === 0 || !limits?.groups.size ? [] : groupNames([...limits.groups.keys()]);
  const together = groups.flatMap((group) => {
    const [gid, most] = [findGid(group), limits?.groups.get(group)?.together];
    return gid == null || most === undefined || !Number.isFinite(most) ? [] : [{ group, gid, most }];
  });
  return { ...limitOf({ uid, user: userName(uid), groups }, limits, ownLimits?.everybody), together };
}

/** What a request says of these limits. */
export function requestLimits(configuration?: Limited): Pick<JoiningRequest, 'most' | 'together'> {
  const { gpus: most, together } = ownLimit(configuration);
  return { most, ...(together.length === 0 ? {} : { together }) };
}

/** How long a command may run whose user says so by this option, or says nothing. @throws ERR_INVALID_ARGUMENT for more than the limit, ERR_CONFIGURATION */
export function allowedTime(ms: number | null, option = '--for'): number | null {
  const limit = ownLimit().ms;
  if (ms === null) return Number.isFinite(limit) ? limit : null;
  if (ms <= limit) return ms;
  throw usageError(
    `${option}: ${formatDuration(ms)} is more than the ${formatDuration(limit)} that ${ownName()}'s jobs may run here (limits.for in the configuration).`,
  );
}

function ownName(): string {
  return userName(machineUid());
}

/** How much of a GPU each is: 1, or an instance's part of its GPU's memory. */
export function partOf(gpu: GPU, all: readonly GPU[]): number | undefined {
  if (!isInstance(gpu)) return 1;
  const whole = all.find(({ uuid }) => uuid === gpu.parent)?.memory.totalBytes ?? 0;
  const part = (gpu.memory.totalBytes ?? 0) / whole;
  return part > 0 && part <= 1 ? part : undefined;
}

function wantedPart({ wanted, capacity }: Partial<Sharing> = {}): number {
  return wanted == null || !capacity ? 1 : Math.min(1, wanted / capacity);
}

/** Lower bound on the GPUs that a request for `count` of these takes. */
export function sizeOf(candidates: readonly Judged[], count: number): number {
  const all = candidates.map(({ gpu }) => gpu);
  const parts = candidates
    .filter(({ verdict }) => verdict.state !== 'excluded')
    .map(({ gpu, sharing }) => (partOf(gpu, all) ?? 1) * wantedPart(sharing))
    .sort((a, b) => a - b);
  return parts.length < count ? count : parts.slice(0, count).reduce((sum, part) => sum + part, 0);
}

function holdingsOf(candidates: readonly Judged[], directory: LockDirectory) {
  const all = candidates.map(({ gpu }) => gpu);
  const parts = new Map(all.map((gpu) => [gpu.uuid, partOf(gpu, all)]));
  return readHoldings(directory, (uuid) => parts.get(uuid));
}

/** Whether the user, or a group of the user, holds too many, with what this process has just leased: another claim may have come in between. */
export function exceedsLimit(
  candidates: readonly Judged[],
  { most, together }: Pick<JoiningRequest, 'most' | 'together'>,
  directory: LockDirectory,
): boolean {
  const request = { uid: machineUid(), size: 0, most, together };
  return reachedLimit(request, () => holdingsOf(candidates, directory)) !== null;
}

/**
 * Takes away the free GPUs, where the user, or a group of the user, holds too many already: those come first.
 * @throws ERR_INVALID_ARGUMENT for more than the user may ever have
 */
export function applyLimit<Candidate extends Judged>(
  candidates: Candidate[],
  { count, most, together = [] }: { count: number } & Pick<JoiningRequest, 'most' | 'together'>,
  directory: LockDirectory | null,
): Candidate[] {
  if (!Number.isFinite(most ?? Number.POSITIVE_INFINITY) && together.length === 0) return candidates;
  const size = sizeOf(candidates, count);
  const user = ownName();
  const request = { uid: machineUid(), size, most, together };
  const ever = reachedLimit(request, () => new Map());
  if (ever !== null) {
    const [may, key] =
      ever.group === null
        ? [`${user} may have ${ever.most} at a time`, 'limits.gpus']
        : [`members of ${ever.group} may have ${ever.most} together`, `limits.groups.${ever.group}.together`];
    throw usageError(
      `${count === 1 ? 'a GPU' : `${count} GPUs`} asked for, and ${may} here (${key} in the configuration). Ask for fewer.`,
    );
  }
  if (directory === null) return candidates;
  const reached = reachedLimit(request, () => holdingsOf(candidates, directory));
  if (reached === null) return candidates;
  const { group, held, most: limit, uuids: ownLeases } = reached;
  const gpus = limit === 1 ? 'GPU' : 'GPUs';
  const reason =
    group === null
      ? `free, but you have ${held} of the ${limit} ${gpus} that ${user} may have at a time`
      : `free, but members of ${group} hold ${held} of the ${limit} ${gpus} that they may have together`;
  return candidates.map((candidate) =>
    candidate.verdict.state === 'free'
      ? { ...candidate, verdict: { state: 'leased', reason, transient: false, ownLeases } }
      : candidate,
  );
}
