import { timerMs } from '../../platform/index.ts';

/** Looks again and again while somebody wants to know, and tells those who wait for changes. Costs nothing while nobody does. */
export class Lookout {
  readonly #period: number;
  readonly #look: () => void;
  readonly #isNeeded: () => boolean;
  readonly #waiting = new Set<() => void>();
  #told = 0;
  #timer: NodeJS.Timeout | null = null;

  /** @param period in ms @param isNeeded whether to look although nobody waits; `adjust` says that it may have changed */
  constructor(period: number, look: () => void, isNeeded: () => boolean) {
    this.#period = period;
    this.#look = look;
    this.#isNeeded = isNeeded;
  }

  get isAwaited(): boolean {
    return this.#waiting.size > 0;
  }

  /** How often somebody has told. */
  get told(): number {
    return this.#told;
  }

  /** Until somebody tells, or has told more than `since`, the signal aborts, or so many ms have passed. */
  async wait(milliseconds: number, signal?: AbortSignal, since = this.#told): Promise<void> {
    if (since !== this.#told) return;
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

  /** Something has changed. */
  tell(): void {
    this.#told++;
    for (const resolve of this.#waiting) resolve();
  }

  adjust(): void {
    if (!this.isAwaited && !this.#isNeeded()) {
      this.#stop();
      return;
    }
    this.#timer ??= setInterval(() => this.#look(), this.#period);
    // Whoever waits has a timer of its own, and attempts have their commands.
    this.#timer.unref();
  }

  close(): void {
    this.tell();
    this.#stop();
  }

  #stop(): void {
    if (this.#timer !== null) clearInterval(this.#timer);
    this.#timer = null;
  }
}
