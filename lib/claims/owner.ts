import { driverLibraries, refuseNoObject } from '../config/index.ts';
import { hideMark } from '../conventions/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { type GPU, label, SHOWS_ONE_INSTANCE } from '../gpus/index.ts';
import { native, type PlaceholderFailure } from '../native.ts';
import { parseDuration, readLink, showValue, usageError, warnOnce } from '../platform/index.ts';
import { ActiveClaim } from './active-claim.ts';
import type { Claim } from './claim.ts';
import { usesCUDA } from './evaluate.ts';
import { awaiting, type ClaimSteps, type Effect, runAsync, runSync } from './locks/index.ts';
import {
  type AcquireOptions,
  type Binding,
  type ClaimOptions,
  type ClaimRequest,
  checkOptions,
  type Settings,
} from './options.ts';
import { placeholderError, startTimeout, tryCUDA } from './placeholder.ts';
import type { WaitingState } from './queued-waiter.ts';
import { noteEnergy } from './usage.ts';
import { claimAtOnce, claimWhenFree, endOf } from './wait.ts';

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
  /** The share of its memory that was claimed. null: all of it. */
  shareBytes: number | null;
}

/** How often long-lived owners look whether their lease files were removed, in ms. */
const FILE_CHECK_MS = 60_000;

/** Owners that hold GPUs, with the time of their claim. */
const living = new Map<GPUOwner, Date>();
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
  #active: ActiveClaim<Placeholder> | null;

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
    const active =
      (options as { [ADOPT]?: ActiveClaim<Placeholder> })[ADOPT] ??
      runSync(claimFor(prepare(options), claimAtOnce));
    this.#active = active;
    this.visibleDevices = active.variables.CUDA_VISIBLE_DEVICES;
    this.devices = inCudaOrder(active.gpus).map(({ index, instance, uuid, name, pciBusId, memory }) => ({
      index,
      instance,
      uuid,
      name,
      pciBusId,
      totalMemoryBytes: memory.totalBytes,
      shareBytes: active.claim.leases.find((lease) => lease.uuid === uuid)?.shareBytes ?? null,
    }));
    active.keepUsage();
    living.set(this, new Date());
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
    const settings = prepare(options, ['maxWait', 'signal']);
    const wait = {
      maxWait: maxWait === undefined ? null : parseDuration(maxWait, 'maxWait'),
      signal,
      onWaiting: warnOfOwn,
    };
    const end = endOf(wait.maxWait);
    const take = (request: ClaimRequest) => awaiting(() => claimWhenFree(request, wait, undefined, end));
    return adopt(await runAsync(claimFor(settings, take), signal));
  }

  /** Gives the GPUs back. CUDA must not be used on them afterwards. Does nothing the second time. */
  release(): void {
    const active = this.#active;
    if (active === null) return;
    this.#active = null;
    living.delete(this);
    active.release();
  }

  [Symbol.dispose](): void {
    this.release();
  }

  /** @internal */
  static noteEnd(): void {
    for (const owner of living.keys()) {
      const { marks = [], jobFile = null } = owner.#active?.claim ?? {};
      for (const mark of jobFile === null ? marks : [...marks, jobFile]) hideMark(mark);
      for (const lease of owner.#active?.claim.leases ?? []) lease.noteEnd();
    }
  }

  /** @internal */
  static checkFiles(): void {
    if (living.size === 0) unwatch();
    for (const owner of living.keys()) {
      for (const lease of owner.#active?.claim.leases ?? []) {
        if (lease.isIntact()) continue;
        warnOnce(
          `the lease file of ${lease.uuid} in ${lease.directory.path} was removed: others see that it is leased, but no longer by whom. ` +
            'Exclude that directory from programs that clean up files.',
        );
      }
    }
  }
}

/** Not in the class: if the class named itself, it would be called _GPUOwner in the bundle, and when one is printed. */
function adopt(active: ActiveClaim<Placeholder>): GPUOwner {
  return new GPUOwner({ [ADOPT]: active } as ClaimOptions);
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
    throw usageError('options are given twice; use (2), ({ count: 2 }) or (2, { … })');
  }
  if (second?.count !== undefined && second.count !== first) {
    throw usageError(`count is given twice, as ${first} and as ${showValue(second.count)}; leave one out`);
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
  throw usageError(`signal: ${showValue(signal)} is not an AbortSignal`);
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

/** A claim that waits for GPUs which this very process holds could wait for ever. */
function warnOfOwn({ wanted }: Pick<WaitingState, 'wanted'>): void {
  const held = [...living].flatMap(([{ devices }, since]) =>
    devices
      .filter(({ uuid }) => wanted.includes(uuid))
      .map((device) => `GPU ${label(device)} (claimed at ${timeOfDay(since)})`),
  );
  if (held.length === 0) return;
  warnOnce(
    `a claim waits, and this process itself holds ${held.join(', ')}: release() what it doesn't need.`,
  );
}

function prepare(options: ClaimOptions, alsoKnown: readonly string[] = []): Settings {
  if (!isMainThread()) {
    throw new GPUOwnerError(
      'ERR_WORKER_THREAD',
      'GPUs are claimed for the whole process: create the GPUOwner on the main thread, before starting worker threads.',
    );
  }
  const settings = checkOptions(options, alsoKnown);
  refuseInitialized();
  noteEnergy();
  // Only those without a placeholder of their own can do with GPUs that this process's CUDA doesn't show.
  if (binding === null || settings.placeholder === 'none') return settings;
  return { ...settings, request: Object.freeze({ ...settings.request, bound: binding }) };
}

/** Claims GPUs and shows them in this process. */
function claimFor<Step>(
  settings: Settings,
  take: (request: ClaimRequest) => ClaimSteps<Claim, Step>,
): ClaimSteps<ActiveClaim<Placeholder>, Step | Effect> {
  return ActiveClaim.take<Placeholder, Step>(
    settings,
    (conflict) => {
      // No other GPUs can be shown once CUDA has seen some.
      const isBound = settings.placeholder !== 'none' && binding !== null;
      if (conflict !== null && isBound) throw conflict;
      return take(settings.request);
    },
    {
      ownEnvironment: true,
      // biome-ignore lint/correctness/useYield: it blocks
      *startPlaceholder({ gpus, claim }) {
        return settings.placeholder === 'none' ? null : Placeholder.take(gpus, claim);
      },
    },
  );
}

/** CUDA counts in the order of the variable that it read, and that was the one of the first claim with a placeholder. */
function inCudaOrder(gpus: readonly GPU[]): GPU[] {
  const order = binding?.uuids;
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

/** Enough to be counted, too little to be missed. */
const PLACEHOLDER_BYTES = 1024 ** 2;

let binding: Binding | null = null;

/** @throws ERR_CUDA_INITIALIZED where CUDA has been initialised by something else: the claim could not reach it any longer */
function refuseInitialized(): void {
  if (binding !== null || !usesCUDA()) return;
  throw new GPUOwnerError(
    'ERR_CUDA_INITIALIZED',
    'CUDA was initialised in this process before the claim, and no longer reads CUDA_VISIBLE_DEVICES. Claim first, then load ' +
      'what uses CUDA (frameworks initialise it when they are first used), or start the program with `gpu-owner run`.',
  );
}

/** A CUDA context with a tiny allocation on each GPU, in this process. */
class Placeholder {
  readonly pid = process.pid;
  readonly triedBy: number | null;
  readonly #id: number;

  private constructor(id: number, triedBy: number | null) {
    this.#id = id;
    this.triedBy = triedBy;
  }

  isOn(): boolean {
    return true;
  }

  /**
   * Takes the GPUs. CUDA_VISIBLE_DEVICES must show them. Blocks for some 100 ms per GPU on real hardware. The first time, another
   * process tries them before: where CUDA fails in this one, this one can use no other GPU.
   * @throws ERR_PLACEHOLDER, ERR_CUDA_INITIALIZED
   */
  static take(gpus: readonly GPU[], { all, suspects }: Claim): Placeholder {
    const { failure, pid } =
      binding === null ? tryCUDA(gpus, all, startTimeout(gpus, suspects)) : { failure: null, pid: null };
    if (failure !== null && failure.code !== 0 && failure.stage !== 'load') throw failureOf(failure, gpus);
    const uuids = gpus.map(({ uuid }) => uuid);
    const taken = native().cudaTake(driverLibraries().cuda, uuids, PLACEHOLDER_BYTES);
    // Also where it failed half-way: what CUDA has once read, it keeps.
    if (binding === null && usesCUDA()) {
      const by = `the claim of GPU ${gpus.map(label).join(', ')} at ${timeOfDay(new Date())}`;
      binding = { uuids, by };
    }
    if (typeof taken !== 'number') {
      if (taken.stage === 'uuid') throw alreadyInitialized(taken.uuid);
      throw failureOf(taken, gpus);
    }
    if (native().cudaHidden(taken) > 0) warnOnce(SHOWS_ONE_INSTANCE);
    return new Placeholder(taken, pid);
  }

  end(): void {
    native().cudaRelease(this.#id);
  }
}

/** As 14:05:09. Not `toLocaleTimeString()`, whose first use takes 15 ms. */
function timeOfDay(time: Date): string {
  const parts = [time.getHours(), time.getMinutes(), time.getSeconds()];
  return parts.map((part) => String(part).padStart(2, '0')).join(':');
}

function failureOf(failure: PlaceholderFailure, gpus: readonly GPU[]): GPUOwnerError {
  return placeholderError(failure, gpus, "placeholder: 'none'");
}

function alreadyInitialized(uuid: string): GPUOwnerError {
  return new GPUOwnerError(
    'ERR_CUDA_INITIALIZED',
    `CUDA in this process doesn't show ${uuid}: it was initialised for other GPUs before the claim. Claim before anything uses CUDA.`,
  );
}
