// The first process of a background job, until the keeper takes over: it announces the job, leaves its caller's session, waits
// for other jobs, and claims GPUs.
import { closeSync, readlinkSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import type { Settings, Slot, WaitOptions } from '../claims/index.ts';
import { CommandEnd, type ErrorCode, EXIT_CODES, GPUOwnerError } from '../errors.ts';
import { describeHidden } from '../gpus/index.ts';
import { native, nativeFile } from '../native.ts';
import { now, sanitize, setVariables, sleep, systemError, warn } from '../platform/index.ts';
import type { IdleLimit } from './idle-limit.ts';
import { INHERITED, inheritable, KEEPER, parseInherited, withoutDescriptors } from './inherited.ts';
import { isAhead, jobBefore } from './job-parts.ts';
import {
  isAlive,
  type JobElsewhere,
  type JobProgress,
  type JobRequest,
  readLimit,
  writeBlock,
} from './job-record.ts';
import { describeDependencies, describeJob, obstacleOf, openOutput, takeSlot } from './job-request.ts';
import { EX_TERMINATED } from './job-state.ts';
import { JobStore, jobLimits, type MadeJob, OUTPUT } from './job-store.ts';
import {
  becomeKeeper,
  becomeKeeperWithoutGPUs,
  claimForJob,
  type JobClaim,
  type KeptCommand,
} from './keeper.ts';
import type { BackgroundJob } from './keeper-options.ts';
import { scopeWords } from './login-session.ts';
import { pruneMoves, startHere } from './move.ts';
import { type JobEvent, notifierOf, startNotifier } from './notification.ts';
import { becomePlaced, type JobStart, leaveSubmitter, type Start } from './start.ts';

/** The parts of a job that the command line has. */
export interface JobHooks {
  /** Tells the number of a job that is about to start. The job won't start if that can't be told: `giveUp` removes it. */
  announce: (id: number, giveUp: () => void) => void;
  /**
   * Waits for the jobs of other machines that a job is to follow.
   * @param tell why it waits for them, in a line; null: they are what it waits for @returns why it can't start; null: it can
   */
  followElsewhere: (
    jobs: readonly JobElsewhere[],
    tell: (reason: string | null) => void,
  ) => Promise<string | null>;
}

/** A command that a job runs on GPUs. */
type JobCommand = Omit<KeptCommand, 'start' | 'isRequeued' | 'job'> & { settings: Settings };

const MAX_FAILURE_LENGTH = 1_000;

/** The reasons for several GPUs are on lines of their own. */
function sanitizeLines(text: string): string {
  return text.slice(0, MAX_FAILURE_LENGTH).replace(/\S.*/g, (line) => sanitize(line, MAX_FAILURE_LENGTH));
}

/** How often it is looked whether a job has ended whose lock can't be waited for. */
const FOLLOW_MS = 250;
/** How often the clock is read before the job's time, in ms. */
const MAX_CLOCK_MS = 60_000;

/** The first process of a job: claims its GPUs, and says how it stands. */
export class JobProcess implements BackgroundJob {
  readonly store: JobStore;
  readonly #hooks: JobHooks;
  /** Without a submitter once the job is announced. */
  #start: JobStart;
  /** Descriptors that the submitter's caller had open. */
  #foreign: readonly number[] = [];
  #output = -1;
  #slot: Slot | null = null;
  #progress: JobProgress = { pid: process.pid };
  /** The job's tag in the wait queue, as text. */
  #order: string | undefined;
  #isPruned = false;

  private constructor(store: JobStore, start: JobStart, hooks: JobHooks) {
    this.store = store;
    this.#start = start;
    // A user whose command fails again and again doesn't keep the same turn.
    this.#order = start.hasFailed ? undefined : start.order;
    this.#hooks = hooks;
    setVariables({
      // Descriptors of the submitter are closed before the job starts, and aren't for its command.
      [INHERITED]: withoutDescriptors(process.env[INHERITED] ?? ''),
      // Output goes to a file, where Python would hold it back: `logs -f` and `top` would show nothing.
      PYTHONUNBUFFERED: process.env.PYTHONUNBUFFERED ?? '1',
    });
  }

  /** The process of a job that it has made itself. */
  static first(store: JobStore, made: MadeJob, start: Start, hooks: JobHooks): JobProcess {
    const foreign = parseInherited(process.env[INHERITED]).descriptors;
    const { request, lock, file } = made;
    const inherited = { request, lock: inheritable(lock), file: inheritable(file) };
    for (const descriptor of [lock, file]) closeSync(descriptor);
    const job = new JobProcess(store, { ...start, job: inherited }, hooks);
    job.#foreign = foreign;
    return job;
  }

  /** The process of a job that another process has made. */
  static next(start: JobStart, hooks: JobHooks): JobProcess {
    const store = start.submitter === null ? JobStore.open() : storeOf(start.job);
    return new JobProcess(store, start, hooks);
  }

  /**
   * Runs the job, from where the process before this one has stopped: leaves the caller, waits for the jobs that it is to follow, claims
   * GPUs, and becomes the keeper of the command.
   * @param asked checks what the user asked for, with the time limit that the job was given since
   * @throws what has ended the job, which is noted
   */
  async run(
    asked: (laterMs: number | null) => JobCommand,
    wait: (WaitOptions & { end(): void }) | null,
  ): Promise<never> {
    try {
      await this.#begin();
      const { settings, ...command } = asked(readLimit(this.file));
      const claim = await this.#claim(settings, wait).finally(() => wait?.end());
      // Whoever extends the job from now on sees that it has started, and tells the keeper.
      const ms = readLimit(this.file);
      const limit = ms === null ? command.limit : command.limit && { ...command.limit, ms };
      becomeKeeper(claim, { ...command, limit, start: this.#start, isRequeued: true, job: this });
    } catch (error) {
      throw this.#failed(error);
    }
  }

  /** As {@link run}, of an array or a sweep, which has no GPUs of its own: its controller claims them. */
  async runWithoutGPUs(): Promise<never> {
    try {
      await this.#begin();
    } catch (error) {
      throw this.#failed(error);
    }
    this.#tellStart();
    becomeKeeperWithoutGPUs(this);
  }

  /** @throws CommandEnd if a job that must end well didn't */
  async #begin(): Promise<void> {
    this.#detach();
    if (this.isRestarted) return;
    await this.#followed();
    const { elsewhere = [] } = this.request;
    const others = describeDependencies(this.request);
    const tell = (reason: string | null) =>
      this.#tell({ reason: reason === null ? others : `${others} (${reason})` });
    const why =
      obstacleOf(this.store, this.#before) ??
      (elsewhere.length > 0 ? await this.#hooks.followElsewhere(elsewhere, tell) : null);
    if (why === null) return;
    this.#fail(EX_TERMINATED, why);
    throw new CommandEnd(new GPUOwnerError('ERR_ABORTED', `cancelled: ${why}`), EX_TERMINATED);
  }

  #failed(error: unknown): unknown {
    if (!(error instanceof GPUOwnerError)) return error;
    const hasMoved = error.code === 'ERR_ABORTED';
    this.#fail(EXIT_CODES[error.code], error.message, hasMoved ? null : error.code);
    return error;
  }

  get request(): JobRequest {
    return this.#start.job.request;
  }

  get lock(): number {
    return this.#start.job.lock;
  }

  get file(): number {
    return this.#start.job.file;
  }

  /** How this process was started, and what the next one is to know. */
  get start(): JobStart {
    return this.#start;
  }

  /** Whether the command was preempted, or had failed, before: then the job has its place in the queue, and has waited for other jobs. */
  get isRestarted(): boolean {
    return this.#start.preemptions + this.#start.failures > 0;
  }

  /** Only the output that is kept in the job's own directory is cut. */
  get logLimit(): number | null {
    const own = join(this.store.directoryOf(this.request.id), OUTPUT);
    return this.request.output === own ? jobLimits().jobLogSize : null;
  }

  idleNotifier(limit: IdleLimit | null): readonly string[] {
    const isTold = this.request.notify || limit?.notify === true;
    return isTold && limit !== null ? notifierOf(this.store, this.request.id, 'idle') : [];
  }

  get afterwards(): readonly string[] {
    return this.request.notify ? notifierOf(this.store, this.request.id, 'ended') : [];
  }

  /** For others to read of its claim. */
  get about() {
    return describeJob(this.request);
  }

  /** Resolves when the jobs that it is to follow have ended, also where the file of locks that are waited for was removed. */
  async #followed(): Promise<void> {
    while (this.#before.some((each) => isAhead(this.store, each))) await sleep(FOLLOW_MS);
    // The clock may have been set since the native program began to wait.
    for (let remainingMs = this.#untilStart; remainingMs > 0; remainingMs = this.#untilStart)
      await sleep(Math.min(remainingMs, MAX_CLOCK_MS));
  }

  /** The jobs that it follows; parts of an array follow parts by themselves. */
  get #before(): JobRequest['after'] {
    return this.request.after.filter(({ samePart }) => !samePart);
  }

  /**
   * Lets the job be seen and leaves the submitter, unless its GPUs decide whether there is a job. May become another program, which starts
   * this one again. @throws what prevents the start
   */
  #detach(): void {
    const { id } = this.request;
    if (this.#start.submitter === null) return;
    this.#output = openOutput(this.request, this.store.directoryOf(id));
    const scope = this.#start.kind === 'placed' ? [] : scopeWords(id);
    const { words, descriptors } = this.#waitForOthers();
    this.#tell({ reason: this.#isFree ? 'starting' : describeDependencies(this.request) });
    if (!this.#needsGPUsFirst) {
      // Jobs are served in the order of their numbers, however long each takes to start.
      if (this.#isFree) this.#slot = takeSlot(this.request);
      this.#order = this.#slot?.kept.order;
      this.#leaveSubmitter();
    }
    const [first, ...others] = [...scope, ...words];
    if (first !== undefined) becomePlaced(this.#start, [first, ...others], descriptors);
    for (const descriptor of descriptors) closeSync(descriptor);
  }

  /** Whether its number is printed only with its GPUs: it doesn't wait for any, and follows no unfinished job. */
  get #needsGPUsFirst(): boolean {
    const { wanted, count } = this.request;
    return wanted == null && count > 0 && this.#isFree;
  }

  /** Whether it follows no other job, and its time has come. */
  get #isFree(): boolean {
    const { after, elsewhere = [] } = this.request;
    return after.length === 0 && elsewhere.length === 0 && this.#untilStart <= 0;
  }

  /** How long it may not start yet, in ms. */
  get #untilStart(): number {
    return (this.request.notBefore ?? 0) - Date.now();
  }

  /** @param giveBack releases what is held, if the job can't be told */
  #leaveSubmitter(giveBack = () => {}): void {
    const { id } = this.request;
    this.store.announce(id);
    // The array's number was told.
    if (this.request.part === undefined) {
      this.#hooks.announce(id, () => {
        giveBack();
        this.store.remove(id);
      });
    }
    const descriptors = [this.lock, this.file, ...(this.#slot === null ? [] : [this.#slot.kept.descriptor])];
    const error = native().processDetach(this.#output, descriptors, this.#foreign);
    if (error !== 0)
      throw new GPUOwnerError('ERR_INTERNAL', `a job can't leave this session: ${systemError(-error)}.`);
    closeSync(this.#output);
    leaveSubmitter(this.#start);
    this.#start = { ...this.#start, submitter: null };
  }

  /** The words before a program that is to wait for the jobs ahead, and for its time. */
  #waitForOthers(): { words: string[]; descriptors: number[] } {
    const locks: string[] = [];
    const files = new Map<string, number>();
    for (const before of this.#before) {
      const id = jobBefore(this.store, before);
      const other = id === null ? null : this.store.read(id);
      if (other === null || !isAlive(other)) continue;
      const { path, byte } = other.request.lock;
      const descriptor = files.get(path) ?? native().fileOpenForProbe(path);
      if (descriptor < 0) continue; // `followed` looks itself
      files.set(path, descriptor);
      locks.push('--lock', `${descriptor}:${byte}`);
    }
    const wait = (options: readonly string[]) => [nativeFile(KEEPER), 'wait', ...options, '--'];
    const remainingMs = this.#untilStart;
    const words = [
      ...(locks.length === 0 ? [] : wait(['--locks', 'all', ...locks])),
      ...(remainingMs <= 0 ? [] : wait(['--until', String(Math.ceil(now() + remainingMs))])),
    ];
    return { words, descriptors: [...files.values()] };
  }

  /** @throws as {@link claimForJob} */
  async #claim(settings: Settings, wait: WaitOptions | null): Promise<JobClaim> {
    if (this.#start.kind === 'woken') this.#isPruned = true;
    else this.#tell({ reason: 'starting' });
    this.#handOverSlot();
    const onWaiting: WaitOptions['onWaiting'] = (state) => {
      wait?.onWaiting?.(state);
      const reason = state.position === null ? 'waiting' : 'waiting for GPUs';
      this.#tell({ reason, hidden: describeHidden(state.gpus) });
    };
    const claiming = claimForJob(
      this.#ownSettings(settings),
      wait === null ? null : { ...wait, onWaiting },
      this.#start,
    );
    // While the driver answers, this process has nothing else to do.
    setImmediate(() => this.#prune());
    const claim = await claiming;
    this.#prune();
    const gpus = claim.gpus.map(({ index, instance, uuid, parent }) =>
      instance === null ? { index, uuid } : { index, instance, uuid, parent },
    );
    if (this.#start.submitter !== null) this.#leaveSubmitter(() => claim.release());
    await this.#startHere().catch((error: unknown) => {
      claim.release();
      throw error;
    });
    this.#tellStart({ gpus });
    return claim;
  }

  /** As others read them, and in the place in the queue that the job had before it was preempted. */
  #ownSettings(settings: Settings): Settings {
    const order = this.isRestarted && this.#order !== undefined ? { order: this.#order } : {};
    return { ...settings, request: { ...settings.request, about: this.about, ...order } };
  }

  /** @throws ERR_ABORTED if the job has moved to another machine */
  async #startHere(): Promise<void> {
    const { move } = this.request;
    if (move === undefined || this.isRestarted) return;
    if (move.isHeld) this.#tell({ reason: 'has its GPUs, until its move to this machine is confirmed' });
    await startHere(this.store, move);
  }

  /** Leaves the slot to the claim. */
  #handOverSlot(): void {
    const slot = this.#slot;
    if (slot === null) return;
    this.#slot = null;
    const inherited = { ...slot.kept, descriptor: inheritable(slot.kept.descriptor) };
    native().processCloseOnExec(inherited.descriptor);
    slot.leave();
    this.#start = { ...this.#start, wait: { slot: inherited, rest: null } };
  }

  #prune(): void {
    if (this.#isPruned) return;
    this.#isPruned = true;
    try {
      this.store.prune();
      pruneMoves(this.store, jobLimits().jobsKeptFor);
    } catch (error) {
      if (!(error instanceof GPUOwnerError)) throw error;
      warn(`old jobs can't be removed: ${error.message}`);
    }
  }

  /** Notes that the command is about to start. */
  #tellStart(more: Pick<JobProgress, 'gpus'> = {}): void {
    this.#progress = { pid: process.pid };
    this.#tell({ started: Date.now(), ...more });
    if (!this.isRestarted) this.#notify('started');
  }

  /** Notes that the job ends without having started. @param code of the error, if one has ended it */
  #fail(exitCode: number, message: string, code: ErrorCode | null = null): void {
    if (this.#start.submitter !== null) {
      // The submitter's user reads why.
      if (this.request.part === undefined) {
        this.store.remove(this.request.id);
        return;
      }
      this.store.announce(this.request.id);
    }
    const failure = {
      exitCode,
      message: sanitizeLines(message),
      ended: Date.now(),
      isCancelled: code === null,
    };
    this.#tell({ failure: code === null ? failure : { ...failure, code } });
    // The end of a job that has moved away is that in its last place.
    if (this.request.move === undefined || code !== null) this.#notify('ended');
  }

  #notify(event: JobEvent): void {
    if (this.request.notify) startNotifier(this.store, this.request.id, event);
  }

  #tell(news: Partial<JobProgress>): void {
    const order = this.#order === undefined ? {} : { order: this.#order };
    const progress = { ...this.#progress, ...order, ...news };
    const isKnown = JSON.stringify(progress) === JSON.stringify(this.#progress);
    this.#progress = progress;
    if (isKnown) return;
    if (!writeBlock(this.file, 'progress', progress)) warn('the state of this job cannot be written');
  }
}

/** The place of an open job, wherever the environment says that jobs are. */
function storeOf({ request, file }: MadeJob): JobStore {
  const directory = dirname(readlinkSync(`/proc/self/fd/${file}`));
  return basename(directory) === String(request.id) ? JobStore.around(directory) : JobStore.open();
}
