// Why a claim gets no GPUs, as errors.
import { GPUOwnerError, type GPUReason } from '../errors.ts';
import { type GPUState, isPossible, type LeaseInfo, label } from '../gpus/index.ts';
import { hostName, lineage, processCommand, readProcessStat } from '../platform/index.ts';
import type { Candidate, Evaluation } from './evaluate.ts';
import type { ParentJob } from './locks/index.ts';
import type { Binding } from './options.ts';

export function reasonsOf(candidates: readonly Candidate[]): GPUReason[] {
  return candidates.map(({ gpu, verdict, lease }) => ({
    index: gpu.index,
    instance: gpu.instance,
    uuid: gpu.uuid,
    reason: `${verdict.state === 'busy' ? 'busy: ' : ''}${verdict.reason ?? 'free'}${verdict.state === 'leased' ? ownLeaseNote(lease) : ''}`,
    ...(verdict.isHidden === true ? { isHidden: true } : {}),
  }));
}

/** Whether waiting can help: enough GPUs are only leased or busy. */
export function canHelp({ candidates, request }: Evaluation): boolean {
  return isPossible(
    request.count,
    candidates.map(({ verdict }) => verdict),
  );
}

/** What {@link refuseImpossible} takes. */
export function asked({ candidates, request: { count, bound }, job }: Evaluation) {
  const verdicts = candidates.map(({ verdict }) => verdict);
  return [count, verdicts, () => reasonsOf(candidates), bound, job] as const;
}

/**
 * Refuses at once a request that no wait can satisfy. Called without a function in between, so that the ten lines of an error's stack reach
 * the caller of the library.
 * @throws ERR_INVALID_ARGUMENT
 */
export function refuseImpossible(
  count: number,
  verdicts: readonly { state: GPUState }[],
  reasons: () => readonly GPUReason[],
  bound?: Binding,
  job: ParentJob | null = null,
): void {
  const allowed = verdicts.filter(({ state }) => state !== 'excluded').length;
  if (allowed >= count) return;
  const gpus = reasons();
  const instances = gpus.filter(({ instance }) => typeof instance === 'number').length;
  const there =
    instances === 0
      ? `this machine has ${gpus.length || 'none'}`
      : `this machine has ${gpus.length - instances}, and ${instances} MIG instances`;
  const [who, all] =
    job === null
      ? [there, gpus.length]
      : [`the surrounding \`gpu-owner run\` has claimed only ${job.size}`, job.size];
  const plain = allowed === all || (job !== null && job.size < count);
  const why = plain ? who : `${who}, of which ${Math.min(allowed, all) || 'none'} may be used here`;
  const outside =
    job === null
      ? ''
      : ' (others can be claimed in an environment without GPU_OWNER_JOB and CUDA_VISIBLE_DEVICES)';
  const message = `${count} ${count === 1 ? 'GPU' : 'GPUs'} asked for, but ${why}${outside}`;
  if (bound !== undefined) throw boundElsewhere(bound, message, gpus);
  throw new GPUOwnerError('ERR_INVALID_ARGUMENT', message + listReasons(gpus), { gpus });
}

/** Other GPUs may be free: that doesn't help a process to which CUDA shows only some. */
function boundElsewhere(
  { uuids, by }: Binding,
  message: string,
  gpus: readonly GPUReason[] = [],
): GPUOwnerError {
  return new GPUOwnerError(
    'ERR_CUDA_INITIALIZED',
    `${message}: CUDA in this process was bound to ${uuids.length === 1 ? 'one' : uuids.length} by ${by}. Claim all GPUs at ` +
      "once, or with placeholder: 'none', or in another process.",
    { gpus },
  );
}

/** Not enough can be had now. @param outrun other claims took them first each time */
export function unavailable({ candidates, request }: Evaluation, outrun: boolean): GPUOwnerError {
  const { count, isConnected, bound } = request;
  const wanted = candidates.filter(({ verdict }) => verdict.state !== 'excluded');
  const problem = wanted.find((each) => each.problem !== null)?.problem;
  const usable = wanted.filter((each) => each.problem === null).length;
  // No waiting helps then.
  if (problem && usable < count) return problem;
  const reasons = reasonsOf(candidates);
  const free = candidates.filter(({ verdict }) => verdict.state === 'free').length;
  const have = free === 0 ? 'none is free' : `only ${free} ${free === 1 ? 'is' : 'are'} free`;
  const what = `${count} ${isConnected === true ? 'connected ' : ''}${count === 1 ? 'GPU' : 'GPUs'} asked for`;
  const message = outrun
    ? 'lost the race for a free GPU several times in a row'
    : `${what}, ${free >= count ? `the ${free} that are free are not connected` : have}`;
  if (bound !== undefined) return boundElsewhere(bound, message, reasons);
  const remedy = outrun ? '; try again, or wait longer' : '';
  return new GPUOwnerError('ERR_GPU_UNAVAILABLE', message + remedy + listReasons(reasons), { gpus: reasons });
}

export function listReasons(reasons: readonly Omit<GPUReason, 'uuid'>[]): string {
  if (reasons.length === 0) return '.';
  return `:\n${reasons.map((each) => `  GPU ${label(each)}: ${each.reason}`).join('\n')}`;
}

/** A chain of parents that is longer is cut off: each link is a file to read. */
const MAX_ANCESTORS = 32;

/**
 * Completes the reason of a lease that the asking program holds itself, through a parent, or by another `gpu-owner hold`:
 * a wait for it could last for ever. Empty for leases of others.
 */
function ownLeaseNote(lease: LeaseInfo | null): string {
  if (lease === null || lease.pid === null || lease.host !== hostName()) return '';
  if (lease.pid === process.pid) return '; that is this process: release it first';
  const [, ...above] = lineage(process.pid, MAX_ANCESTORS + 1);
  if (above.includes(lease.pid)) return '; that process started this one, and must release it first';
  const parent = readProcessStat(lease.pid)?.parent ?? 0;
  return above.includes(parent) && isHold(lease.pid)
    ? `; held for pid ${parent}, which also makes this claim: release it first`
    : '';
}

/** `gpu-owner hold`, as programs in other languages claim. */
function isHold(pid: number): boolean {
  return / hold( |$)/.test(processCommand(pid) ?? '');
}
