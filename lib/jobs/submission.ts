// How jobs in the background are made. One is an ordinary `run` in a session of its own, which waits in the queue like any other.
import { closeSync, constants, openSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { checkPossible, LockDirectory, type Settings } from '../claims/index.ts';
import { errorCode, errorMessage, GPUOwnerError } from '../errors.ts';
import { errorReason, sanitize, showValue, usageError } from '../platform/index.ts';
import { arrayOf } from './job-parts.ts';
import { type JobHooks, JobProcess } from './job-process.ts';
import { type JobCancellation, type JobRequest, writeBlock } from './job-record.ts';
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
import { ARGUMENTS, ENVIRONMENT, isOfPart, JobStore, type MadeJob } from './job-store.ts';
import { MAX_TITLE_LENGTH } from './keeper.ts';
import { checkNotification } from './notification.ts';
import { type Start, startJob } from './start.ts';
import type { TimeLimit } from './time-limit.ts';

/** A job's arguments and environment, each ended by a NUL. */
interface JobFiles {
  arguments: Buffer;
  environment: Buffer;
}

/** A program that is to run in the background. */
interface Submission {
  /** The words of this program that the job's process begins with; the user's arguments follow. */
  start: readonly string[];
  /** For people. */
  command: string;
  /** The claim, or the claims of its tasks. */
  request: Settings['request'];
  /** Whether others claim for it: tasks, here or on other machines. */
  claims?: 'tasks' | 'elsewhere';
  /** Whether it waits for GPUs. */
  waits: boolean;
  limit: TimeLimit | null;
  /** The parts of an array; undefined: it is none. */
  array?: string | undefined;
}

/**
 * Makes a program a job in the background, of which this process is the first.
 * @throws ERR_INVALID_ARGUMENT for what can never run, ERR_JOBS, ERR_LOCK_DIRECTORY, ERR_NO_DRIVER; nothing is left then
 */
export async function submitJob(
  { start: words, command, request, claims, waits, limit, array }: Submission,
  options: JobOptions,
  start: Start,
  hooks: JobHooks,
): Promise<JobProcess> {
  checkJobOptions(options);
  if (process.env.GPU_OWNER_JOB) refuseInsideJob();
  const store = JobStore.open();
  const after = dependencies(store, options, array !== undefined);
  if (options.notify) checkNotification();
  const place = currentDirectory();
  const uuids = claims === 'elsewhere' ? [] : (await checkPossible(request)).uuids;
  const outputPattern = options.output === undefined ? null : outputPath(options.output, place.directory);
  if (array === undefined && outputPattern !== null && isOfPart(outputPattern))
    throw usageError(
      '--output: %a is the number of a part, so it needs --array; write %%a for these two letters',
    );
  const files = {
    arguments: ownArguments(words.length),
    environment: ownEnvironment(),
  };
  refuseTooLarge(files);
  const { lockDirectory, configuredDirectory } = request;
  const locks = LockDirectory.open(lockDirectory, { lockDirectory: configuredDirectory });
  const made = store.create(
    {
      start: [...words],
      name: options.name ?? null,
      note: options.note ?? null,
      command: sanitize(command, MAX_TITLE_LENGTH),
      count: claims === undefined ? request.count : 0,
      wanted: waits ? [...uuids] : null,
      class: claims === undefined ? (request.class ?? 'normal') : 'normal',
      ...place,
      umask: process.umask(),
      outputPattern,
      submitted: Date.now(),
      after,
      ...(options.elsewhere.length === 0 ? {} : { elsewhere: [...options.elsewhere] }),
      ...(options.notBefore === undefined ? {} : { notBefore: options.notBefore }),
      ...(options.move === undefined ? {} : { move: options.move }),
      limitMs: limit?.ms ?? null,
      notify: options.notify,
      resubmits: null,
      ...(array === undefined ? {} : { array }),
    },
    files,
    locks,
  );
  return JobProcess.first(store, made, start, hooks);
}

/**
 * Starts an ended job once more, under a new number, which its first process prints.
 * @param renumbered jobs that were, and their new numbers
 * @param array the parts of an array that are meant; null: all
 * @returns the number, and the exit code of that process if it could not start the job: it has said why, and nothing is left then
 * @throws as {@link submitJob}
 */
export async function resubmitJob(
  store: JobStore,
  id: number,
  renumbered: ReadonlyMap<number, number>,
  array: string | null = null,
): Promise<{ id: number; exitCode: number }> {
  const { request, files } = askedOf(store, id, array !== null);
  const { move: _, part: __, ...asked } = request;
  const after = asked.after.flatMap((before) => {
    const other = renumbered.get(before.id);
    const array = arrayOf((other === undefined ? null : store.read(other))?.request ?? {});
    if (other !== undefined && (before.part === undefined || array?.ids.includes(before.part)))
      return [{ ...before, id: other }];
    // A job that had ended well, or is forgotten, needn't be waited for again.
    return stateOf(store, before.id) === null ? [] : [before];
  });
  const copy = { ...asked, after, resubmits: id, ...(array === null ? {} : { array }) };
  return withCopy(store, copy, files, (made) => {
    const exitCode = startInPlace(made, files);
    if (exitCode !== 0) store.remove(made.request.id);
    return { id: made.request.id, exitCode };
  });
}

/**
 * Starts a part of an array as a job of its own.
 * @param variables of its environment, besides those of the array
 * @returns its number; null: it has begun already
 * @throws ERR_INVALID_ARGUMENT, ERR_JOBS, ERR_LOCK_DIRECTORY
 */
export function startPart(
  store: JobStore,
  array: JobRequest,
  index: number,
  variables: Readonly<Record<string, number>>,
): number | null {
  const files = filesOf(store, array.id);
  const names = Object.keys(variables);
  const others = files.environment
    .toString('latin1')
    .split('\0')
    .filter((entry) => entry !== '' && !names.some((name) => entry.startsWith(`${name}=`)));
  const own = Object.entries(variables).map(([name, value]) => `${name}=${value}`);
  const environment = Buffer.from([...others, ...own, ''].join('\0'), 'latin1');
  return withPart(store, array, index, { ...files, environment }, (made, bind) => {
    if (!bind()) return false;
    // A command that cancels the array first notes that, and then looks for parts: either it finds this one, or this finds the note.
    if (store.read(array.id)?.cancellation === null) startInPlace(made, { ...files, environment });
    else cancelMade(store, made);
    return true;
  });
}

/** Cancels a part of an array that has not begun. @returns false: it has @throws as {@link startPart} */
export function cancelBeforeStart(
  store: JobStore,
  array: JobRequest,
  index: number,
  reason: string | null = null,
): boolean {
  const id = withPart(store, array, index, filesOf(store, array.id), (made, bind) => {
    cancelMade(store, made, reason);
    return bind();
  });
  return id !== null;
}

function cancelMade(store: JobStore, { request, file }: MadeJob, reason: string | null = null): void {
  writeBlock(file, 'cancellation', { at: Date.now(), reason } satisfies JobCancellation);
  store.announce(request.id);
}

/** @param use makes the job the part, and returns whether that worked @returns null: another one is the part */
function withPart(
  store: JobStore,
  { move: _, elsewhere: __, array: ___, ...asked }: JobRequest,
  index: number,
  files: JobFiles,
  use: (made: MadeJob, bind: () => boolean) => boolean,
): number | null {
  const part = { id: asked.id, index };
  // The array has waited for others, and tells of its own start and end.
  const copy = { ...asked, part, after: [], notify: false, resubmits: null };
  return withCopy(store, copy, files, (made) => {
    const { id } = made.request;
    if (use(made, () => store.bindPart(id, part))) return id;
    store.remove(id);
    return null;
  });
}

/** Makes a job like another one. Nothing of it is left if `use` throws. */
function withCopy<T>(
  store: JobStore,
  { id: _, lock, ...asked }: JobRequest,
  files: JobFiles,
  use: (made: MadeJob) => T,
): T {
  const locks = LockDirectory.open(dirname(lock.path), {});
  const made = store.create({ ...asked, submitted: Date.now() }, files, locks);
  try {
    return use(made);
  } catch (error) {
    store.remove(made.request.id);
    throw error;
  } finally {
    for (const descriptor of [made.lock, made.file]) closeSync(descriptor);
  }
}

/** As {@link startJob}, in the directory and with the umask of the job. */
function startInPlace(made: MadeJob, files: JobFiles): number {
  const place = openDirectory(made.request.id, made.request);
  const umask = process.umask(made.request.umask);
  try {
    process.chdir(`/proc/self/fd/${place}`);
    return startJob(made, files);
  } finally {
    process.umask(umask);
    closeSync(place);
  }
}

/**
 * A job that has ended, as it was asked for: its request, arguments and environment. @param mayLive whether parts of it are meant, which
 * have ended @throws ERR_INVALID_ARGUMENT, ERR_JOBS
 */
function askedOf(store: JobStore, id: number, mayLive = false) {
  const found = stateOf(store, id);
  if (found === null) throw unknownJob(id);
  if (isLiving(found.state) && !mayLive)
    throw usageError(`job ${id} has not ended: ${found.state}; cancel it first`);
  return { request: found.job.request, files: filesOf(store, id) };
}

/** A job's arguments and environment. @throws ERR_JOBS */
function filesOf(store: JobStore, id: number): JobFiles {
  const read = (name: string) => {
    try {
      return readFileSync(join(store.directoryOf(id), name));
    } catch (error) {
      throw new GPUOwnerError('ERR_JOBS', `job ${id} can't be read: ${errorMessage(error)}`, {
        cause: error,
      });
    }
  };
  return { arguments: read(ARGUMENTS), environment: read(ENVIRONMENT) };
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
    throw usageError(`job ${id}: its directory ${showValue(directory)} ${why}`);
  }
}
