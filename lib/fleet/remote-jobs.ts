// Background jobs of other machines, followed over one connection each. A connection that is lost is neither an end nor a failure of a
// job: it is opened again.
import type { Host } from '../config/index.ts';
import { isLiving, type Job, wordOf } from '../jobs/index.ts';
import { watchHosts } from './fleet.ts';
import type { HostFailure } from './host-failure.ts';
import type { OutputPiece } from './host-records.ts';

/** Silence after which a host counts as failed, in ms. */
const QUIET_MS = 15_000;

/** Whether a host that has answered before may do so again: it hasn't said itself that there is no such job. */
function isPassing({ code }: HostFailure): boolean {
  return code !== 'ERR_INVALID_ARGUMENT';
}

/**
 * Tells a lost connection from a failure: the host has to answer once, and what it says itself is final.
 * @param onLost called with each new reason
 */
class Connection {
  failure: HostFailure | null = null;
  readonly #end = new AbortController();
  readonly #onLost: (reason: string) => void;
  #hasAnswered: boolean;
  #reason: string | null = null;

  /** @param isKnown whether the host has answered before */
  constructor(onLost: (reason: string) => void, outer?: AbortSignal, isKnown = false) {
    this.#onLost = onLost;
    this.#hasAnswered = isKnown;
    outer?.addEventListener('abort', () => this.end(), { once: true });
    if (outer?.aborted) this.end();
  }

  get signal(): AbortSignal {
    return this.#end.signal;
  }

  answered(): void {
    this.#hasAnswered = true;
    this.#reason = null;
  }

  failed(error: HostFailure): void {
    if (this.#hasAnswered && isPassing(error)) {
      if (this.#reason !== error.message) this.#onLost(error.message);
      this.#reason = error.message;
      return;
    }
    this.failure = error;
    this.end();
  }

  end(): void {
    this.#end.abort();
  }
}

/**
 * Waits until jobs of a host have ended.
 * @param jobs numbers or names
 * @param onLost called with each new reason why the host doesn't answer
 * @param isKnown whether the host has answered before: if not, its first failure is final
 * @returns the jobs as they have ended; null: the signal came. Otherwise why they can't be waited for
 */
export async function waitOnHost(
  host: Host,
  jobs: readonly string[],
  onLost: (reason: string) => void,
  signal?: AbortSignal,
  isKnown = false,
): Promise<{ jobs: Job[] | null; error: HostFailure | null }> {
  const connection = new Connection(onLost, signal, isKnown);
  let named = jobs;
  let found: Job[] | null = null;
  const words = () => ['jobs', '--json', '--watch=1s', ...named];
  await watchHosts(
    [host],
    'jobs',
    words,
    QUIET_MS,
    ({ records, error }) => {
      if (error !== null) return connection.failed(error);
      if (records.length !== jobs.length || records.some(({ id }) => id === null)) {
        const message = `it shows ${records.length} jobs instead of ${jobs.length}`;
        return connection.failed({ code: 'ERR_HOST_ANSWER', message });
      }
      connection.answered();
      named = records.map(({ id }, i) => wordOf(jobs[i] as string, id));
      if (records.some(({ state }) => isLiving(state))) return;
      found = records;
      connection.end();
    },
    connection.signal,
  );
  return { jobs: found, error: connection.failure };
}

/** The part of a job's output that is wanted. */
interface WantedOutput {
  /** Where to begin, in bytes; negative: from the end. */
  from: number;
  /** null: `from` counts; otherwise the last lines. */
  lines: number | null;
  follow: boolean;
  /** Whether the host has answered before: if not, its first failure is final. */
  isKnown: boolean;
}

/**
 * Shows the output of a job on a host, each byte once.
 * @param job its number or name
 * @param onPiece called with each piece; its bytes may be none
 * @param onLost called with each new reason why the host doesn't answer
 * @returns why it can't be shown; null: the job has ended, or all is shown
 */
export async function showOutput(
  host: Host,
  job: string,
  { from, lines, follow, isKnown }: WantedOutput,
  onPiece: (piece: OutputPiece, bytes: Uint8Array) => void,
  onLost: (reason: string) => void,
  signal?: AbortSignal,
): Promise<HostFailure | null> {
  const connection = new Connection(onLost, signal, isKnown);
  let named = job;
  let at: number | null = null;
  const words = () => [
    'logs',
    named,
    ...(follow ? ['--follow'] : []),
    ...(at === null && lines !== null ? [`--lines=${lines}`] : []),
    `--over-ssh=${at ?? from}`,
  ];
  await watchHosts(
    [host],
    'output',
    words,
    QUIET_MS,
    ({ records, error }) => {
      if (error !== null) return connection.failed(error);
      connection.answered();
      for (const piece of records) {
        named = wordOf(job, piece.id);
        at = piece.at;
        onPiece(piece, Buffer.from(piece.bytes, 'base64'));
        if (piece.isOver) connection.end();
      }
    },
    connection.signal,
  );
  return connection.failure;
}
