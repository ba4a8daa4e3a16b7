import { hostname } from 'node:os';
import type { GPUOwnerError, GPUReason } from '../errors.ts';
import { type JudgeContext, judge, type NormalizedCriteria, type Verdict } from '../gpus/criteria.ts';
import { describeProcess } from '../gpus/processes.ts';
import { mayBecomeFree } from '../gpus/selection.ts';
import type { GPU, LeaseInfo } from '../gpus/types.ts';
import { formatSince } from '../quantities.ts';
import { sanitize } from '../text.ts';
import { endedWithin, mayHaveRemains, probeLease, whyUntakable } from './lease.ts';
import type { Waiter } from './line.ts';
import type { LockDirectory } from './lock-directory.ts';
import { reservedBy, type Wish } from './turn.ts';

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
}

/** Every GPU with whether it is free, or why not. Takes nothing. */
export function judgeAll(gpus: readonly GPU[], judging: Judging): Candidate[] {
  const { directory } = judging;
  return gpus.map((gpu) => {
    const leasable = directory !== null && gpu.uuid !== '';
    const lease = leasable ? probeLease(directory, gpu.uuid) : null;
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

/** What is free but could be used by those who stand ahead in line is left to them. */
export function keepBack(
  candidates: readonly Candidate[],
  scope: string | null,
  ahead: readonly Waiter[],
): Candidate[] {
  const reserved = reservedBy(ahead, scope);
  return candidates.map((candidate) => {
    const waiter = reserved.get(candidate.gpu.uuid);
    if (waiter === undefined || candidate.verdict.state !== 'free') return candidate;
    const reason = `free, but ${describeWaiter(waiter)}`;
    return { ...candidate, verdict: { state: 'leased', reason, transient: false, keptFor: waiter.place } };
  });
}

/** What is waited for: all that might become free. */
export function wishOf(
  candidates: readonly Candidate[],
  count: number,
  scope: string | null,
): Omit<Wish, 'place'> {
  const uuids = candidates.filter(({ verdict }) => mayBecomeFree(verdict)).map(({ gpu }) => gpu.uuid);
  return { count, uuids, scope };
}

function describeWaiter({ info, count }: Waiter): string {
  const command = sanitize(info.command, 80);
  const since = formatSince(info.since);
  const who = `${info.user}${info.pid ? ` (pid ${info.pid}${command ? `: ${command}` : ''})` : ''}`;
  return `${who} stands in line for ${count === 1 ? 'a GPU' : `${count} GPUs`}${since ? ` since ${since}` : ''}`;
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
