import { type Claim, claim, giveBack } from '../claims/claim.ts';
import { looking, runSync } from '../claims/effects.ts';
import { hide, type Share, show } from '../claims/environment.ts';
import { findOverwritten } from '../claims/foreign.ts';
import { findIntruders } from '../claims/intruders.ts';
import type { Settings } from '../claims/options.ts';
import { reached } from '../claims/steps.ts';
import { claimWhenFree, type WaitOptions } from '../claims/waiting.ts';
import type { GPU } from '../gpus/types.ts';
import { PlaceholderProcess } from './placeholder-process.ts';

/** GPUs leased for a command, shown in the environment, and visibly taken by a process of their own. */
export interface JobClaim {
  gpus: readonly GPU[];
  leases: Claim['leases'];
  marks: Claim['marks'];
  visibleDevices: string;
  placeholder: PlaceholderProcess | null;
}

const MOST_INTRUSIONS = 5;

/**
 * Claims GPUs for a command that will be started from this process.
 * @param wait null: don't wait for GPUs to become free
 * @throws what `claim` throws, ERR_TIMEOUT, ERR_PLACEHOLDER; nothing is held then
 */
export async function claimForJob(settings: Settings, wait: WaitOptions | null): Promise<JobClaim> {
  const { request, configuration } = settings;
  const attempting = { request, configuredDirectory: configuration.lockDirectory };
  for (let intrusions = 0; ; intrusions++) {
    // Nothing else happens in this process, so it may as well block: that is faster.
    const first = runSync(claim(request, attempting.configuredDirectory));
    if (!first.granted && wait === null) throw first.error;
    const granted = first.granted ? first : await claimWhenFree(attempting, wait as WaitOptions, first);
    const { gpus, leases, marks, all } = granted;
    const share: Share = { gpus, all, as: settings.visibleDevices };
    let placeholder: PlaceholderProcess | null = null;
    try {
      const visibleDevices = show(share);
      reached('environment');
      placeholder = startPlaceholder(gpus, settings);
      reached('placeholder');
      granted.entry.leave(); // now others see it on the GPUs
      const intruders = findOverwritten(marks, gpus) ?? findThem(granted, settings, placeholder);
      if (intruders === null) {
        reached('claimed');
        return { gpus, leases, marks, visibleDevices, placeholder };
      }
      if (intrusions === MOST_INTRUSIONS) throw intruders;
      letGo();
    } catch (error) {
      letGo();
      throw error;
    }
    function letGo() {
      placeholder?.end();
      placeholder = null;
      hide(share);
      giveBack(granted);
    }
  }
}

/**
 * In other modes a GPU serves one process only: the placeholder would lock the command out. An MPS server would let both in;
 * but whether it would let this process in, only trying tells.
 */
export function admitsPlaceholder({ computeMode }: GPU): boolean {
  return computeMode !== 'exclusive-process' && computeMode !== 'exclusive-thread';
}

function startPlaceholder(gpus: readonly GPU[], { placeholder }: Settings): PlaceholderProcess | null {
  if (placeholder === 'none') return null;
  const shared = gpus.filter(admitsPlaceholder);
  return shared.length === 0 ? null : PlaceholderProcess.start(shared, placeholder);
}

function findThem(
  { gpus, job }: Claim,
  { request: { criteria } }: Settings,
  placeholder: PlaceholderProcess | null,
) {
  if (criteria.allowProcesses || criteria.force || job !== null) return null;
  const indices = gpus.map(({ index }) => index);
  const now = runSync(looking(indices));
  return findIntruders(
    gpus,
    now.filter(({ index }) => indices.includes(index)),
    (gpu) => (placeholder !== null && admitsPlaceholder(gpu) ? [placeholder.pid] : []),
  );
}
