import { pause } from '../../platform/index.ts';
import { QueueRemovedError } from '../queue/index.ts';
import type { Stopping } from './stopping.ts';

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
