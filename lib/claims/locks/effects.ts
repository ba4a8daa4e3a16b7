import { channel } from 'node:diagnostics_channel';
import { GPUOwnerError } from '../../errors.ts';
import { type Asked, type GPU, interruptedError, snapshot, snapshotSync } from '../../gpus/index.ts';
import { errno, native, OFD } from '../../native.ts';
import { readLink, sanitize, systemError, timerMs, type Wait } from '../../platform/index.ts';

/**
 * A step that a claim has to wait for. A claim is written once, as a generator that yields these; it is run either at once on
 * the main thread (a constructor can't wait otherwise) or without blocking the event loop.
 */
export type Effect =
  /** Look at the driver. */
  { kind: 'look'; asked?: Asked } | Wait;

/** A step that only a caller can wait for that doesn't block. */
export interface Awaiting {
  kind: 'await';
  begin: () => Promise<unknown>;
}

/** A computation that yields effects; `yield*` its parts. */
export type ClaimSteps<Result, Step = Effect> = Generator<Step, Result, unknown>;

/** The GPUs: all of them, or only those with these indices (the others as they were). */
export function* takeSnapshot(asked?: Asked): ClaimSteps<GPU[]> {
  return (yield asked === undefined ? { kind: 'look' } : { kind: 'look', asked }) as GPU[];
}

export function* awaiting<Result>(begin: () => Promise<Result>): ClaimSteps<Result, Awaiting> {
  return (yield { kind: 'await', begin }) as Result;
}

/** Runs it on this thread, blocking. A signal that the program handles ends every wait with ERR_ABORTED. */
export function runSync<Result>(claim: ClaimSteps<Result>): Result {
  // Also one that comes between two waits: its handler can't run before this returns.
  native().processWatchSignals();
  try {
    return drive(claim, performSync);
  } finally {
    native().processUnwatchSignals();
  }
}

function performSync(effect: Effect): unknown {
  switch (effect.kind) {
    case 'look':
      return snapshotSync(effect.asked);
    case 'lock': {
      const { descriptor, mode, byte, milliseconds } = effect;
      const error = native().lockWaitSync(descriptor, OFD, mode, byte, 1, milliseconds);
      if (error === errno.EINTR) throw interruptedError();
      return outcome(error, descriptor);
    }
    case 'sleep':
      if (!native().processSleep(effect.milliseconds)) throw interruptedError();
      return undefined;
  }
}

function drive<Result>(claim: ClaimSteps<Result>, perform: (effect: Effect) => unknown): Result {
  let step = claim.next();
  while (!step.done) {
    let value: unknown;
    try {
      value = perform(step.value);
    } catch (error) {
      step = claim.throw(error);
      continue;
    }
    step = claim.next(value);
  }
  return step.value;
}

/**
 * Runs it without blocking the event loop. The signal ends every wait with ERR_ABORTED.
 * @param blocksToLook looks at the driver on this thread: quicker by 3 ms in a process that does nothing else, as a thread's
 *   answer comes by libuv
 */
export async function runAsync<Result>(
  claim: ClaimSteps<Result, Effect | Awaiting>,
  signal?: AbortSignal,
  blocksToLook = false,
): Promise<Result> {
  let step = claim.next();
  while (!step.done) {
    let value: unknown;
    try {
      if (signal?.aborted) throw abortedError(signal);
      const effect = step.value;
      value =
        blocksToLook && effect.kind === 'look'
          ? snapshotSync(effect.asked)
          : await performAsync(effect, signal);
    } catch (error) {
      step = claim.throw(error);
      continue;
    }
    step = claim.next(value);
  }
  return step.value;
}

async function performAsync(effect: Effect | Awaiting, signal: AbortSignal | undefined): Promise<unknown> {
  switch (effect.kind) {
    case 'await':
      return effect.begin();
    case 'look':
      return snapshot(effect.asked);
    case 'lock':
      return lockAsync(effect, signal);
    case 'sleep':
      await sleepAsync(effect.milliseconds, signal);
      return undefined;
  }
}

function sleepAsync(milliseconds: number, signal: AbortSignal | undefined): Promise<void> {
  return untilEvent(signal, (resolve, endings) => {
    const timer = setTimeout(resolve, milliseconds);
    endings.push(() => clearTimeout(timer));
  });
}

/**
 * Waits for the first of some events.
 * @param begin begins to watch them, and adds to `endings` what ends that
 * @throws ERR_ABORTED by the signal
 */
export async function untilEvent(
  signal: AbortSignal | undefined,
  begin: (resolve: () => void, endings: (() => void)[], reject: (error: unknown) => void) => void,
): Promise<void> {
  const endings: (() => void)[] = [];
  try {
    await new Promise<void>((resolve, reject) => {
      if (signal?.aborted) return reject(abortedError(signal));
      const onAbort = () => reject(abortedError(signal));
      signal?.addEventListener('abort', onAbort, { once: true });
      endings.push(() => signal?.removeEventListener('abort', onAbort));
      begin(resolve, endings, reject);
    });
  } finally {
    for (const ending of endings) ending();
  }
}

async function lockAsync(
  { descriptor, mode, byte, milliseconds }: Wait & { kind: 'lock' },
  signal: AbortSignal | undefined,
): Promise<boolean> {
  const error = native().lockTry(descriptor, OFD, mode, byte, 1);
  if (error !== errno.EAGAIN) return outcome(error, descriptor);
  const result = await new Promise<number>((resolve) => {
    const wait = new (native().Wait)(descriptor, OFD, mode, byte, 1, (outcome) => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', cancel);
      resolve(outcome);
    });
    const cancel = () => wait.cancel();
    const timer = setTimeout(cancel, timerMs(milliseconds));
    signal?.addEventListener('abort', cancel);
  });
  if (result === errno.ECANCELED && signal?.aborted) throw abortedError(signal);
  return outcome(result, descriptor);
}

function abortedError(signal: AbortSignal | undefined): GPUOwnerError {
  return new GPUOwnerError('ERR_ABORTED', 'the claim was aborted by its AbortSignal; nothing is held.', {
    cause: signal?.reason,
  });
}

function outcome(error: number, descriptor: number): boolean {
  if (error === 0) return true;
  if (error === errno.EAGAIN || error === errno.ECANCELED) return false;
  const path = readLink(`/proc/self/fd/${descriptor}`) ?? 'a file of the lock directory';
  throw new GPUOwnerError(
    'ERR_LOCK_DIRECTORY',
    `can't lock ${sanitize(path, 500)}: ${systemError(error)}. Run \`gpu-owner doctor\`.`,
  );
}

/** The steps of a claim, in order. `lease` is reached once per GPU. */
export const TRACE_POINTS = [
  'start',
  'driver',
  'acquisition-lock',
  'chosen',
  'lease',
  'leased',
  'marked',
  'looked-again',
  'unlocked',
  'environment',
  'placeholder',
  'claimed',
] as const;
type TracePoint = (typeof TRACE_POINTS)[number];

const steps = channel('gpu-owner:step');
/** Read once: each look into the environment costs a microsecond. */
const stopAt = process.env.GPU_OWNER_STOP_AT;

/**
 * Marks that a claim has come this far. Subscribers of the diagnostics channel `gpu-owner:step` learn of it (benchmarks);
 * with `GPU_OWNER_STOP_AT=<step>` the process stops itself here (SIGSTOP), so that tests can kill a claimant at any point.
 */
export function traceStep(step: TracePoint): void {
  if (steps.hasSubscribers) steps.publish({ step, at: process.hrtime.bigint() });
  if (stopAt === step) process.kill(process.pid, 'SIGSTOP');
}
