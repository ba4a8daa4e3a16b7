import { hostname } from 'node:os';
import type { Holders } from '../conventions/index.ts';
import type { GPUOwnerError, GPUReason } from '../errors.ts';
import { type JudgeContext, judge, type NormalizedCriteria, type Verdict } from '../gpus/criteria.ts';
import { describeProcess } from '../gpus/processes.ts';
import type { GPU, LeaseInfo } from '../gpus/types.ts';
import { endedWithin, mayHaveRemains, probeLease, whyUntakable } from './lease.ts';
import type { LockDirectory } from './lock-directory.ts';

/** How long a placeholder may take to end, in ms. */
const PLACEHOLDER_END = 500;

export interface Candidate {
  gpu: GPU;
  verdict: Verdict;
  lease: LeaseInfo | null;
  /** Its lease file can't be used: that spoils this GPU, not the others. */
  problem: GPUOwnerError | null;
}

export interface Judging {
  criteria: NormalizedCriteria;
  /** UUIDs that this process may use at all; null: all. */
  visible: ReadonlySet<string> | null;
  /** null: no directory exists, so nothing is leased. */
  directory: LockDirectory | null;
  /** Who holds GPUs by the locks of other programs; default: nobody. */
  foreign?: Holders;
}

/** Every GPU with whether it is free, or why not. Takes nothing. */
export function judgeAll(gpus: readonly GPU[], judging: Judging): Candidate[] {
  const { directory } = judging;
  return gpus.map((gpu) => {
    const leasable = directory !== null && gpu.uuid !== '';
    const lease =
      (leasable ? probeLease(directory, gpu.uuid) : null) ?? judging.foreign?.get(gpu.uuid) ?? null;
    const problem = leasable && lease === null ? whyUntakable(directory, gpu.uuid) : null;
    return spoil({ gpu, verdict: judgeOne(gpu, judging, lease), lease, problem });
  });
}

/** What its problem makes of a GPU that could be had otherwise. */
export function spoil(candidate: Candidate): Candidate {
  const { problem, verdict } = candidate;
  if (problem === null || verdict.state === 'excluded' || verdict.state === 'unavailable') return candidate;
  return { ...candidate, verdict: { state: 'unavailable', reason: problem.message, transient: false } };
}

/** @param lease who holds it; null also for a GPU whose lease is ours */
export function judgeOne(
  gpu: GPU,
  { criteria, visible, directory }: Judging,
  lease: LeaseInfo | null,
): Verdict {
  const context: JudgeContext = {
    lease,
    visible,
    criteria,
    describe: describeProcess,
    ownPids: new Set([process.pid]),
    hostname: hostname(),
  };
  const verdict = judge(gpu, context);
  if (directory === null || verdict.state !== 'busy') return verdict;
  // Remains of a holder that has just died, or of a stranger? Only the former are worth waiting for. What still runs right
  // after the end of a tenure is most probably its placeholder.
  const transient = verdict.transient
    ? mayHaveRemains(directory, gpu.uuid)
    : endedWithin(directory, gpu.uuid, PLACEHOLDER_END);
  return { ...verdict, transient };
}

export function reasonsOf(candidates: readonly Candidate[]): GPUReason[] {
  return candidates.map(({ gpu, verdict }) => ({
    index: gpu.index,
    uuid: gpu.uuid,
    reason: verdict.reason ?? 'free',
  }));
}
