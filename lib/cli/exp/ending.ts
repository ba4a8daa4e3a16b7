import { constants } from 'node:os';
import { INHERITED, parseInherited } from '../../jobs/index.ts';

const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
type Signal = (typeof SIGNALS)[number];

/**
 * The first signal that ends a process asks for an orderly end, the second for one at once; the third ends the process as it is.
 * Those that were ignored when it was started (`nohup`, a job in the background of a script) stay ignored.
 */
export class Ending {
  readonly #asked = new AbortController();
  readonly #atOnce = new AbortController();
  readonly #handlers: [Signal, () => void][];
  #code: number | null = null;

  constructor() {
    const ignored = BigInt(`0x${parseInherited(process.env[INHERITED]).sigign ?? '0'}`);
    this.#handlers = SIGNALS.map((signal) => {
      const number = constants.signals[signal];
      const isIgnored = ((ignored >> BigInt(number - 1)) & 1n) === 1n;
      // Node.js has reset it: without a listener it would end the process.
      return [signal, isIgnored ? () => {} : () => this.#receive(number)];
    });
    for (const [signal, handler] of this.#handlers) process.on(signal, handler);
  }

  /** Aborted by the first. */
  get asked(): AbortSignal {
    return this.#asked.signal;
  }

  /** Aborted by the second. */
  get atOnce(): AbortSignal {
    return this.#atOnce.signal;
  }

  /** What a process that was ended so exits with: 128 + the first signal's number; null: nobody has asked. */
  get code(): number | null {
    return this.#code;
  }

  /** Workers end as they are asked to. @param tell says so */
  obey(workers: { drain(): void; stop(): void }, tell: (text: string) => void): void {
    this.asked.addEventListener('abort', () => {
      tell(
        'ending: no task is started any more, those that run are finished; Ctrl-C once more ends them at once',
      );
      workers.drain();
    });
    this.atOnce.addEventListener('abort', () => {
      tell('ending at once: tasks that run are ended and given back');
      workers.stop();
    });
    if (this.asked.aborted) workers.drain();
    if (this.atOnce.aborted) workers.stop();
  }

  #receive(number: number): void {
    if (this.#code === null) {
      this.#code = 128 + number;
      this.#asked.abort();
    } else if (!this.#atOnce.signal.aborted) {
      this.#atOnce.abort();
    } else {
      process.exit(this.#code);
    }
  }

  /** Signals are what they were before. */
  close(): void {
    for (const [signal, handler] of this.#handlers) process.off(signal, handler);
  }
}
