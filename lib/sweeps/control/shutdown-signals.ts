import { constants } from 'node:os';
import { wasIgnored } from '../../jobs/index.ts';

const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
type Signal = (typeof SIGNALS)[number];

/**
 * Ends a run in three steps: the first signal drains the workers, the second stops them, the third ends the process. Signals that
 * were ignored when the process was started (`nohup`, a job in the background of a script) stay ignored.
 */
export class ShutdownSignals {
  readonly #drain = new AbortController();
  readonly #stop = new AbortController();
  readonly #handlers: [Signal, () => void][];
  #code: number | null = null;
  readonly #isBackground: boolean;

  /** @param isBackground the first signal counts as two */
  constructor(isBackground = false) {
    this.#isBackground = isBackground;
    this.#handlers = SIGNALS.map((signal) => {
      const number = constants.signals[signal];
      // Without a listener it would end the process.
      return [signal, wasIgnored(number) ? () => {} : () => this.#receive(number)];
    });
    for (const [signal, handler] of this.#handlers) process.on(signal, handler);
  }

  /** Aborted by the first signal. */
  get drain(): AbortSignal {
    return this.#drain.signal;
  }

  /** Aborted by the second signal. */
  get stop(): AbortSignal {
    return this.#stop.signal;
  }

  /** The exit code of a process that a signal has ended: 128 + the first signal's number; null: no signal came. */
  get exitCode(): number | null {
    return this.#code;
  }

  /** Drains and stops workers, and says so. */
  forwardTo(workers: { drain(): void; stop(): void }, tell: (text: string) => void): void {
    this.drain.addEventListener('abort', () => {
      tell('ending: running tasks finish, and no more are started; a second Ctrl-C stops and requeues them');
      workers.drain();
    });
    this.stop.addEventListener('abort', () => {
      tell('ending at once: running tasks are stopped and requeued');
      workers.stop();
    });
    if (this.drain.aborted) workers.drain();
    if (this.stop.aborted) workers.stop();
  }

  #receive(number: number): void {
    if (this.#code === null) {
      this.#code = 128 + number;
      this.#drain.abort();
      if (this.#isBackground) this.#stop.abort();
    } else if (!this.#stop.signal.aborted) {
      this.#stop.abort();
    } else {
      process.exit(this.#code);
    }
  }

  /** Gives signals back their default effect. */
  close(): void {
    for (const [signal, handler] of this.#handlers) process.off(signal, handler);
  }
}
