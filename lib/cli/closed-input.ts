import { fstatSync } from 'node:fs';
import type { WaitOptions } from '../claims/index.ts';
import { GPUOwnerError } from '../errors.ts';

/**
 * Ends a wait when standard input is closed: then the program that started `hold` has ended, and its request must leave the wait queue.
 * While GPUs are held, the keeper watches the input. A terminal, a file or /dev/null says nothing.
 */
export class ClosedInput {
  readonly #controller = new AbortController();
  #watching = false;

  /** Calls `claim` so that its wait ends with the input. @throws ERR_ABORTED then; nothing is held */
  async endsWaiting<Result>(
    wait: WaitOptions | null,
    claim: (wait: WaitOptions | null) => Promise<Result>,
  ): Promise<Result> {
    if (wait === null) return claim(null);
    try {
      return await claim({
        ...wait,
        signal: this.#controller.signal,
        onWaiting: (gpus) => {
          this.#watch();
          wait.onWaiting?.(gpus);
        },
      });
    } catch (error) {
      if (!this.#controller.signal.aborted) throw error;
      throw new GPUOwnerError(
        'ERR_ABORTED',
        'standard input was closed while waiting for GPUs; nothing is held.',
      );
    }
  }

  /** Only once there is something to wait for: a claim that comes at once needn't pay for Node's streams. */
  #watch(): void {
    if (this.#watching) return;
    this.#watching = true;
    const input = fstatSync(0);
    if (!input.isFIFO() && !input.isSocket()) return;
    const abort = () => this.#controller.abort();
    process.stdin.on('end', abort).on('error', abort).on('close', abort).resume();
  }
}
