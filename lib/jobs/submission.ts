// Jobs in the background: how they are started, and what their first process does until the keeper takes over. It is an ordinary `run`
// in a session of its own, which waits in the queue like any other.
import {
  accessSync,
  closeSync,
  constants,
  existsSync,
  openSync,
  readFileSync,
  readlinkSync,
  statSync,
} from 'node:fs';
import { basename, dirname, isAbsolute, join, resolve } from 'node:path';
import {
  checkPossible,
  LockDirectory,
  ownLimit,
  queueUp,
  type Settings,
  type Slot,
  type WaitOptions,
} from '../claims/index.ts';
import { ErrorCode, GPUOwnerError } from '../errors.ts';
import { native, nativeFile } from '../native.ts';
import {
  pause,
  privately,
  readProcessStat,
  sanitize,
  setVariables,
  shellWords,
  showValue,
  systemError,
  warn,
} from '../platform/index.ts';
import { checkCommand, warnOfOwnDevices } from './command-check.ts';
import { FIRST_DESCRIPTOR, INHERITED, KEEPER } from './inherited.ts';
import { exitCodeOf, resolveJobs, stateOf, unknownJob } from './job-state.ts';
import {
  ARGUMENTS,
  ENVIRONMENT,
  isAlive,
  type JobProgress,
  type JobRequest,
  JobStore,
  jobLimits,
  OUTPUT,
  readJob,
  unusable,
  writeBlock,
} from './job-store.ts';
import { type BackgroundJob, claimForJob, type JobClaim, MAX_TITLE_LENGTH } from './keeper.ts';
import { afterLogout, inScope } from './login-session.ts';
import { checkNotification, type JobEvent, notifierOf, startNotifier } from './notification.ts';
import type { TimeLimit } from './time-limit.ts';
import { type ContinuedWait, WAITING, waitingVariable } from './waiter.ts';

/** A user's wishes besides the claim. */
export interface JobOptions {
  name: string | undefined;
  note: string | undefined;
  /** Numbers or names of jobs that must have ended before. */
  after: readonly string[];
  /** Those that must have ended with exit code 0. */
  afterOk: readonly string[];
  /** Where the output goes: %j is the number, %n the name. */
  output: string | undefined;
  /** Whether to tell of its start and end. */
  notify: boolean;
}

/** Stands for all lost jobs that were not submitted again. */
export const LOST = 'lost';
const MAX_NAME_LENGTH = 64;
const MAX_NOTE_LENGTH = 200;
const MAX_FAILURE_LENGTH = 1_000;
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
    throw invalid(
      `--name: ${showValue(name)} is not a name: use up to ${MAX_NAME_LENGTH} characters without spaces and slashes, and no '-' in front`,
    );
  }
  if (name !== undefined && /^\d+$/.test(name)) {
    throw invalid(`--name: ${showValue(name)} would be taken for a job's number; use a word`);
  }
  if (name === LOST)
    throw invalid(`--name: '${LOST}' means all lost jobs in \`gpu-owner resubmit\`; use another word`);
  if (note !== undefined && sanitize(note, MAX_NOTE_LENGTH) !== note)
    throw invalid(`--note: a note is one line of at most ${MAX_NOTE_LENGTH} characters`);
}

/** A program that is to run in the background. */
interface Submission {
  /** The words of this program that the job's process begins with; the user's arguments follow. */
  start: readonly string[];
  /** For people. */
  command: string;
  /** How many GPUs. */
  count: number;
  /** Whether it waits for them. */
  waits: boolean;
  limit: TimeLimit | null;
  /** As in the claim's settings. */
  lockDirectory: string | undefined;
  configuredDirectory: string | undefined;
}

/**
 * Tells the number of a job that is about to start. It won't if that can't be told: `giveUp` removes it. One that doesn't wait for GPUs has
 * them by then, unless it is to follow other jobs.
 */
type Announce = (id: number, giveUp: () => void) => void;

/**
 * Starts a command as a job in the background.
 * @throws ERR_INVALID_ARGUMENT for what can never run, ERR_GPU_UNAVAILABLE if it doesn't wait, ERR_JOBS, ERR_LOCK_DIRECTORY, ERR_NO_DRIVER;
 *   nothing is left then
 */
export async function submitCommand(
  { request }: Settings,
  command: readonly string[],
  options: JobOptions,
  { limit, waits }: Pick<Submission, 'limit' | 'waits'>,
  announce: Announce,
): Promise<void> {
  checkCommand(command);
  warnOfOwnDevices(command);
  const { count, lockDirectory, configuredDirectory } = request;
  const title = sanitize(shellWords(command), MAX_TITLE_LENGTH);
  const start = ['submit'];
  const submission = { start, command: title, count, waits, limit, lockDirectory, configuredDirectory };
  return submitJob(submission, options, () => checkPossible(request), announce);
}

/** @param check refuses what can never run @throws as {@link submitCommand} */
export async function submitJob(
  submission: Submission,
  options: JobOptions,
  check: () => ReturnType<typeof checkPossible>,
  announce: Announce,
): Promise<void> {
  const { start: words, command, count, waits, limit, lockDirectory, configuredDirectory } = submission;
  checkJobOptions(options);
  if (process.env.GPU_OWNER_JOB) refuseInsideJob();
  const store = JobStore.open();
  const after = dependencies(store, options);
  if (options.notify) checkNotification();
  const place = currentDirectory();
  const { uuids } = await check();
  const outputPattern = options.output === undefined ? null : outputPath(options.output, place.directory);
  const files = {
    arguments: ownArguments(words.length),
    environment: ownEnvironment(),
  };
  refuseTooLarge(files);
  const locks = LockDirectory.open(lockDirectory, { lockDirectory: configuredDirectory });
  const { request, ...descriptors } = store.create(
    {
      start: words,
      name: options.name ?? null,
      note: options.note ?? null,
      command,
      count,
      wanted: waits ? uuids : null,
      ...place,
      umask: process.umask(),
      outputPattern,
      submitted: Date.now(),
      after,
      limitMs: limit?.ms ?? null,
      notify: options.notify,
      resubmits: null,
      teller: waits ? null : tellerOf({ count, after }),
    },
    files,
    locks,
  );
  await start(store, request, descriptors, files, locks, announce);
}

/**
 * This process, for a job that doesn't wait for GPUs: whether it gets them is known at once. null: it needs none, or follows other jobs, so
 * that nobody knows when.
 */
function tellerOf({
  count,
  after,
}: Pick<JobRequest, 'count' | 'after'>): JobRequest['teller'] & (object | null) {
  if (count === 0 || after.length > 0) return null;
  return { pid: process.pid, startTicks: readProcessStat('self')?.startTicks ?? '' };
}

/**
 * Starts an ended job once more, under a new number.
 * @param renumbered jobs that were, and their new numbers
 * @throws as {@link submitCommand}
 */
export async function resubmitJob(
  store: JobStore,
  id: number,
  renumbered: ReadonlyMap<number, number>,
  announce: Announce,
): Promise<number> {
  const found = stateOf(store, id);
  if (found === null) throw unknownJob(String(id));
  if (found.state === 'waiting' || found.state === 'running')
    throw invalid(`job ${id} has not ended: ${found.state}; cancel it first`);
  const {
    id: _,
    lock: { path: lockPath },
    ...asked
  } = found.job.request;
  const read = (name: string) => {
    try {
      return readFileSync(join(store.directoryOf(id), name));
    } catch (error) {
      throw new GPUOwnerError('ERR_JOBS', `job ${id} can't be read: ${(error as Error).message}`, {
        cause: error,
      });
    }
  };
  const place = openDirectory(id, asked);
  const locks = LockDirectory.open(dirname(lockPath), {});
  const after = asked.after.flatMap(({ id: before, isOk }) => {
    const other = renumbered.get(before);
    if (other !== undefined) return [{ id: other, isOk }];
    // What had ended well, or is forgotten, needn't be waited for again.
    return stateOf(store, before) === null ? [] : [{ id: before, isOk }];
  });
  const files = { arguments: read(ARGUMENTS), environment: read(ENVIRONMENT) };
  const { request, ...descriptors } = store.create(
    {
      ...asked,
      after,
      submitted: Date.now(),
      resubmits: id,
      teller: asked.wanted == null ? tellerOf({ count: asked.count, after }) : null,
    },
    files,
    locks,
  );
  const umask = process.umask(asked.umask);
  try {
    process.chdir(`/proc/self/fd/${place}`);
    await start(store, request, descriptors, files, locks, announce);
  } finally {
    process.umask(umask);
    closeSync(place);
  }
  return request.id;
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
    const { code, errno: number = 0 } = error as NodeJS.ErrnoException;
    const why = code === 'ENOENT' ? 'is no longer there' : `can't be entered: ${systemError(-number)}`;
    throw invalid(`job ${id}: its directory ${showValue(directory)} ${why}`);
  }
}

async function start(
  store: JobStore,
  request: JobRequest,
  descriptors: { lock: number; file: number },
  files: { arguments: Uint8Array; environment: Uint8Array },
  directory: LockDirectory,
  announce: Announce,
): Promise<void> {
  const tell = () => announce(request.id, () => store.remove(request.id));
  const isToldLater = request.teller != null;
  const progress = launch(store, request, descriptors, files, directory, isToldLater ? () => {} : tell);
  if (!isToldLater) return;
  try {
    await untilGranted(store, request.id);
    tell();
    const file = store.openFile(request.id);
    const isWritten = writeBlock(file, 'start', { ...progress, isTold: true } satisfies JobProgress);
    closeSync(file);
    if (!isWritten) throw unusable(store.path, new Error('its file cannot be written'));
  } catch (error) {
    store.remove(request.id);
    throw error;
  }
}

/** The reasons for several GPUs are on lines of their own. */
function sanitizeLines(text: string): string {
  return text.slice(0, MAX_FAILURE_LENGTH).replace(/\S.*/g, (line) => sanitize(line, MAX_FAILURE_LENGTH));
}

/** How often a job that doesn't wait and its starter look for each other's answer. */
const ANSWER_POLL_MS = 10;

/** Waits until a job's GPUs are granted. @throws the error with which they are not */
async function untilGranted(store: JobStore, id: number): Promise<void> {
  for (;;) {
    const found = stateOf(store, id);
    const progress = found?.job.progress;
    if (progress?.isGranted) return;
    if (found?.state !== 'waiting') {
      const { code = '', message } = progress?.failure ?? {};
      const known = Object.hasOwn(ErrorCode, code) ? (code as ErrorCode) : 'ERR_JOBS';
      throw new GPUOwnerError(
        known,
        sanitizeLines(message ?? `job ${id} has ended before it got GPUs: submit it again.`),
      );
    }
    await pause(ANSWER_POLL_MS);
  }
}

/** Starts the first process of a job. @returns its progress, as long as it hasn't said so itself */
function launch(
  store: JobStore,
  request: JobRequest,
  { lock, file }: { lock: number; file: number },
  files: { arguments: Uint8Array; environment: Uint8Array },
  directory: LockDirectory,
  tell: () => void,
): JobProgress {
  const opened = [lock, file];
  let slot: Slot | null = null;
  try {
    const output = openOutput(request, store.directoryOf(request.id));
    opened.push(output);
    const handed = [lock, file];
    const locks: string[] = [];
    const numbers = new Map<string, number>();
    for (const { id } of request.after) {
      const other = store.read(id);
      if (other === null || !isAlive(other)) continue;
      const { path, byte } = other.request.lock;
      if (!numbers.has(path)) {
        const descriptor = native().fileOpenForProbe(path);
        if (descriptor < 0) continue; // the job looks itself, before it starts
        opened.push(descriptor);
        numbers.set(path, FIRST_DESCRIPTOR + handed.length);
        handed.push(descriptor);
      }
      locks.push('--lock', `${numbers.get(path)}:${byte}`);
    }
    // Jobs are served in the order of their numbers, however long each takes to start.
    if (request.after.length === 0) slot = takeSlot(request, directory);
    const environment = [files.environment];
    if (slot !== null) {
      const kept = { ...slot.kept, descriptor: FIRST_DESCRIPTOR + handed.length };
      handed.push(slot.kept.descriptor);
      environment.push(Buffer.from(`${waitingVariable({ slot: kept, rest: null }).join('=')}\0`));
    }
    const program = [process.execPath, process.argv[1] as string, ...request.start];
    const words = [
      ...scopeWords(request.id),
      ...(locks.length === 0 ? [] : [nativeFile(KEEPER), 'wait', '--locks', 'all', ...locks, '--']),
      ...program,
      '--as-job',
      `${FIRST_DESCRIPTOR}:${FIRST_DESCRIPTOR + 1}`,
    ];
    tell();
    const { error, pid } = native().processStartDetached(
      words[0] as string,
      words,
      files.arguments,
      Buffer.concat(environment),
      output,
      FIRST_DESCRIPTOR,
      handed,
    );
    if (error !== 0)
      throw new GPUOwnerError(
        'ERR_INTERNAL',
        `job ${request.id} can't be started: ${words[0]}: ${systemError(error)}.`,
      );
    const reason = request.after.length === 0 ? 'starting' : describeDependencies(request.after);
    const progress: JobProgress = { pid, reason };
    writeBlock(file, 'start', progress);
    return progress;
  } catch (error) {
    store.remove(request.id);
    throw error;
  } finally {
    slot?.leave(); // the job has it by now
    for (const descriptor of opened) closeSync(descriptor);
  }
}

/** The job's slot in the wait queue; null: it needs none, or there is none. */
function takeSlot(request: JobRequest, directory: LockDirectory): Slot | null {
  const { id, name, note, command, count, wanted, limitMs } = request;
  if (wanted == null || count === 0) return null;
  const about = {
    job: id,
    ...(name === null ? {} : { name }),
    ...(note === null ? {} : { note }),
    ...(limitMs === null ? {} : { limitMs }),
  };
  return queueUp(directory, command, about, {
    count,
    uuids: wanted,
    scope: null,
    class: 'normal',
    most: ownLimit().gpus,
  });
}

/** Where logging out would end the job, a scope that it doesn't; where there can be none, a warning. */
function scopeWords(id: number): string[] {
  const after = afterLogout();
  if (after === 'stays') return [];
  const scope = after === 'linger' ? inScope(id) : null;
  if (scope !== null) return scope;
  warn(
    'logging out ends all your processes on this machine (KillUserProcesses in logind.conf), this job as well' +
      (after === 'linger'
        ? ', and your service manager can not be reached.'
        : ': to let it go on, ask for `loginctl enable-linger`, and submit it again.'),
  );
  return [];
}

function openOutput({ output }: JobRequest, directory: string): number {
  const { O_WRONLY, O_APPEND, O_CREAT } = constants;
  const isOwn = dirname(output) === directory;
  refuseSpecialFile(output);
  try {
    const open = () => openSync(output, O_WRONLY | O_APPEND | O_CREAT, 0o666);
    return isOwn ? privately(open) : open();
  } catch (error) {
    const { code, errno: number = 0 } = error as NodeJS.ErrnoException;
    if (isOwn || code === 'ENOSPC' || code === 'EDQUOT') throw unusable(dirname(output), error);
    throw invalid(
      `--output: ${showValue(output)} can't be written: ${code === 'ENOENT' ? `${dirname(output)} does not exist` : systemError(-number)}`,
    );
  }
}

const MAX_NAMED_JOBS = 10;

function describeDependencies(after: JobRequest['after']): string {
  const named = after.slice(0, MAX_NAMED_JOBS).map(({ id }) => `job ${id}`);
  const more = after.length - named.length;
  return `after ${[...named, ...(more > 0 ? [`${more} more`] : [])].join(', ')}`;
}

function dependencies(store: JobStore, { after, afterOk }: JobOptions): JobRequest['after'] {
  const wanted = [
    ...after.map((word) => ({ word, isOk: false })),
    ...afterOk.map((word) => ({ word, isOk: true })),
  ].flatMap(({ word, isOk }) => word.split(',').map((each) => ({ word: each.trim(), isOk })));
  const ids = resolveJobs(
    store,
    wanted.map(({ word }) => word),
  );
  const all = new Map<number, JobRequest['after'][number]>();
  for (const [i, { word, isOk }] of wanted.entries()) {
    const id = ids[i] as number;
    const why = isOk ? whyNeverOk(store, id) : null;
    if (why !== null) throw invalid(`--after-ok ${word}: job ${id} ${why}, so the new job would never start`);
    all.set(id, { id, isOk: isOk || all.get(id)?.isOk === true });
  }
  return [...all.values()];
}

/** 'failed with exit code 1': what became of a job that can't end with exit code 0 any more; null: it has, or may. */
function whyNeverOk(store: JobStore, id: number): string | null {
  const found = stateOf(store, id);
  if (found === null) return 'is no longer known';
  if (found.state === 'waiting' || found.state === 'running' || found.state === 'completed') return null;
  const code = exitCodeOf(found.job);
  if (found.state === 'failed') return `failed with exit code ${code ?? 'unknown'}`;
  return found.state === 'lost' ? 'was lost' : 'was cancelled';
}

function refuseInsideJob(): never {
  throw invalid(
    'this shell belongs to a job (`gpu-owner run`), whose GPUs stay claimed until everything that was started in it has ended: submit from another shell.',
  );
}

function currentDirectory(): Pick<JobRequest, 'directory' | 'directoryBytes'> {
  let directory = '';
  try {
    directory = process.cwd();
  } catch {
    // Somebody has removed it.
  }
  if (!isAbsolute(directory)) throw invalid('the current directory is not known: cd to another one');
  const bytes = readlinkSync('/proc/self/cwd', 'buffer');
  return {
    directory,
    directoryBytes:
      bytes.toString() === directory && !directory.includes('\ufffd') ? null : bytes.toString('hex'),
  };
}

function outputPath(given: string, directory: string): string {
  if (given === '' || given.endsWith('/'))
    throw invalid(`--output: ${showValue(given)} is not the name of a file`);
  const path = resolve(directory, given);
  const parent = dirname(path);
  if (!isDirectory(parent)) throw invalid(`--output: there is no directory ${showValue(parent)}`);
  if (isDirectory(path))
    throw invalid(
      `--output: ${showValue(path)} is a directory; name a file in it, such as ${basename(path)}/%j.log`,
    );
  refuseSpecialFile(path);
  const isThere = existsSync(path);
  try {
    accessSync(isThere ? path : parent, isThere ? constants.W_OK : constants.W_OK | constants.X_OK);
  } catch {
    throw invalid(
      `--output: you may not write ${isThere ? 'to' : 'in'} ${showValue(isThere ? path : parent)}`,
    );
  }
  return path;
}

/** A FIFO: to open it waits for a reader, maybe for ever. */
function refuseSpecialFile(path: string): void {
  const found = statSync(path, { throwIfNoEntry: false });
  if (found !== undefined && !found.isFile() && !found.isCharacterDevice())
    throw invalid(`--output: ${showValue(path)} is not an ordinary file`);
}

function isDirectory(path: string): boolean {
  try {
    return statSync(path).isDirectory();
  } catch {
    return false;
  }
}

/** The user's arguments as bytes, each ended by a NUL: JavaScript's strings can't carry what isn't UTF-8. */
function ownArguments(words: number): Buffer {
  const line = readFileSync('/proc/self/cmdline');
  // Node.js, its own options, this program and the command's name come before.
  let left = process.argv.length - 2 - words;
  let at = line.length;
  for (; left > 0; left--) at = line.lastIndexOf(0, at - 2) + 1;
  return line.subarray(at);
}

/** As bytes, without what is for this process only: how its caller wants to read errors, and the slot of a wait. The job has its own. */
function ownEnvironment(): Buffer {
  const entries = readFileSync('/proc/self/environ', 'latin1').split('\0');
  const isOwn = (entry: string) => entry.startsWith('GPU_OWNER_ERRORS=') || entry.startsWith(`${WAITING}=`);
  return Buffer.from(entries.filter((entry) => !isOwn(entry)).join('\0'), 'latin1');
}

/** The kernel takes a quarter of the stack's limit, 6 MiB at most, for arguments and environment together, each with a pointer to it. */
function refuseTooLarge(files: { arguments: Buffer; environment: Buffer }): void {
  const sizes = [files.arguments, files.environment].map(
    (list) => list.length + POINTER_BYTES * list.reduce((count, byte) => count + (byte === 0 ? 1 : 0), 0),
  );
  const size = sizes.reduce((sum, each) => sum + each, 0);
  const stack = /^Max stack size\s+(\d+)/m.exec(readFileSync('/proc/self/limits', 'utf8'))?.[1];
  const limit = Math.min(Number(stack ?? 8 * 2 ** 20) / 4, 6 * 2 ** 20) - EXEC_RESERVE;
  if (size <= limit) return;
  throw invalid(
    `arguments and environment have ${size} bytes together, and ${Math.floor(limit)} are possible: pass long lists in a file`,
  );
}

function invalid(message: string): GPUOwnerError {
  return new GPUOwnerError('ERR_INVALID_ARGUMENT', message);
}

/** How often it is looked whether a job has ended whose lock can't be waited for. */
const FOLLOW_MS = 250;

/** The first process of a job: claims its GPUs, and says how it stands. */
export class JobProcess implements BackgroundJob {
  readonly store = JobStore.open();
  readonly request: JobRequest;
  readonly lock: number;
  readonly file: number;
  #progress: JobProgress = { pid: process.pid };
  /** Whether the teller of {@link JobRequest} has done so. */
  #isTold = false;

  /** @param descriptors 'LOCK:FILE', as the starter gives them. @throws ERR_INVALID_ARGUMENT */
  constructor(descriptors: string) {
    const [, lock, file] = /^(\d{1,9}):(\d{1,9})$/.exec(descriptors) ?? [];
    // Not by its path: whatever becomes of the state directory, the job goes on.
    const job = file === undefined ? null : readJob(Number(file));
    if (job === null) throw invalid('--as-job is for gpu-owner itself');
    this.request = job.request;
    // What the one who submitted it had open is closed by now.
    setVariables({ [INHERITED]: (process.env[INHERITED] ?? '').replace(/ fds=[\d,]*/, '') });
    this.lock = Number(lock);
    this.file = Number(file);
  }

  /** Only the output that is kept in the job's own directory is cut. */
  get logLimit(): number | null {
    const own = join(this.store.directoryOf(this.request.id), OUTPUT);
    return this.request.output === own ? jobLimits().jobLogSize : null;
  }

  get afterwards(): readonly string[] {
    return this.request.notify ? notifierOf(this.store, this.request.id, 'ended') : [];
  }

  /** For others to read of its claim. */
  get about() {
    const { id, name, note } = this.request;
    return { job: id, ...(name === null ? {} : { name }), ...(note === null ? {} : { note }) };
  }

  /** Resolves when the jobs that it is to follow have ended, also where somebody has removed the file of locks that are waited for. */
  async followed(): Promise<void> {
    const isAhead = ({ id }: { id: number }) => {
      const job = this.store.read(id);
      return job !== null && isAlive(job);
    };
    while (this.request.after.some(isAhead)) await new Promise((resolve) => setTimeout(resolve, FOLLOW_MS));
  }

  /** Why it can't start, if a job that it was to follow didn't end well. */
  get obstacle(): string | null {
    for (const { id, isOk } of this.request.after) {
      const why = isOk ? whyNeverOk(this.store, id) : null;
      if (why !== null) return `it was to follow job ${id}, which ${why}`;
    }
    return null;
  }

  /** @throws as {@link claimForJob} */
  async claim(
    settings: Settings,
    wait: WaitOptions | null,
    limit: TimeLimit | null,
    continued: ContinuedWait,
  ): Promise<JobClaim> {
    if ((continued.received?.rest ?? null) === null) {
      this.#tell({ reason: 'starting' });
      this.#prune();
    }
    const onWaiting: WaitOptions['onWaiting'] = (state) => {
      wait?.onWaiting?.(state);
      this.#tell({ reason: state.position === null ? 'waiting' : 'waiting for GPUs' });
    };
    const claim = await claimForJob(settings, wait === null ? null : { ...wait, onWaiting }, continued, [
      this.lock,
      this.file,
    ]);
    const gpus = claim.gpus.map(({ index, instance, uuid }) =>
      instance === null ? { index, uuid } : { index, instance, uuid },
    );
    await this.#untilTold(claim);
    this.begin({ gpus, until: limit === null ? null : Date.now() + limit.ms });
    return claim;
  }

  /** Waits until this job's number was told, where that comes after the claim. @throws ERR_ABORTED if it never will be; nothing is held */
  async #untilTold(claim: JobClaim): Promise<void> {
    const { teller } = this.request;
    if (teller == null) return;
    this.#tell({ isGranted: true });
    for (;;) {
      const isAlive = readProcessStat(teller.pid)?.startTicks === teller.startTicks;
      if (readJob(this.file)?.progress?.isTold) {
        this.#isTold = true;
        return;
      }
      if (isAlive) await pause(ANSWER_POLL_MS);
      else {
        claim.release();
        throw new GPUOwnerError('ERR_ABORTED', 'its number could not be told, so it was not started.');
      }
    }
  }

  #prune(): void {
    try {
      this.store.prune();
    } catch (error) {
      if (!(error instanceof GPUOwnerError)) throw error;
      warn(`old jobs can't be removed: ${error.message}`);
    }
  }

  /** Its command is about to start. */
  begin(more: Pick<JobProgress, 'gpus' | 'until'> = {}): void {
    this.#progress = { pid: process.pid };
    this.#tell({ started: Date.now(), ...more });
    this.#notify('started');
  }

  /** It ends without having started. @param code of the error, if one has ended it */
  fail(exitCode: number, message: string, code: ErrorCode | null = null): void {
    const failure = {
      exitCode,
      message: sanitizeLines(message),
      ended: Date.now(),
      isCancelled: code === null,
    };
    this.#tell({ failure: code === null ? failure : { ...failure, code } });
    // Otherwise its user is told by the one who waits for the answer.
    if (this.request.teller == null || this.#isTold) this.#notify('ended');
  }

  #notify(event: JobEvent): void {
    if (this.request.notify) startNotifier(this.store, this.request.id, event);
  }

  #tell(news: Partial<JobProgress>): void {
    const progress = { ...this.#progress, ...news };
    const isKnown = JSON.stringify(progress) === JSON.stringify(this.#progress);
    this.#progress = progress;
    if (isKnown) return;
    if (!writeBlock(this.file, 'progress', progress)) warn('the state of this job cannot be written');
  }
}
