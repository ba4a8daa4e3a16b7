import { refuseNoObject } from '../config/index.ts';
import { hideMark } from '../conventions/index.ts';
import { GPUOwnerError } from '../errors.ts';
import type { GPU } from '../gpus/index.ts';
import { applyEnvironment, restoreEnvironment, type ShownGPUs } from '../gpus/index.ts';
import { now, parseDuration, readLink, showValue, warnOnce } from '../platform/index.ts';
import { type Claim, type Refusal, releaseClaim } from './claim.ts';
import { findConflictingProcesses } from './conflicting-processes.ts';
import { type Effectful, runAsync, runSync, takeSnapshot } from './effects.ts';
import { findOverwrittenMarks } from './interop-context.ts';
import { type AcquireOptions, type ClaimOptions, checkOptions, type Settings } from './options.ts';
import { currentBinding, Placeholder, refuseInitialized } from './placeholder.ts';
import { reached } from './trace-points.ts';
import { claimAtOnce, claimWhenFree } from './wait.ts';

/** A GPU that is owned. */
export interface Device {
  /** NVML's index (PCI bus order), as in `nvidia-smi`. In CUDA, this process's GPUs count from 0 in the order of `devices`. */
  index: number;
  /** The number of a MIG instance on its GPU. null: the whole GPU. */
  instance: number | null;
  uuid: string;
  name: string;
  pciBusId: string | null;
  totalMemoryBytes: number | null;
}

/** The parts of an owner, while it is being put together. */
interface Holding {
  claim: Claim;
  share: ShownGPUs;
  visibleDevices: string;
  placeholder: Placeholder | null;
}

/** How often long-lived owners look whether somebody has removed their lease files, in ms. */
const FILE_CHECK_MS = 60_000;

/** A look at the GPUs that is no older, in ms, needs no other one. */
const FRESH_SNAPSHOT_MS = 20;

/** How often a claim is tried again when somebody who doesn't claim came in between. */
const MAX_CONFLICTS = 5;

const living = new Set<GPUOwner>();
let watching: NodeJS.Timeout | undefined;
const ADOPT = Symbol('adopt');

/**
 * Exclusive use of GPUs for this process, until it is released or the process ends, however that comes about. Create it
 * before anything initialises CUDA: it sets CUDA_VISIBLE_DEVICES.
 *
 * @example
 * const owner = new GPUOwner(2);       // two free GPUs now, or an error that says why not
 * console.log(owner.visibleDevices);   // GPU-…,GPU-…
 */
export class GPUOwner {
  /** The GPUs, in the order in which CUDA counts them in this process. */
  readonly devices: readonly Device[];
  /** The value that CUDA_VISIBLE_DEVICES was set to. */
  readonly visibleDevices: string;
  #holding: Holding | null;

  /**
   * Claims now, without waiting for GPUs to become free.
   *
   * @throws {GPUOwnerError} ERR_GPU_UNAVAILABLE (`gpus` has the reason for each), ERR_INVALID_ARGUMENT, ERR_CONFIGURATION,
   *   ERR_NO_DRIVER, ERR_DRIVER, ERR_CUDA_INITIALIZED, ERR_PLACEHOLDER, ERR_LOCK_DIRECTORY, ERR_WORKER_THREAD,
   *   ERR_UNSUPPORTED_PLATFORM; ERR_ABORTED when a signal arrived that the program handles. Nothing is held then.
   */
  constructor(options?: ClaimOptions);
  constructor(count: number, options?: ClaimOptions);
  constructor(first: number | ClaimOptions = {}, second?: ClaimOptions) {
    const options = optionsOf(first, second);
    const holding = (options as { [ADOPT]?: Holding })[ADOPT] ?? claimNow(options);
    this.#holding = holding;
    this.visibleDevices = holding.visibleDevices;
    this.devices = inCudaOrder(holding.claim.gpus).map(
      ({ index, instance, uuid, name, pciBusId, memory }) => ({
        index,
        instance,
        uuid,
        name,
        pciBusId,
        totalMemoryBytes: memory.totalBytes,
      }),
    );
    living.add(this);
    watch();
  }

  /**
   * Claims, waiting until it can be done.
   *
   * @throws {GPUOwnerError} what the constructor throws, ERR_TIMEOUT after `maxWait`, ERR_ABORTED by `signal`
   */
  static async acquire(options?: AcquireOptions): Promise<GPUOwner>;
  static async acquire(count: number, options?: AcquireOptions): Promise<GPUOwner>;
  static async acquire(first: number | AcquireOptions = {}, second?: AcquireOptions): Promise<GPUOwner> {
    const options = optionsOf(first, second);
    const { maxWait, signal } = options;
    checkSignal(signal);
    const { settings, attempting } = prepare(options, ['maxWait', 'signal']);
    const limits = { maxWait: maxWait === undefined ? null : parseDuration(maxWait, 'maxWait'), signal };
    for (let intrusions = 0; ; intrusions++) {
      const granted = await claimWhenFree(attempting, limits);
      const held = await runAsync(hold(granted, settings), signal);
      if (!(held instanceof GPUOwnerError)) return adopt(held);
      if (intrusions === MAX_CONFLICTS || currentBinding() !== null) throw held;
    }
  }

  /** Gives the GPUs back. CUDA must not be used on them afterwards. Does nothing the second time. */
  release(): void {
    const holding = this.#holding;
    if (holding === null) return;
    this.#holding = null;
    living.delete(this);
    letGo(holding);
  }

  [Symbol.dispose](): void {
    this.release();
  }

  /** @internal */
  static noteEnd(): void {
    for (const owner of living) {
      for (const mark of owner.#holding?.claim.marks ?? []) hideMark(mark);
      for (const lease of owner.#holding?.claim.leases ?? []) lease.noteEnd();
    }
  }

  /** @internal */
  static checkFiles(): void {
    if (living.size === 0) unwatch();
    for (const owner of living) {
      for (const lease of owner.#holding?.claim.leases ?? []) {
        if (lease.isIntact()) continue;
        warnOnce(
          `somebody removed the lease file of ${lease.uuid} in ${lease.directory.path}: others no longer see this process's claim. ` +
            'Exclude that directory from programs that clean up files.',
        );
      }
    }
  }
}

/** Not in the class: it would be called _GPUOwner in the bundle, and by whoever prints one, if it spoke of itself. */
function adopt(holding: Holding): GPUOwner {
  return new GPUOwner({ [ADOPT]: holding } as ClaimOptions);
}

/** How many GPUs, options, or both. */
function optionsOf<Options extends ClaimOptions>(
  first: number | Options,
  second: Options | undefined,
): Options {
  if (second !== undefined) refuseNoObject(second);
  if (typeof first !== 'number') {
    refuseNoObject(first, 'a number of GPUs (2), or ');
    if (second === undefined) return first;
    throw new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      'options are given twice; use (2), ({ count: 2 }) or (2, { … })',
    );
  }
  if (second?.count !== undefined && second.count !== first) {
    throw new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      `count is given twice, as ${first} and as ${showValue(second.count)}; leave one out`,
    );
  }
  return { ...second, count: first } as Options;
}

function checkSignal(signal: AbortSignal | undefined): void {
  // Not `instanceof`: test environments and libraries bring their own.
  if (
    signal === undefined ||
    (typeof signal?.aborted === 'boolean' && typeof signal.addEventListener === 'function')
  )
    return;
  throw new GPUOwnerError('ERR_INVALID_ARGUMENT', `signal: ${showValue(signal)} is not an AbortSignal`);
}

/** From the first claim on. Not ended by the last release: who claims again and again needn't pay for it each time. */
function watch(): void {
  if (watching !== undefined) return;
  watching = setInterval(GPUOwner.checkFiles, FILE_CHECK_MS).unref();
  process.prependListener('exit', GPUOwner.noteEnd); // before the locks may be closed, see lib/native.ts
}

function unwatch(): void {
  clearInterval(watching);
  watching = undefined;
  process.off('exit', GPUOwner.noteEnd);
}

function prepare(options: ClaimOptions, alsoKnown: readonly string[] = []) {
  if (!isMainThread()) {
    throw new GPUOwnerError(
      'ERR_WORKER_THREAD',
      'GPUs are claimed for the whole process: create the GPUOwner on the main thread, before starting worker threads.',
    );
  }
  const settings = checkOptions(options, alsoKnown);
  refuseInitialized();
  const binding = currentBinding();
  // Only those without a placeholder of their own can do with GPUs that this process's CUDA doesn't show.
  if (binding !== null && settings.placeholder !== 'none') settings.request.bound = binding;
  const { request, configuration } = settings;
  return { settings, attempting: { request, configuredDirectory: configuration.lockDirectory } };
}

function claimNow(options: ClaimOptions): Holding {
  const { settings, attempting } = prepare(options);
  for (let intrusions = 0; ; intrusions++) {
    const result: Claim | Refusal = runSync(claimAtOnce(attempting.request, attempting.configuredDirectory));
    if (!result.granted) throw result.error;
    const held = runSync(hold(result, settings));
    if (!(held instanceof GPUOwnerError)) return held;
    if (intrusions === MAX_CONFLICTS || currentBinding() !== null) throw held;
  }
}

/** Shows the claimed GPUs to CUDA and to everybody; on failure all is given back. An intruder is returned, not thrown. */
function* hold(granted: Claim, settings: Settings): Effectful<Holding | GPUOwnerError> {
  const { gpus, all, job } = granted;
  const holding: Partial<Holding> = { claim: granted, placeholder: null };
  try {
    const share: ShownGPUs = { gpus, all, as: settings.visibleDevices };
    holding.share = share; // first: a failure below must undo what it has done
    holding.visibleDevices = applyEnvironment(share);
    reached('environment');
    if (settings.placeholder !== 'none') holding.placeholder = Placeholder.take(gpus);
    reached('placeholder');
    granted.entry.leave(); // now others see it on the GPUs
    const indices = gpus.map(({ index }) => index);
    const overwritten = yield* findOverwrittenMarks(granted.marks, gpus);
    const past = now() - granted.seen;
    // Without a placeholder nothing took time since the look under the lock, as a rule: then that was the last one.
    const last =
      settings.placeholder === 'none' && past < FRESH_SNAPSHOT_MS ? null : yield* takeSnapshot(indices);
    const { allowProcesses, force } = settings.request.criteria;
    const intruders =
      overwritten ??
      (last === null || allowProcesses || force || job !== null
        ? null
        : findConflictingProcesses(
            gpus,
            last.filter(({ index }) => indices.includes(index)),
            () => (settings.placeholder === 'none' ? [] : [process.pid]),
          ));
    if (intruders !== null) {
      letGo(holding);
      return intruders;
    }
    reached('claimed');
    return holding as Holding;
  } catch (error) {
    letGo(holding);
    throw error;
  }
}

function letGo({ claim, share, placeholder }: Partial<Holding>): void {
  placeholder?.release();
  if (share !== undefined) restoreEnvironment(share);
  if (claim !== undefined) releaseClaim(claim);
}

/** CUDA counts in the order of the variable that it read, and that was the one of the first claim with a placeholder. */
function inCudaOrder(gpus: readonly GPU[]): GPU[] {
  const order = currentBinding()?.uuids;
  if (order === undefined) return [...gpus];
  return [...gpus].sort((a, b) => order.indexOf(a.uuid) - order.indexOf(b.uuid));
}

let known: boolean | undefined;

/**
 * Whether this is Node.js's main thread. That is the process's first thread, unless another program has Node.js in it; only
 * then, and in worker threads, node:worker_threads is asked: it takes milliseconds to load.
 */
function isMainThread(): boolean {
  known ??= isFirstThread() || process.getBuiltinModule('node:worker_threads').isMainThread;
  return known;
}

function isFirstThread(): boolean {
  return /^(\d+)\/task\/\1$/.test(readLink('/proc/thread-self') ?? '');
}
