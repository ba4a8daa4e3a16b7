// How jobs in the background are made. One is an ordinary `run` in a session of its own, which waits in the queue like any other.
import { closeSync, constants, openSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { checkPossible, LockDirectory, type Settings } from '../claims/index.ts';
import { errorCode, errorMessage, GPUOwnerError } from '../errors.ts';
import { native, nativeFile } from '../native.ts';
import {
  errorReason,
  invalidArgument,
  ownProgram,
  sanitize,
  shellWords,
  showValue,
  systemError,
} from '../platform/index.ts';
import type { RequestClass } from '../policy/index.ts';
import { checkCommand, warnOfOwnDevices } from './command-check.ts';
import { FIRST_DESCRIPTOR, KEEPER } from './inherited.ts';
import { type Announce, JobProcess } from './job-process.ts';
import type { JobRequest } from './job-record.ts';
import {
  checkJobOptions,
  currentDirectory,
  dependencies,
  type JobOptions,
  outputPath,
  ownArguments,
  ownEnvironment,
  refuseInsideJob,
  refuseTooLarge,
} from './job-request.ts';
import { isLiving, stateOf, unknownJob } from './job-state.ts';
import { ARGUMENTS, ENVIRONMENT, isOfPart, JobStore } from './job-store.ts';
import { MAX_TITLE_LENGTH } from './keeper.ts';
import { checkNotification } from './notification.ts';
import { ERRORS, type Submitter } from './submitter.ts';
import type { TimeLimit } from './time-limit.ts';

/** A program that is to run in the background. */
interface Submission {
  /** The words of this program that the job's process begins with; the user's arguments follow. */
  start: readonly string[];
  /** For people. */
  command: string;
  /** How many GPUs. */
  count: number;
  /** Default: normal. */
  class?: RequestClass;
  /** Whether it waits for them. */
  waits: boolean;
  limit: TimeLimit | null;
  /** The parts of an array. Absent: it is none. */
  array?: string;
  /** As in the claim's settings. */
  lockDirectory: string | undefined;
  configuredDirectory: string | undefined;
}

/**
 * Makes a command a job in the background, of which this process is the first.
 * @throws ERR_INVALID_ARGUMENT for what can never run, ERR_JOBS, ERR_LOCK_DIRECTORY, ERR_NO_DRIVER; nothing is left then
 */
export async function submitCommand(
  { request }: Settings,
  command: readonly string[],
  options: JobOptions,
  { limit, waits }: Pick<Submission, 'limit' | 'waits'>,
  submitter: Submitter,
  announce: Announce,
): Promise<JobProcess> {
  checkCommand(command);
  warnOfOwnDevices(command);
  const { count, class: own = 'normal', lockDirectory, configuredDirectory } = request;
  const submission: Submission = {
    start: ['submit'],
    command: sanitize(shellWords(command), MAX_TITLE_LENGTH),
    count,
    class: own,
    waits,
    limit,
    lockDirectory,
    configuredDirectory,
  };
  return submitJob(submission, options, () => checkPossible(request), submitter, announce);
}

/** @param check refuses what can never run @throws as {@link submitCommand} */
export async function submitJob(
  submission: Submission,
  options: JobOptions,
  check: () => Promise<Pick<Awaited<ReturnType<typeof checkPossible>>, 'uuids'>>,
  submitter: Submitter,
  announce: Announce,
): Promise<JobProcess> {
  const { start: words, command, count, waits, limit, lockDirectory, configuredDirectory } = submission;
  checkJobOptions(options);
  if (process.env.GPU_OWNER_JOB) refuseInsideJob();
  const store = JobStore.open();
  const after = dependencies(store, options);
  if (options.notify) checkNotification();
  const place = currentDirectory();
  const { uuids } = await check();
  const outputPattern = options.output === undefined ? null : outputPath(options.output, place.directory);
  if (submission.array === undefined && outputPattern !== null && isOfPart(outputPattern))
    throw invalidArgument(
      '--output: %a is the number of a part, so it needs --array; write %%a for these two letters',
    );
  const files = {
    arguments: ownArguments(words.length),
    environment: ownEnvironment(),
  };
  refuseTooLarge(files);
  const locks = LockDirectory.open(lockDirectory, { lockDirectory: configuredDirectory });
  const made = store.create(
    {
      start: words,
      name: options.name ?? null,
      note: options.note ?? null,
      command,
      count,
      wanted: waits ? uuids : null,
      class: submission.class ?? 'normal',
      ...place,
      umask: process.umask(),
      outputPattern,
      submitted: Date.now(),
      after,
      ...(options.elsewhere.length === 0 ? {} : { elsewhere: options.elsewhere }),
      ...(options.move === undefined ? {} : { move: options.move }),
      limitMs: limit?.ms ?? null,
      notify: options.notify,
      resubmits: null,
      ...(submission.array === undefined ? {} : { array: submission.array }),
    },
    files,
    locks,
  );
  return JobProcess.first(store, made, submitter, announce);
}

/**
 * Starts an ended job once more, under a new number, which its first process prints.
 * @param renumbered jobs that were, and their new numbers
 * @param array the parts of an array that are meant; null: all
 * @returns the number, and the exit code of that process if it could not start the job: it has said why, and nothing is left then
 * @throws as {@link submitCommand}
 */
export async function resubmitJob(
  store: JobStore,
  id: number,
  renumbered: ReadonlyMap<number, number>,
  array: string | null = null,
): Promise<{ id: number; exitCode: number }> {
  const { request, files } = askedOf(store, id);
  const {
    id: _,
    lock: { path: lockPath },
    move: __,
    ...asked
  } = request;
  const place = openDirectory(id, asked);
  const locks = LockDirectory.open(dirname(lockPath), {});
  const after = asked.after.flatMap(({ id: before, isOk }) => {
    const other = renumbered.get(before);
    if (other !== undefined) return [{ id: other, isOk }];
    // A job that had ended well, or is forgotten, needn't be waited for again.
    return stateOf(store, before) === null ? [] : [{ id: before, isOk }];
  });
  const made = store.create(
    { ...asked, after, submitted: Date.now(), resubmits: id, ...(array === null ? {} : { array }) },
    files,
    locks,
  );
  const umask = process.umask(asked.umask);
  try {
    process.chdir(`/proc/self/fd/${place}`);
    const exitCode = startAgain(made, files);
    if (exitCode !== 0) store.remove(made.request.id);
    return { id: made.request.id, exitCode };
  } catch (error) {
    store.remove(made.request.id);
    throw error;
  } finally {
    process.umask(umask);
    for (const descriptor of [place, made.lock, made.file]) closeSync(descriptor);
  }
}

/** A job that has ended, as it was asked for: its request, arguments and environment. @throws ERR_INVALID_ARGUMENT, ERR_JOBS */
export function askedOf(store: JobStore, id: number) {
  const found = stateOf(store, id);
  if (found === null) throw unknownJob(String(id));
  if (isLiving(found.state))
    throw invalidArgument(`job ${id} has not ended: ${found.state}; cancel it first`);
  const read = (name: string) => {
    try {
      return readFileSync(join(store.directoryOf(id), name));
    } catch (error) {
      throw new GPUOwnerError('ERR_JOBS', `job ${id} can't be read: ${errorMessage(error)}`, {
        cause: error,
      });
    }
  };
  const files = { arguments: read(ARGUMENTS), environment: read(ENVIRONMENT) };
  return { request: found.job.request, files };
}

/** The directory in which a job is started once more. @throws ERR_INVALID_ARGUMENT */
function openDirectory(
  id: number,
  { directory, directoryBytes }: Pick<JobRequest, 'directory' | 'directoryBytes'>,
): number {
  try {
    const path = directoryBytes == null ? directory : Buffer.from(directoryBytes, 'hex');
    return openSync(path, constants.O_RDONLY | constants.O_DIRECTORY);
  } catch (error) {
    const code = errorCode(error);
    const why = code === 'ENOENT' ? 'is no longer there' : `can't be entered: ${errorReason(error)}`;
    throw invalidArgument(`job ${id}: its directory ${showValue(directory)} ${why}`);
  }
}

/** Starts the first process of a job with its own arguments and environment. @returns 0 as soon as it has announced the job, else its exit code */
function startAgain(
  { request, lock, file }: { request: JobRequest; lock: number; file: number },
  files: { arguments: Uint8Array; environment: Uint8Array },
): number {
  const program = nativeFile(KEEPER);
  const asJob = ['--as-job', `${FIRST_DESCRIPTOR}:${FIRST_DESCRIPTOR + 1}`];
  const errors = process.env[ERRORS];
  const code = native().processRun(
    program,
    [KEEPER, 'submit', '--', ...ownProgram(...request.start, ...asJob)],
    files.arguments,
    errors === undefined
      ? files.environment
      : Buffer.concat([files.environment, Buffer.from(`${ERRORS}=${errors}\0`)]),
    FIRST_DESCRIPTOR,
    [lock, file],
  );
  if (code >= 0) return code;
  throw new GPUOwnerError(
    'ERR_INTERNAL',
    `job ${request.id} can't be started: ${program}: ${systemError(-code)}.`,
  );
}
