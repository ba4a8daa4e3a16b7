import { closeSync, fstatSync } from 'node:fs';
import { basename } from 'node:path';
import { BEFORE_EXEC } from '../bundle.ts';
import {
  type ActiveClaim,
  type Claim,
  claimForCommands,
  type Settings,
  type WaitOptions,
} from '../claims/index.ts';
import { simulatedVariables } from '../config/index.ts';
import type { Mark } from '../conventions/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { type GPU, isInstance, label } from '../gpus/index.ts';
import { keepPrograms, native, nativeFile, nativeProgram } from '../native.ts';
import { ownProgram, setVariables, systemError, TIMEOUTS } from '../platform/index.ts';
import { type IdleLimit, idleOptions, meterOptions, shareOptions } from './idle.ts';
import { FIRST_DESCRIPTOR, INHERITED, inheritable, KEEPER, parseInherited } from './inherited.ts';
import { PLACEHOLDER, PlaceholderProcess } from './placeholder-process.ts';
import {
  earlierStarts,
  giveWayOptions,
  type Preemption,
  type Requeue,
  requeueOptions,
  restartVariables,
} from './preemption.ts';
import { endHelpers } from './reaper.ts';
import { pythonPath, warnWithoutStandIns } from './stand-ins.ts';
import type { TimeLimit } from './time-limit.ts';
import { type ContinuedWait, type Restart, type WaitLine, waitHandover } from './waiter.ts';

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
 * @param continued lets this process become a smaller one while it waits: all that it is to do is in its arguments and environment;
 *   missing: it stays as it is
 * @param keep descriptors that it shall have afterwards, too, numbered 200 or higher
 * @param restart missing: the program is started again with the arguments of this process
 * @throws what `claim` throws, ERR_TIMEOUT, ERR_PLACEHOLDER; nothing is held then
 */
export function claimForJob(
  settings: Settings,
  wait: JobWait | null,
  continued?: ContinuedWait,
  keep: readonly number[] = [],
  restart?: Restart,
): Promise<JobClaim> {
  keepPrograms(KEEPER, PLACEHOLDER);
  const patient =
    wait === null || continued === undefined ? wait : withHandover(wait, continued, keep, restart);
  return claimForCommands(settings, patient, {
    ownEnvironment: true,
    startPlaceholder: async ({ gpus }) => PlaceholderProcess.start(gpus, settings, lookout(settings, gpus)),
  });
}

/** The words of a program that tells a job of GPUs on which it computes without a claim. */
function lookout({ request }: Settings, gpus: readonly GPU[]): string[] {
  if (!request.isJob || gpus.some(isInstance)) return [];
  const uuids = gpus.map(({ uuid }) => uuid);
  return ownProgram('tell-job', request.lockDirectory ?? '', ...uuids);
}

function withHandover(
  wait: JobWait,
  continued: ContinuedWait,
  keep: readonly number[],
  restart: Restart | undefined,
): WaitOptions {
  return { ...wait, handover: waitHandover(continued, keep, wait.line, restart) };
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

/** A job in the background, as its keeper is told of it. */
export interface BackgroundJob {
  /** Descriptors of the job's lock and of its file, which programs inherit from this process. */
  lock: number;
  file: number;
  /** How much of its output is kept, in bytes; null: all. */
  logLimit: number | null;
  /** A program that is started when the job's user is warned that its GPUs do nothing; none for []. */
  idleNotifier(limit: IdleLimit | null): readonly string[];
  /** A program that is started when the job has ended, and its arguments; none for []. */
  afterwards: readonly string[];
}

/** The parts of a claim that its keeper is given. */
type KeptClaim = Pick<Claim, 'gpus' | 'leases' | 'marks' | 'jobFile'>;

/**
 * Turns this process into the front of a keeper, which runs the command under the claim. Doesn't return.
 *
 * @param words how many of this process's last arguments are the command and its arguments
 * @param limit null: the command may run for ever
 * @param preemption null: the command never gives way @param again how it is started anew then; null: it isn't
 * @throws ERR_INTERNAL when the keeper can't be started
 */
export function becomeKeeper(
  { claim, placeholder, settings, usage }: JobClaim,
  words: number,
  limit: TimeLimit | null,
  job: BackgroundJob | null = null,
  preemption: Preemption | null = null,
  again: Requeue | null = null,
  idle: IdleLimit | null = null,
): never {
  // Claims inside the job must find what it holds.
  const inherited = parseInherited(process.env[INHERITED]);
  warnWithoutStandIns(process.argv.slice(-words));
  const command = basename(process.argv.at(-words) ?? '');
  const { lockDirectory } = settings.request;
  const own = { ...environmentOf(claim), ...(lockDirectory && { GPU_OWNER_LOCK_DIR: lockDirectory }) };
  // Inside a job, the job gives way.
  const givesWay = preemption !== null && claim.job === null;
  const earlier = earlierStarts();
  const giveWay = givesWay ? giveWayOptions(claim, preemption) : [];
  const restarts = givesWay ? restartVariables() : {};
  const variables = simulatedVariables({ ...process.env, ...own });
  setVariables({ ...own, ...restarts, ...variables, [INHERITED]: undefined });
  const requeue = givesWay && again !== null ? requeueOptions(again, words, earlier) : null;
  const args = [
    KEEPER,
    'run',
    ...placeholderOptions(placeholder),
    ...keeperOptions(claim, inheritable, [], untilOf(limit)),
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
    requeue?.own ?? words,
    [...inherited.descriptors, ...descriptorsOf(job)],
    inherited.dropped,
  );
}

/**
 * As {@link becomeKeeper} for a program of ours that claims GPUs itself. Cancelled, it gets SIGTERM alone, and ends what it has started.
 * @param words how many of this process's last arguments are appended to the program's
 */
export function becomeKeeperWithoutGPUs(
  job: BackgroundJob,
  program: readonly string[],
  words: number,
): never {
  const inherited = parseInherited(process.env[INHERITED]);
  setVariables({ [INHERITED]: undefined });
  const options = ['--cancel', 'command', ...jobOptions(job)];
  const args = [KEEPER, 'run', ...options, ...commandOptions({ gpus: [] }, inherited), '--', ...program];
  return become(args, words, descriptorsOf(job), inherited.dropped);
}

function descriptorsOf(job: BackgroundJob | null): number[] {
  return job === null ? [] : [job.lock, job.file];
}

function jobOptions(job: BackgroundJob | null): string[] {
  if (job === null) return [];
  const log = job.logLimit === null ? [] : ['--log', `${inheritable(1)}:${job.logLimit}`];
  return [
    '--inherited',
    String(job.lock),
    '--job',
    String(job.file),
    ...log,
    ...job.afterwards.flatMap((word) => ['--then', word]),
  ];
}

/** So that a claim inside the job is met from what the job holds. One that can't be proved leaves what is around it. */
export function environmentOf({ gpus, leases, jobFile }: KeptClaim): Record<string, string> {
  const inside = jobFile === null ? {} : { GPU_OWNER_JOB: jobFile.token, ...pythonPath() };
  return { ...inside, ...memoryVariables(gpus, leases) };
}

/** Tells the command, and frameworks that document a variable for it, how much memory is its own; of several GPUs the least. */
function memoryVariables(gpus: KeptClaim['gpus'], leases: KeptClaim['leases']): Record<string, string> {
  const bytes = Math.min(...leases.map(({ shareBytes }) => shareBytes ?? Number.POSITIVE_INFINITY));
  if (!Number.isFinite(bytes)) return {};
  const total = Math.max(...gpus.map(({ memory }) => memory.totalBytes ?? 0));
  const { XLA_PYTHON_CLIENT_MEM_FRACTION: xla, TF_FORCE_GPU_ALLOW_GROWTH: tensorflow } = process.env;
  // The value of a job around this one is not the user's own.
  const isOurs = process.env.GPU_OWNER_MEMORY !== undefined;
  const fraction = (Math.floor((bytes / total) * 1_000) / 1_000).toString();
  return {
    GPU_OWNER_MEMORY: String(bytes),
    ...(total > 0 && (xla === undefined || isOurs) ? { XLA_PYTHON_CLIENT_MEM_FRACTION: fraction } : {}),
    ...(tensorflow === undefined ? { TF_FORCE_GPU_ALLOW_GROWTH: 'true' } : {}),
  };
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
    ...keeperOptions(claim, inheritable, [], untilOf(limit)),
    ...(usage?.keeperOptions(inheritable) ?? []),
    ...meterOptions(claim, inheritable),
    ...limitOptions(limit),
  ];
  return become([KEEPER, 'hold', ...options, '--answer', answer], 0, [], 0);
}

function untilOf(limit: TimeLimit | null): { until?: number } {
  return limit === null ? {} : { until: Date.now() + limit.ms };
}

function limitOptions(limit: TimeLimit | null): string[] {
  if (limit === null) return [];
  const { ms, text, notice } = limit;
  return [
    '--time-limit',
    `${ms}:${text}`,
    '--grace',
    String(TIMEOUTS.grace),
    ...(notice === null ? [] : ['--notice', `${notice.signal}:${notice.ms}`]),
  ];
}

function placeholderOptions(placeholder: PlaceholderProcess | null): string[] {
  endHelpers(placeholder?.pid); // helpers of earlier attempts
  if (placeholder === null) return [];
  const input = inheritable(placeholder.input);
  closeSync(placeholder.input); // this process may stay, and shall not keep it going
  return ['--placeholder', String(input), '--placeholder-pid', String(placeholder.pid)];
}

/**
 * Options for what a keeper holds, and removes at the end.
 * @param place gives a descriptor to it, and tells its number there @param also descriptors that the command is to have open
 * @param changes to the leases' records
 */
function keeperOptions(
  { leases, marks, jobFile }: KeptClaim,
  place: (descriptor: number) => number,
  also: readonly number[] = [],
  changes: { command?: string; until?: number } = {},
): string[] {
  const list = (option: string, descriptors: readonly number[]) =>
    descriptors.length === 0 ? [] : [option, descriptors.map(place).join(',')];
  const { pid: _, ...record } = leases[0]?.record ?? {};
  return [
    ...list(
      '--leases',
      leases.map(({ descriptor }) => descriptor),
    ),
    ...list(
      '--shared',
      leases.flatMap(({ enclosingDescriptors }) => enclosingDescriptors),
    ),
    ...leases.flatMap(({ paths }) => ['--lease-file', paths.own]),
    ...leases.flatMap(({ paths: { enclosing } }) => enclosing.flatMap((path) => ['--lease-file', path])),
    '--record',
    JSON.stringify({ ...record, ...changes }),
    // The command has the proof of the job for as long as it has the lease.
    ...list('--inherited', jobFile === null ? also : [...also, jobFile.descriptor]),
    ...markOptions(jobFile === null ? marks : [...marks, jobFile], place),
  ];
}

/** Options for the marks that the keeper holds, and removes, for users of other conventions. */
function markOptions(marks: readonly Mark[], place: (descriptor: number) => number): string[] {
  const directories = new Map<Mark['directory'], number>();
  return marks.flatMap(({ kind, directory, descriptor, token, name, isShared = false }) => {
    if (kind === 'lock') return ['--held', String(place(descriptor))];
    const within = directories.get(directory) ?? place(directory.descriptor);
    directories.set(directory, within);
    const option = kind === 'pid' ? 'pid-marker' : 'marker';
    return [`--${isShared ? 'shared-' : ''}${option}`, `${place(descriptor)}:${token}:${within}:${name}`];
  });
}

/** Options for the command of a keeper: what it is called in messages, and what Node.js has changed of its inheritance. */
function commandOptions(
  { gpus }: Pick<KeptClaim, 'gpus'>,
  { sigign, nofile }: ReturnType<typeof parseInherited>,
): string[] {
  return [
    '--gpus',
    gpus.length === 0 ? '' : `GPU ${gpus.map(label).join(', ')}`,
    ...(sigign ? ['--ignore-signals', sigign] : []),
    ...(nofile ? ['--nofile', nofile] : []),
  ];
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
  const given: number[] = [];
  optionsWith((descriptor) => given.push(descriptor));
  // The keeper's numbers are behind all of these.
  const control = Math.max(FIRST_DESCRIPTOR, output + 1, ...given.map((each) => each + 1));
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
  return { control, descriptors: given, args };
}
