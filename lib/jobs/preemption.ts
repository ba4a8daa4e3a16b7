// Preemptible commands give their GPUs back to requests that need them. See docs/decisions/052-preemption.md.

import {
  type Claim,
  isPreempted,
  openPreemptionNotice,
  PREEMPTION_NOTICE,
  WAIT_QUEUE_FILE,
} from '../claims/index.ts';
import { loadConfiguration } from '../config/index.ts';
import { formatDuration, parseDuration, pathIn, usageError } from '../platform/index.ts';
import { signalNumber } from './time-limit.ts';

/** How a preemptible command gives way. */
export interface Preemption {
  /** For the command; null: SIGTERM, for all its processes. */
  signal: number | null;
  /** Between the signal and SIGKILL. */
  graceMs: number;
}

const DEFAULT_GRACE_MS = 30_000;

/** @param signal its name @param grace '30s' @throws ERR_INVALID_ARGUMENT, ERR_CONFIGURATION */
export function parsePreemption(signal: unknown, grace: unknown): Preemption {
  const most = loadConfiguration().preemptionGrace ?? Number.POSITIVE_INFINITY;
  const graceMs =
    grace === undefined ? Math.min(DEFAULT_GRACE_MS, most) : Math.ceil(parseDuration(grace, '--grace'));
  if (graceMs > most)
    throw usageError(
      `--grace: ${formatDuration(graceMs)} is more than the ${formatDuration(most)} that a preemptible job has to end here (preemptionGrace in the configuration).`,
    );
  return { signal: signal === undefined ? null : signalNumber(String(signal)), graceMs };
}

/** How often it is looked whether others need the GPUs, in ms. */
const POLL_MS = 1_000;

/** Calls back once, when a request needs the GPUs of a preemptible claim. @returns ends the watch */
export function watchPreemption(claim: Claim, callback: () => void): () => void {
  const look = () => {
    if (!isPreempted(claim)) return;
    end();
    callback();
  };
  const timer = setInterval(look, POLL_MS).unref();
  const end = () => clearInterval(timer);
  return end;
}

/** Options of a keeper whose lease gives way. */
export function giveWayOptions({ directory }: Claim, { signal, graceMs }: Preemption): string[] {
  openPreemptionNotice(directory);
  return [
    ...['--give-way', `${graceMs}:${signal ?? 0}`],
    ...['--queue-path', pathIn(directory.path, WAIT_QUEUE_FILE)],
    ...['--notice-path', pathIn(directory.path, PREEMPTION_NOTICE)],
  ];
}
