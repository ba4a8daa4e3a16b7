import { fstatSync } from 'node:fs';
import { basename } from 'node:path';
import { BEFORE_EXEC } from '../bundle.ts';
import {
  type ActiveClaim,
  claimForCommands,
  PLACEHOLDER,
  type Settings,
  startTimeout,
  type WaitOptions,
} from '../claims/index.ts';
import { simulatedVariables } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { keepPrograms, native, nativeFile, nativeProgram } from '../native.ts';
import { setVariables, systemError } from '../platform/index.ts';
import { type IdleLimit, idleOptions, meterOptions, shareOptions } from './idle-limit.ts';
import { FIRST_DESCRIPTOR, INHERITED, inheritable, KEEPER, parseInherited } from './inherited.ts';
import {
  type BackgroundJob,
  commandOptions,
  descriptorsOf,
  environmentOf,
  jobOptions,
  type KeptClaim,
  keeperOptions,
  limitOptions,
  placeholderOptions,
} from './keeper-options.ts';
import { PlaceholderProcess } from './placeholder-process.ts';
import { giveWayOptions, type Preemption } from './preemption.ts';
import {
  controllerOf,
  type JobStart,
  requeueOptions,
  restartVariables,
  type Start,
  type WaitLine,
  waitHandover,
} from './start.ts';
import type { TimeLimit } from './time-limit.ts';

/** A wait that may go on without Node.js. */
interface JobWait extends WaitOptions {
  /** The line that shows it on a terminal; missing: there is none. */
  line?: (() => WaitLine | null) | undefined;
}

/** GPUs leased for a command, shown in the environment, and visibly taken by a process of their own. */
export type JobClaim = ActiveClaim<PlaceholderProcess>;

/**
 * Claims GPUs for a command that will be started from this process.
 * @param wait null: don't wait for GPUs to become free
 * @param start lets this process become a smaller one while it waits: all that it is to do is in its arguments and environment; missing: it
 *   stays as it is
 * @throws what `claim` throws, ERR_TIMEOUT, ERR_PLACEHOLDER; nothing is held then
 */
export function claimForJob(settings: Settings, wait: JobWait | null, start?: Start): Promise<JobClaim> {
  keepPrograms(KEEPER, PLACEHOLDER);
  const handover = wait === null || start === undefined ? {} : { handover: waitHandover(start, wait.line) };
  return claimForCommands(settings, wait === null ? null : { ...wait, ...handover }, {
    ownEnvironment: true,
    startPlaceholder: async ({ gpus, claim: { suspects } }) =>
      PlaceholderProcess.start(gpus, settings, startTimeout(gpus, suspects)),
  });
}

/**
 * As {@link claimForJob}, but the wait ends when standard input is closed: then the program that asked for the GPUs has ended, and its
 * request must leave the wait queue. Once GPUs are held, who holds them watches the input. A terminal, a file or /dev/null says nothing.
 * @throws ERR_ABORTED then; nothing is held
 */
export async function claimUntilInputCloses(settings: Settings, wait: WaitOptions | null): Promise<JobClaim> {
  if (wait === null) return claimForJob(settings, null);
  const controller = new AbortController();
  const { signal } = controller;
  let isWatched = false;
  // Only once there is something to wait for: a claim that succeeds at once needn't pay for Node's streams.
  const watch = () => {
    if (isWatched) return;
    isWatched = true;
    const input = fstatSync(0);
    if (!input.isFIFO() && !input.isSocket()) return;
    const abort = () => controller.abort();
    process.stdin.on('end', abort).on('error', abort).on('close', abort).resume();
  };
  const onWaiting: WaitOptions['onWaiting'] = (state) => {
    watch();
    wait.onWaiting?.(state);
  };
  try {
    return await claimForJob(settings, { ...wait, signal, onWaiting });
  } catch (error) {
    if (!signal.aborted) throw error;
    throw new GPUOwnerError(
      'ERR_ABORTED',
      'standard input was closed while waiting for GPUs; nothing is held.',
    );
  }
}

/** A command that a keeper is to run. */
export interface KeptCommand {
  /** How many of this process's last arguments are the command and its arguments. */
  words: number;
  /** null: it may run for ever. */
  limit: TimeLimit | null;
  /** null: its GPUs may do nothing for ever. */
  idle: IdleLimit | null;
  /** null: it never gives way. */
  preemption: Preemption | null;
  /** How this process was started. */
  start: Start;
  /** Whether it restarts after it was preempted. */
  isRequeued: boolean;
  /** How often it restarts after a failure, or after one exit code: `3`, `3:75`; null: never. */
  retry?: string | null;
  /** The job that it is; null: it isn't in the background. */
  job: BackgroundJob | null;
}

/**
 * Turns this process into the front of a keeper, which runs the command under the claim. Doesn't return.
 * @throws ERR_INTERNAL when the keeper can't be started
 */
export function becomeKeeper(
  { claim, placeholder, settings, usage }: JobClaim,
  { words, limit, idle, preemption, start, isRequeued, retry = null, job }: KeptCommand,
): never {
  // Claims inside the job must find what it holds.
  const inherited = parseInherited(process.env[INHERITED]);
  const command = basename(process.argv.at(-words) ?? '');
  const { lockDirectory } = settings.request;
  const own = { ...environmentOf(claim), ...(lockDirectory && { GPU_OWNER_LOCK_DIR: lockDirectory }) };
  // Inside a job, the job gives way.
  const givesWay = preemption !== null && claim.job === null;
  const giveWay = givesWay ? giveWayOptions(claim, preemption) : [];
  const restarts = givesWay || retry !== null ? restartVariables(start) : {};
  const variables = simulatedVariables({ ...process.env, ...own });
  setVariables({ ...own, ...restarts, ...variables, [INHERITED]: undefined });
  const isStartedAnew = (givesWay && isRequeued) || retry !== null;
  const requeue = isStartedAnew ? requeueOptions(start, words, retry) : null;
  const args = [
    KEEPER,
    'run',
    ...placeholderOptions(placeholder),
    ...keeperOptions(claim, inheritable),
    ...commandOptions(claim, inherited),
    ...(usage?.keeperOptions(inheritable) ?? []),
    ...meterOptions(claim, inheritable),
    ...shareOptions(claim, command, inheritable),
    ...idleOptions(claim, idle, command, job?.idleNotifier(idle) ?? []),
    ...limitOptions(limit),
    ...jobOptions(job),
    ...giveWay,
    ...(requeue?.options ?? []),
    '--',
    ...(requeue?.program ?? []),
  ];
  return become(
    args,
    requeue?.words ?? words,
    [...inherited.descriptors, ...descriptorsOf(job)],
    inherited.dropped,
  );
}

/**
 * As {@link becomeKeeper} for the controller of an array or a sweep, which claims GPUs itself. Cancelled, it gets SIGTERM alone, and ends
 * what it has started.
 */
export function becomeKeeperWithoutGPUs(job: BackgroundJob & { start: JobStart }): never {
  const inherited = parseInherited(process.env[INHERITED]);
  setVariables({ [INHERITED]: undefined });
  const { program, words } = controllerOf(job.start.job);
  const options = ['--cancel', 'command', ...jobOptions(job)];
  const args = [KEEPER, 'run', ...options, ...commandOptions({ gpus: [] }, inherited), '--', ...program];
  return become(args, words, descriptorsOf(job), inherited.dropped);
}

/**
 * Turns this process into a keeper that holds the claim until standard input is closed. Doesn't return.
 *
 * @param answer the line for standard output. The keeper writes it: its reader may send a signal at once
 * @param limit null: it may hold them for ever
 */
export function becomeHolder(
  { claim, placeholder, usage }: JobClaim,
  answer: string,
  limit: TimeLimit | null,
): never {
  const options = [
    ...placeholderOptions(placeholder),
    ...keeperOptions(claim, inheritable),
    ...(usage?.keeperOptions(inheritable) ?? []),
    ...meterOptions(claim, inheritable),
    ...limitOptions(limit),
  ];
  return become([KEEPER, 'hold', ...options, '--answer', answer], 0, [], 0);
}

function become(args: string[], words: number, descriptors: readonly number[], dropped: number): never {
  const { driverHasCallOut, processExec, processExecInChild } = native();
  process.emit(BEFORE_EXEC as 'exit', 0);
  // A thread that is stuck in the kernel lets no process become another program.
  const error = (driverHasCallOut() ? processExecInChild : processExec)(
    nativeProgram(KEEPER),
    args,
    words,
    descriptors,
    dropped,
  );
  throw new GPUOwnerError(
    'ERR_INTERNAL',
    `the keeper ${nativeFile(KEEPER)} can't be started: ${systemError(-error)}. Is the package complete?`,
  );
}

/** A command to be run under the leases of a worker, which keeps them. */
export interface SupervisedTask {
  /** The program, looked for in the environment's PATH, and its arguments. */
  words: readonly string[];
  /** All of its environment; on a simulated machine its libraries are added. */
  env: NodeJS.ProcessEnv;
  /** Where it starts. */
  directory: string;
  /** A descriptor of a file: its standard output and error. Standard input is /dev/null. */
  output: number;
  /** The claim that it runs under. */
  claim: KeptClaim;
  /** Descriptors that are to stay open as long as anything of the command lives. */
  descriptors: readonly number[];
  /** The command in the leases' records, for people. */
  title: string;
  /** Between SIGTERM and SIGKILL when the worker dies, in ms. */
  grace: number;
  /** When it ends, in ms since boot, unless that is moved; and between SIGTERM and SIGKILL then, at most, in ms. null: never. */
  deadline: { at: number; grace: number } | null;
}

/** The longest command line that a record shows. */
export const MAX_TITLE_LENGTH = 300; // characters

/** Everything that the keeper of a task is given: descriptors, of which the first gets the number after `control`, and arguments. */
export function taskArguments({
  words,
  directory,
  output,
  claim,
  descriptors,
  title,
  grace,
  deadline,
}: SupervisedTask) {
  const optionsWith = (place: (descriptor: number) => number) =>
    keeperOptions(claim, place, descriptors, { command: title.slice(0, MAX_TITLE_LENGTH) });
  const passed: number[] = [];
  optionsWith((descriptor) => passed.push(descriptor));
  // The keeper's numbers follow these.
  const control = Math.max(FIRST_DESCRIPTOR, output + 1, ...passed.map((each) => each + 1));
  let last = control;
  const args = [
    KEEPER,
    'task',
    '--control',
    String(control),
    ...optionsWith(() => ++last),
    ...commandOptions(claim, parseInherited(process.env[INHERITED])),
    '--grace',
    String(grace),
    ...(deadline === null
      ? []
      : ['--deadline', `${Math.floor(deadline.at)}:${Math.min(grace, deadline.grace)}`]),
    '--directory',
    directory,
    '--',
    ...words,
  ];
  return { control, descriptors: passed, args };
}
