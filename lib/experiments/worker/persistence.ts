import { QueueGone } from '../queue/gone.ts';
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

  /** @throws what the operation throws, once the worker is to end at once; QueueGone after half a minute */
  async get<Value>(operation: () => Promise<Value>): Promise<Value> {
    let tries = LAST_TRIES;
    for (let pause = FIRST_PAUSE; ; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
      try {
        return await operation();
      } catch (error) {
        if (this.#stopping.requested === 'stopped' && --tries === 0) throw error;
        // Whoever has moved it may still notice and move it back.
        if (error instanceof QueueGone && pause === LONGEST_PAUSE) throw error;
        const seconds = (pause / 1000).toFixed(pause < 1000 ? 2 : 0);
        this.#tell(`${(error as Error).message} (trying again in ${seconds} s)`);
        await this.#sleep(this.#stopping.requested === 'stopped' ? FIRST_PAUSE : pause);
      }
    }
  }

  #sleep(milliseconds: number): Promise<void> {
    const { atOnce } = this.#stopping;
    return new Promise((resolve) => {
      const end = () => {
        clearTimeout(timer);
        atOnce.removeEventListener('abort', end);
        resolve();
      };
      const timer = setTimeout(end, milliseconds);
      atOnce.addEventListener('abort', end);
    });
  }
}
