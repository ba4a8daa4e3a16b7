// The limits of this process's user, by the configuration files. Nothing stops programs that don't claim.
import { type Configuration, loadConfiguration } from '../../config/index.ts';
import { GPUOwnerError } from '../../errors.ts';
import { type GPU, isInstance, type Sharing, type Verdict } from '../../gpus/index.ts';
import { formatDuration, groupNames, userName } from '../../platform/index.ts';
import type { LockDirectory } from '../locks/index.ts';
import { isAboveLimit, limitOf, type UserLimit } from '../rules/index.ts';
import { readHoldings } from './holdings.ts';

interface Judged {
  gpu: GPU;
  verdict: Verdict;
  sharing?: Sharing;
}

const NO_LIMIT: UserLimit = { gpus: Number.POSITIVE_INFINITY, ms: Number.POSITIVE_INFINITY };

type Limited = Pick<Configuration, 'limits' | 'ownLimits'>;

/** @throws ERR_CONFIGURATION */
export function ownLimit({ limits, ownLimits }: Limited = loadConfiguration()): UserLimit {
  if (limits === undefined && ownLimits === undefined) return NO_LIMIT;
  const uid = process.geteuid?.() ?? 0;
  const groups = uid === 0 || !limits?.groups.size ? [] : groupNames([...limits.groups.keys()]);
  return limitOf({ uid, user: userName(uid), groups }, limits, ownLimits?.everybody);
}

/** How long a command may run whose user says so, or says nothing. @throws ERR_INVALID_ARGUMENT for more than the limit, ERR_CONFIGURATION */
export function allowedTime(ms: number | null): number | null {
  const limit = ownLimit().ms;
  if (ms === null) return Number.isFinite(limit) ? limit : null;
  if (ms <= limit) return ms;
  throw new GPUOwnerError(
    'ERR_INVALID_ARGUMENT',
    `--for: ${formatDuration(ms)} is more than the ${formatDuration(limit)} that ${ownName()}'s jobs may run here (limits.for in the configuration).`,
  );
}

function ownName(): string {
  return userName(process.geteuid?.() ?? 0);
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

/**
 * Takes away the free GPUs, where the user holds too many already: those come first.
 * @throws ERR_INVALID_ARGUMENT for more than the user may ever have
 */
export function applyLimit<Candidate extends Judged>(
  candidates: Candidate[],
  { count, most: limit }: { count: number; most?: number },
  directory: LockDirectory | null,
): Candidate[] {
  if (limit === undefined || !Number.isFinite(limit)) return candidates;
  const size = sizeOf(candidates, count);
  const user = ownName();
  if (isAboveLimit(size, limit)) {
    throw new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      `${count === 1 ? 'a GPU' : `${count} GPUs`} asked for, and ${user} may have ${shown(limit)} at a time here (limits.gpus in the configuration). Ask for fewer.`,
    );
  }
  if (directory === null) return candidates;
  const all = candidates.map(({ gpu }) => gpu);
  const parts = new Map(all.map((gpu) => [gpu.uuid, partOf(gpu, all)]));
  const held = readHoldings(directory, (uuid) => parts.get(uuid)).get(process.geteuid?.() ?? 0);
  if (held === undefined || !isAboveLimit(held.gpus + size, limit)) return candidates;
  const reason = `free, but you have ${shown(held.gpus)} of the ${shown(limit)} ${limit === 1 ? 'GPU' : 'GPUs'} that ${user} may have at a time`;
  return candidates.map((candidate) =>
    candidate.verdict.state === 'free'
      ? { ...candidate, verdict: { state: 'leased', reason, transient: false, ownLeases: held.uuids } }
      : candidate,
  );
}

function shown(gpus: number): string {
  return String(Math.round(gpus * 100) / 100);
}
