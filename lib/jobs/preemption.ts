// Preemptible commands give their GPUs back to requests that need them. See docs/decisions/052-preemption.md.
import { type FSWatcher, readFileSync, watch } from 'node:fs';
import {
  type Claim,
  isPreempted,
  openPreemptionNotice,
  PREEMPTION_NOTICE,
  WAIT_QUEUE_FILE,
} from '../claims/index.ts';
import { loadConfiguration } from '../config/index.ts';
import { formatDuration, invalidArgument, parseDuration, pathIn } from '../platform/index.ts';
import { changesTo, INHERITED, withoutDescriptors } from './inherited.ts';
import { ERRORS, SUBMITTER } from './submitter.ts';
import { signalNumber } from './time-limit.ts';
import { type Restart, WAITING } from './waiter.ts';

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
    throw invalidArgument(
      `--grace: ${formatDuration(graceMs)} is more than the ${formatDuration(most)} that a preemptible job has to end here (preemptionGrace in the configuration).`,
    );
  return { signal: signal === undefined ? null : signalNumber(String(signal)), graceMs };
}

/** How often it is looked whether others need the GPUs, where no change of a file can be watched. In ms. */
const POLL_MS = 1_000;

/** Calls back once, when a request needs the GPUs of a preemptible claim. @returns ends the watch */
export function watchPreemption(claim: Claim, callback: () => void): () => void {
  openPreemptionNotice(claim.directory);
  let watcher: FSWatcher | undefined;
  let timer: NodeJS.Timeout | undefined;
  const end = () => {
    watcher?.close();
    clearInterval(timer);
  };
  const look = () => {
    if (!isPreempted(claim)) return;
    end();
    callback();
  };
  const poll = () => {
    timer ??= setInterval(look, POLL_MS).unref();
  };
  try {
    const path = pathIn(claim.directory.path, PREEMPTION_NOTICE);
    watcher = watch(path, { persistent: false }, look).on('error', poll);
  } catch {
    poll();
  }
  const first = setImmediate(look);
  return () => {
    clearImmediate(first);
    end();
  };
}

/** Names the variable by which a command that is started anew knows it: how often it was, and how many ms it ran. */
const REQUEUED = 'GPU_OWNER_REQUEUED';

/** How often the command of this process was preempted before, and for how long it has run in all. */
export function earlierStarts(): { times: number; ranMs: number } {
  const [, times = 0, ranMs = 0] = /^(\d{1,9}):(\d{1,15})$/.exec(process.env[REQUEUED] ?? '') ?? [];
  return { times: Number(times), ranMs: Number(ranMs) };
}

/** Whether the command of this process was preempted, and is started anew. */
export function isRestarted(): boolean {
  return earlierStarts().times > 0;
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

/** How a command is started anew after it was preempted. */
export interface Requeue {
  restart: Restart;
  /** The lock of a job in the background, which lives on; null: it is none. */
  lock: number | null;
}

/**
 * Options of a keeper that starts its command anew. To be called when the environment is the command's.
 * @param words how many of the program's words are the command's
 * @returns the options, and the program
 */
export function requeueOptions(
  { restart, lock }: Requeue,
  words: number,
  { times, ranMs }: ReturnType<typeof earlierStarts>,
): { options: string[]; program: string[]; own: number } {
  const program = [process.execPath, ...process.execArgv, ...restart.words];
  const options = [
    ...['--requeue', String(program.length + restart.own - words)],
    ...['--requeued', `${times}:${ranMs}`],
    ...(lock === null ? [] : ['--kept', String(lock)]),
    ...changesTo(environmentAtStart(lock !== null)).flatMap((change) => ['--requeue-environment', change]),
  ];
  return { options, program, own: restart.own };
}

/** The environment as it was when this process started, but for what was for this process alone. */
function environmentAtStart(isJob: boolean): NodeJS.ProcessEnv {
  const before: NodeJS.ProcessEnv = Object.create(null);
  for (const entry of readFileSync('/proc/self/environ', 'utf8').split('\0')) {
    const [name = '', ...value] = entry.split('=');
    if (name !== '') before[name] = value.join('=');
  }
  for (const name of [WAITING, REQUEUED, SUBMITTER, ...(isJob ? [ERRORS] : [])]) delete before[name];
  // Descriptors of the caller are closed by then.
  before[INHERITED] &&= withoutDescriptors(before[INHERITED]);
  return before;
}

/** Variables of a preemptible command. */
export function restartVariables(): Record<string, string | undefined> {
  return {
    GPU_OWNER_RESTART: String(earlierStarts().times),
    [REQUEUED]: undefined,
  };
}
