import { type ErrorCode, GPUOwnerError } from '../../errors.ts';
import { pause, sanitize } from '../../platform/index.ts';

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
