import { pause, sanitize } from '../../platform/index.ts';
import { QueueRemovedError } from '../queue/index.ts';
import type { Stopping } from './shutdown.ts';
import { type ErrorCode, GPUOwnerError } from '../../errors.ts';

const FIRST_PAUSE = 250;
const LONGEST_PAUSE = 30_000;
/** How often somebody tries once more who is to end at once. */
const LAST_TRIES = 3;

/** Tries again what fails for a while (a queue on a full disk): a result that took hours must not be lost for that. */
export class Persistence {
  readonly #stopping: Stopping;
  readonly #tell: (message: string) => void;

  constructor(stopping: Stopping, tell: (message: string) => void) {
    this.#stopping = stopping;
    this.#tell = tell;
  }

  /** @throws what the operation throws, once the worker is to end at once; QueueRemovedError after half a minute */
  async get<Value>(operation: () => Promise<Value>): Promise<Value> {
    let tries = LAST_TRIES;
    for (let delay = FIRST_PAUSE; ; delay = Math.min(2 * delay, LONGEST_PAUSE)) {
      try {
        return await operation();
      } catch (error) {
        if (this.#stopping.requested === 'stopped' && --tries === 0) throw error;
        // Whoever has moved it may still notice and move it back.
        if (error instanceof QueueRemovedError && delay === LONGEST_PAUSE) throw error;
        const seconds = (delay / 1000).toFixed(delay < 1000 ? 2 : 0);
        this.#tell(`${(error as Error).message} (trying again in ${seconds} s)`);
        await pause(this.#stopping.requested === 'stopped' ? FIRST_PAUSE : delay, this.#stopping.atOnce);
      }
    }
  }
}

/** What may be over in a moment: a placeholder that was killed or had no memory left, a driver that is busy, a full disk. */
const PASSING: readonly ErrorCode[] = ['ERR_PLACEHOLDER', 'ERR_DRIVER', 'ERR_LOCK_DIRECTORY'];
/** Between two tries, in ms: half a minute in all. */
const PAUSES = [500, 1_000, 2_000, 4_000, 8_000, 16_000];

/** How a worker claims GPUs: one bad moment must not end it for good. */
export class Insistence {
  readonly #tell: (message: string) => void;

  constructor(tell: (message: string) => void) {
    this.#tell = tell;
  }

  /** @param signal ends the pauses @throws what the claim throws: at once what won't pass, the rest after seven tries */
  async get<Value>(claim: () => Promise<Value>, signal: AbortSignal): Promise<Value> {
    const started = performance.now();
    for (let tries = 1; ; tries++) {
      try {
        return await claim();
      } catch (error) {
        if (!(error instanceof GPUOwnerError) || !PASSING.includes(error.code) || signal.aborted) throw error;
        const rest = PAUSES[tries - 1];
        if (rest === undefined) throw givenUp(error, tries, performance.now() - started);
        this.#tell(`${error.message} (trying again in ${rest / 1000} s)`);
        await pause(rest, signal);
        signal.throwIfAborted();
      }
    }
  }
}

function givenUp(error: GPUOwnerError, tries: number, milliseconds: number): GPUOwnerError {
  const seconds = Math.round(milliseconds / 1000);
  const text = `claiming GPUs failed ${tries} times in ${seconds} s, the last time with: ${error.message}`;
  return new GPUOwnerError(error.code, sanitize(text, 2_000), { gpus: error.gpus, cause: error });
}
