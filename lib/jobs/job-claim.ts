import { claimForCommands, type Settings, type ShownClaim, type WaitOptions } from '../claims/index.ts';
import { PlaceholderProcess } from './placeholder-process.ts';

/** GPUs leased for a command, shown in the environment, and visibly taken by a process of their own. */
export type JobClaim = ShownClaim<PlaceholderProcess>;

/**
 * Claims GPUs for a command that will be started from this process.
 * @param wait null: don't wait for GPUs to become free
 * @throws what `claim` throws, ERR_TIMEOUT, ERR_PLACEHOLDER; nothing is held then
 */
export function claimForJob(settings: Settings, wait: WaitOptions | null): Promise<JobClaim> {
  return claimForCommands(settings, wait, true, async ({ gpus }) =>
    PlaceholderProcess.start(gpus, settings.placeholder),
  );
}
