/** Between SIGTERM and SIGKILL for a worker that is to end at once. */
const STOP_GRACE_MS = 2_000;

/** Ends a worker: after its current task (drain), or at once (stop). */
export class Shutdown {
  #drain = false;
  #stop = false;
  #current: { interrupt(grace: number): void } | null = null;
  #timer: NodeJS.Timeout | undefined;
  readonly #waits = new AbortController();
  readonly #atOnce = new AbortController();
  /** How long a current command may take when the worker drains, in ms; null: as long as it takes. */
  readonly #grace: number | null;
  readonly #endingGrace: number;

  /** @param endingGrace between SIGTERM and SIGKILL once that time is over, in ms */
  constructor(grace: number | null, endingGrace: number) {
    this.#grace = grace;
    this.#endingGrace = endingGrace;
  }

  /** Aborts with the first request: ends all waits. */
  get signal(): AbortSignal {
    return this.#waits.signal;
  }

  /** Aborts when it is to end at once. */
  get atOnce(): AbortSignal {
    return this.#atOnce.signal;
  }

  /** The strongest request so far; null: none. */
  get requested(): 'drained' | 'stopped' | null {
    if (this.#stop) return 'stopped';
    return this.#drain ? 'drained' : null;
  }

  drain(): void {
    if (this.requested !== null) return;
    this.#drain = true;
    this.#waits.abort(new Error('the worker ends'));
    this.#limit();
  }

  stop(): void {
    if (this.#stop) return;
    this.#stop = true;
    this.#waits.abort(new Error('the worker ends'));
    this.#atOnce.abort();
    this.#current?.interrupt(STOP_GRACE_MS);
  }

  /** Runs something that a request interrupts. */
  async during<Result>(
    running: { interrupt(grace: number): void },
    work: () => Promise<Result>,
  ): Promise<Result> {
    this.#current = running;
    if (this.#stop) running.interrupt(STOP_GRACE_MS);
    else if (this.#drain) this.#limit();
    try {
      return await work();
    } finally {
      this.#current = null;
      clearTimeout(this.#timer);
    }
  }

  #limit(): void {
    if (this.#grace === null) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#current?.interrupt(this.#endingGrace), this.#grace);
  }
}
