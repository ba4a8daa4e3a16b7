import {
  type Claim,
  claim,
  claimAtOnce,
  claimWhenFree,
  findConflictingProcesses,
  findOverwrittenMarks,
  reached,
  releaseClaim,
  removeOldJobFiles,
  runSync,
  type Settings,
  takeSnapshot,
  type WaitOptions,
} from '../claims/index.ts';
import { applyEnvironment, type GPU, restoreEnvironment, type ShownGPUs } from '../gpus/index.ts';
import { PlaceholderProcess } from './placeholder-process.ts';

/** GPUs leased for a command, shown in the environment, and visibly taken by a process of their own. */
export interface JobClaim {
  gpus: readonly GPU[];
  leases: Claim['leases'];
  marks: Claim['marks'];
  jobFile: Claim['jobFile'];
  visibleDevices: string;
  placeholder: PlaceholderProcess | null;
}

const MAX_CONFLICTS = 5;

/**
 * Claims GPUs for a command that will be started from this process.
 * @param wait null: don't wait for GPUs to become free
 * @throws what `claim` throws, ERR_TIMEOUT, ERR_PLACEHOLDER; nothing is held then
 */
export async function claimForJob(settings: Settings, wait: WaitOptions | null): Promise<JobClaim> {
  const { request, configuration } = settings;
  const attempting = { request, configuredDirectory: configuration.lockDirectory };
  for (let intrusions = 0; ; intrusions++) {
    const ready = new PreparedPlaceholder(settings);
    const granted = await decide(ready);
    const { gpus, leases, marks, jobFile, all } = granted;
    const share: ShownGPUs = { gpus, all, as: settings.visibleDevices };
    let placeholder: PlaceholderProcess | null = null;
    try {
      const visibleDevices = applyEnvironment(share);
      reached('environment');
      placeholder = ready.take(gpus);
      reached('placeholder');
      granted.entry.leave(); // now others see it on the GPUs
      const overwritten = runSync(findOverwrittenMarks(marks, gpus));
      const intruders = overwritten ?? findThem(granted, settings, placeholder);
      if (intruders === null) {
        reached('claimed');
        if (jobFile !== null) removeOldJobFiles(granted.directory);
        return { gpus, leases, marks, jobFile, visibleDevices, placeholder };
      }
      if (intrusions === MAX_CONFLICTS) throw intruders;
      letGo();
    } catch (error) {
      letGo();
      throw error;
    }
    function letGo() {
      ready.end();
      placeholder?.end();
      placeholder = null;
      restoreEnvironment(share);
      releaseClaim(granted);
    }
  }

  async function decide(ready: PreparedPlaceholder): Promise<Claim> {
    try {
      // Nothing else happens in this process, so it may as well block: that is faster.
      const attempt = wait === null ? claimAtOnce : claim;
      const first = runSync(attempt(request, attempting.configuredDirectory));
      if (first.granted) return first;
      if (wait === null) throw first.error;
      ready.end(); // while this waits, nothing else shall
      return await claimWhenFree(attempting, wait, first);
    } catch (error) {
      ready.end();
      throw error;
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

/** A placeholder that starts while the claim is decided: on another processor, that takes no time. */
class PreparedPlaceholder {
  readonly #until: Settings['placeholder'];
  #process: PlaceholderProcess | null;

  /** @throws ERR_PLACEHOLDER */
  constructor({ placeholder }: Settings) {
    this.#until = placeholder;
    this.#process = placeholder === 'none' ? null : PlaceholderProcess.prepare(placeholder);
  }

  /** @returns null: these GPUs have none @throws ERR_PLACEHOLDER */
  take(gpus: readonly GPU[]): PlaceholderProcess | null {
    const shared = gpus.filter(admitsPlaceholder);
    if (this.#until === 'none' || shared.length === 0) {
      this.end();
      return null;
    }
    const placeholder = this.#process ?? PlaceholderProcess.prepare(this.#until);
    this.#process = null;
    placeholder.take(shared);
    return placeholder;
  }

  end(): void {
    this.#process?.end();
    this.#process = null;
  }
}

function findThem(
  { gpus, job }: Claim,
  { request: { criteria } }: Settings,
  placeholder: PlaceholderProcess | null,
) {
  if (criteria.allowProcesses || criteria.force || job !== null) return null;
  const indices = gpus.map(({ index }) => index);
  const now = runSync(takeSnapshot(indices));
  return findConflictingProcesses(
    gpus,
    now.filter(({ index }) => indices.includes(index)),
    (gpu) => (placeholder !== null && admitsPlaceholder(gpu) ? [placeholder.pid] : []),
  );
}
