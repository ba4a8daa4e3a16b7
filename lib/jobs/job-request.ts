// The request for a background job, as far as that can be checked and noted before it is made.
import { accessSync, constants, existsSync, openSync, readFileSync, readlinkSync, statSync } from 'node:fs';
import { basename, dirname, resolve } from 'node:path';
import { LockDirectory, queueUp, requestLimits, type Slot } from '../claims/index.ts';
import { errorCode, ifPossible } from '../errors.ts';
import {
  EXTRA_CERTIFICATES,
  errorReason,
  formatMoment,
  privately,
  sanitize,
  schema,
  showValue,
  usageError,
} from '../platform/index.ts';
import {
  arrayOf,
  formatBefore,
  isAhead,
  type JobBefore,
  jobBefore,
  type NamedJob,
  numberOf,
  resolveNames,
} from './job-parts.ts';
import type { JobElsewhere, JobPart, JobRequest } from './job-record.ts';
import { exitCodeOf, stateOf } from './job-state.ts';
import { type JobStore, unusable } from './job-store.ts';
import type { MoveRequest } from './move.ts';
import { OWN_VARIABLES } from './start.ts';

/** A user's wishes besides the claim. */
export interface JobOptions {
  name: string | undefined;
  note: string | undefined;
  /** Numbers or names of jobs that must have ended before. */
  after: readonly string[];
  /** Jobs that must have ended with exit code 0. */
  afterOk: readonly string[];
  /** The same of other machines. */
  elsewhere: readonly JobElsewhere[];
  /** When it may start, in ms since 1970; missing: at once. */
  notBefore?: number | undefined;
  /** The place that this is, if the job may move to another machine. */
  move?: MoveRequest | undefined;
  /** Where the output goes: %j is the number, %n the name. */
  output: string | undefined;
  /** Whether to tell of its start and end. */
  notify: boolean;
}

/** Stands for all lost jobs that were not submitted again. */
export const LOST = 'lost';
/** Stands for all failed jobs that were not submitted again. */
export const FAILED = 'failed';
const MAX_NAME_LENGTH = 64;
const MAX_NOTE_LENGTH = 200;
const POINTER_BYTES = 8;
/** For what the keeper and its options add to arguments and environment, in bytes. */
const EXEC_RESERVE = 64 * 1024;

/** Checks what can be checked before anything is made. @throws ERR_INVALID_ARGUMENT */
export function checkJobOptions({
  name,
  note,
}: {
  name?: string | undefined;
  note?: string | undefined;
}): void {
  if (name !== undefined && (!/^[^\s/-][^\s/]*$/u.test(name) || sanitize(name, MAX_NAME_LENGTH) !== name)) {
    throw usageError(
      `--name: ${showValue(name)} is not a name: use up to ${MAX_NAME_LENGTH} characters without spaces and slashes, and no '-' in front`,
    );
  }
  if (name !== undefined && /^(?:\d+_)?\d+(?:-\d+)?$|[:,]/.test(name)) {
    const what = name.includes(':')
      ? "another machine's job; leave out the colon"
      : name.includes(',')
        ? 'several jobs; leave out the comma'
        : "a job's number; use a word";
    throw usageError(`--name: ${showValue(name)} would be taken for ${what}`);
  }
  if (name === LOST || name === FAILED)
    throw usageError(`--name: '${name}' means all ${name} jobs in \`gpu-owner resubmit\`; use another word`);
  if (note !== undefined && sanitize(note, MAX_NOTE_LENGTH) !== note)
    throw usageError(`--note: a note is one line of at most ${MAX_NOTE_LENGTH} characters`);
}

export function openOutput({ output }: JobRequest, directory: string): number {
  const { O_WRONLY, O_APPEND, O_CREAT } = constants;
  const isOwn = dirname(output) === directory;
  refuseSpecialFile(output);
  try {
    const open = () => openSync(output, O_WRONLY | O_APPEND | O_CREAT, 0o666);
    return isOwn ? privately(open) : open();
  } catch (error) {
    const code = errorCode(error);
    if (isOwn || code === 'ENOSPC' || code === 'EDQUOT') throw unusable(dirname(output), error);
    throw usageError(
      `--output: ${showValue(output)} can't be written: ${code === 'ENOENT' ? `${dirname(output)} does not exist` : errorReason(error)}`,
    );
  }
}

const MAX_NAMED_JOBS = 10;

export function describeDependencies({
  after,
  elsewhere = [],
  notBefore,
}: Pick<JobRequest, 'after' | 'elsewhere' | 'notBefore'>): string {
  const all = [
    ...after.map((before) => `job ${formatBefore(before)}`),
    ...elsewhere.map(({ host, id }) => `job ${host}:${id}`),
    ...(notBefore === undefined || notBefore <= Date.now() ? [] : [formatMoment(notBefore)]),
  ];
  const named = all.slice(0, MAX_NAMED_JOBS);
  const more = all.length - named.length;
  return `after ${[...named, ...(more > 0 ? [`${more} more`] : [])].join(', ')}`;
}

/** @param isArray whether `17_%a` has a meaning */
export function dependencies(
  store: JobStore,
  { after, afterOk }: JobOptions,
  isArray: boolean,
): JobRequest['after'] {
  const wanted = [
    ...after.map((word) => ({ word, isOk: false })),
    ...afterOk.map((word) => ({ word, isOk: true })),
  ].flatMap(({ word, isOk }) => word.split(',').map((each) => ({ word: each.trim(), isOk })));
  const names = resolveNames(
    store,
    wanted.map(({ word }) => word.replace(/_%a$/, '')),
  );
  const all = new Map<string, JobBefore>();
  for (const [i, { word, isOk }] of wanted.entries()) {
    const samePart = word.endsWith('_%a');
    const named = names[i] as NamedJob;
    // A part that has begun is a job of its own.
    const begun = numberOf(store, named);
    const { id, index: part } = begun === null ? (named as JobPart) : { id: begun, index: undefined };
    if (samePart && !(isArray && arrayOf(store.read(id)?.request ?? {})))
      throw usageError(
        `${showValue(word)}: %a is the number of a part; it needs --array and an array before it`,
      );
    const before = { id, isOk, ...(part !== undefined && { part }), ...(samePart && { samePart }) };
    const why = isOk && !samePart ? whyNeverOk(store, before) : null;
    if (why !== null)
      throw usageError(
        `--after-ok ${word}: job ${formatBefore(before)} ${why}, so the new job would never start`,
      );
    const key = formatBefore(before);
    all.set(key, { ...before, isOk: isOk || all.get(key)?.isOk === true });
  }
  return [...all.values()];
}

/** Why a job can't start any more after those that it follows; null: it can, or may. */
export function obstacleOf(store: JobStore, after: readonly JobBefore[]): string | null {
  for (const before of after) {
    const why = before.isOk ? whyNeverOk(store, before) : null;
    if (why !== null) return `it was to follow job ${formatBefore(before)}, which ${why}`;
  }
  return null;
}

/** 'failed with exit code 1': what became of a job that can't end with exit code 0 any more; null: it has, or may. */
function whyNeverOk(store: JobStore, before: JobBefore): string | null {
  const id = jobBefore(store, before);
  if (id === null) return isAhead(store, before) ? null : 'never began';
  const found = stateOf(store, id);
  if (found === null) return 'is no longer known';
  if (found.state === 'waiting' || found.state === 'running' || found.state === 'completed') return null;
  const code = exitCodeOf(found.job);
  if (found.state === 'failed') return `failed with exit code ${code ?? 'unknown'}`;
  return found.state === 'lost' ? 'was lost' : 'was cancelled';
}

export function refuseInsideJob(): never {
  throw usageError(
    'this shell belongs to a job (`gpu-owner run`), whose GPUs stay claimed until everything that was started in it has ended: submit from another shell.',
  );
}

export function currentDirectory(): Pick<JobRequest, 'directory' | 'directoryBytes'> {
  const directory = ifPossible(() => process.cwd(), ''); // the directory may have been removed
  if (!schema.isAbsolutePath(directory))
    throw usageError('the current directory is not known: cd to another one');
  const bytes = readlinkSync('/proc/self/cwd', 'buffer');
  return {
    directory,
    directoryBytes:
      bytes.toString() === directory && !directory.includes('\ufffd') ? null : bytes.toString('hex'),
  };
}

export function outputPath(pattern: string, directory: string): string {
  if (pattern === '' || pattern.endsWith('/'))
    throw usageError(`--output: ${showValue(pattern)} is not the name of a file`);
  const path = resolve(directory, pattern);
  const parent = dirname(path);
  if (!isDirectory(parent)) throw usageError(`--output: there is no directory ${showValue(parent)}`);
  if (isDirectory(path))
    throw usageError(
      `--output: ${showValue(path)} is a directory; name a file in it, such as ${basename(path)}/%j.log`,
    );
  refuseSpecialFile(path);
  const isThere = existsSync(path);
  const needed = isThere ? constants.W_OK : constants.W_OK | constants.X_OK;
  const mayWrite = () => {
    accessSync(isThere ? path : parent, needed);
    return true;
  };
  if (!ifPossible(mayWrite, false)) {
    throw usageError(
      `--output: you may not write ${isThere ? 'to' : 'in'} ${showValue(isThere ? path : parent)}`,
    );
  }
  return path;
}

/** A FIFO: to open it waits for a reader, maybe for ever. */
function refuseSpecialFile(path: string): void {
  const found = ifPossible(() => statSync(path, { throwIfNoEntry: false }), undefined);
  if (found !== undefined && !found.isFile() && !found.isCharacterDevice())
    throw usageError(`--output: ${showValue(path)} is not an ordinary file`);
}

function isDirectory(path: string): boolean {
  return ifPossible(() => statSync(path).isDirectory(), false);
}

/** The user's arguments as bytes, each ended by a NUL: JavaScript's strings can't carry what isn't UTF-8. */
export function ownArguments(words: number): Buffer {
  const line = readFileSync('/proc/self/cmdline');
  // Node.js, its own options, this program and the command's name come before.
  let remaining = process.argv.length - 2 - words;
  let at = line.length;
  for (; remaining > 0; remaining--) at = line.lastIndexOf(0, at - 2) + 1;
  return line.subarray(at);
}

/** As bytes, without what is for this process only: how its caller wants to read errors, a wait's slot, and who waits for its answer. */
export function ownEnvironment(): Buffer {
  const certificates = new RegExp(`^${EXTRA_CERTIFICATES}(?==)`);
  const entries = readFileSync('/proc/self/environ', 'latin1')
    .split('\0')
    .map((entry) => entry.replace(certificates, 'NODE_EXTRA_CA_CERTS'));
  const isOwn = (entry: string) => OWN_VARIABLES.some((name) => entry.startsWith(`${name}=`));
  return Buffer.from(entries.filter((entry) => !isOwn(entry)).join('\0'), 'latin1');
}

/** The kernel takes a quarter of the stack's limit, 6 MiB at most, for arguments and environment together, each with a pointer to it. */
export function refuseTooLarge(files: { arguments: Buffer; environment: Buffer }): void {
  const sizes = [files.arguments, files.environment].map(
    (list) => list.length + POINTER_BYTES * list.reduce((count, byte) => count + (byte === 0 ? 1 : 0), 0),
  );
  const size = sizes.reduce((sum, each) => sum + each, 0);
  const stack = /^Max stack size\s+(\d+)/m.exec(readFileSync('/proc/self/limits', 'utf8'))?.[1];
  const limit = Math.min(Number(stack ?? 8 * 2 ** 20) / 4, 6 * 2 ** 20) - EXEC_RESERVE;
  if (size <= limit) return;
  throw usageError(
    `arguments and environment have ${size} bytes together, and ${Math.floor(limit)} are possible: pass long lists in a file`,
  );
}

/** For others to read of its request and of its claim. */
export function describeJob({ id, name, note }: JobRequest) {
  return { job: id, ...(name === null ? {} : { name }), ...(note === null ? {} : { note }) };
}

/** The job's slot in the wait queue; null: it needs none, or there is none. */
export function takeSlot(request: JobRequest): Slot | null {
  const { command, count, wanted, class: own = 'normal', limitMs, array } = request;
  if (wanted == null || count === 0 || array !== undefined) return null;
  const about = { ...describeJob(request), ...(limitMs === null ? {} : { limitMs }) };
  const directory = LockDirectory.open(dirname(request.lock.path), {});
  return queueUp(directory, command, about, {
    count,
    uuids: wanted,
    scope: null,
    class: own,
    ...requestLimits(),
  });
}
