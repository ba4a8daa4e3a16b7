import { timerMs } from '../../platform/index.ts';

/** Polls while callers wait for changes, and wakes them. Costs nothing while none does. */
export class ChangeNotifier {
  readonly #period: number;
  readonly #poll: () => void;
  readonly #isNeeded: () => boolean;
  readonly #waiting = new Set<() => void>();
  #count = 0;
  #timer: NodeJS.Timeout | null = null;

  /** @param period in ms @param isNeeded whether to poll without a waiting caller; `adjust` says that this may have changed */
  constructor(period: number, poll: () => void, isNeeded: () => boolean) {
    this.#period = period;
    this.#poll = poll;
    this.#isNeeded = isNeeded;
  }

  get isAwaited(): boolean {
    return this.#waiting.size > 0;
  }

  /** How many changes were notified. */
  get count(): number {
    return this.#count;
  }

  /** Resolves at the next change, if `count` is above `since`, when the signal aborts, or after a timeout in ms. */
  async wait(milliseconds: number, signal?: AbortSignal, since = this.#count): Promise<void> {
    if (since !== this.#count) return;
    let resolve: () => void = () => {};
    const change = new Promise<void>((resolved) => {
      resolve = resolved;
    });
    const timer = setTimeout(resolve, timerMs(milliseconds));
    signal?.addEventListener('abort', resolve);
    this.#waiting.add(resolve);
    this.adjust();
    try {
      await change;
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener('abort', resolve);
      this.#waiting.delete(resolve);
      this.adjust();
    }
  }

  notify(): void {
    this.#count++;
    for (const resolve of this.#waiting) resolve();
  }

  adjust(): void {
    if (!this.isAwaited && !this.#isNeeded()) {
      this.#stop();
      return;
    }
    this.#timer ??= setInterval(() => this.#poll(), this.#period);
    // The timer must not keep the process alive: waits have timers of their own, and attempts have commands.
    this.#timer.unref();
  }

  close(): void {
    this.notify();
    this.#stop();
  }

  #stop(): void {
    if (this.#timer !== null) clearInterval(this.#timer);
    this.#timer = null;
  }
}
