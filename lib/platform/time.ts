/**
 * Milliseconds on a clock that only goes forward. Like `performance.now()`, whose first use costs the start of the command
 * 2 ms.
 */
export function now(): number {
  return Number(process.hrtime.bigint()) / 1e6;
}

/**
 * A time as ISO 8601, in UTC with milliseconds. `toISOString()` does the same, and looks for the time zone when it is first called: that
 * takes a third of a millisecond.
 */
export function isoTime(milliseconds = Date.now()): string {
  const time = new Date(milliseconds);
  const two = (number: number) => (number < 10 ? `0${number}` : number);
  const date = `${time.getUTCFullYear()}-${two(time.getUTCMonth() + 1)}-${two(time.getUTCDate())}`;
  const clock = `${two(time.getUTCHours())}:${two(time.getUTCMinutes())}:${two(time.getUTCSeconds())}`;
  return `${date}T${clock}.${String(time.getUTCMilliseconds()).padStart(3, '0')}Z`;
}

/** Formats a time as `2026-01-01 12:00:00`, in local time. */
export function timestamp(date = new Date()): string {
  const two = (value: number) => String(value).padStart(2, '0');
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** The end of the year 9999, in ms since 1970: later times have another form as text. */
export const MAX_TIME = 253_402_300_799_999;

/** Node.js makes any longer timer one of 1 ms. */
export const MAX_TIMER_MS = 2 ** 31 - 1;

/** The rest of a wait as a timer can have it, in ms: Node.js 22 warns on standard error of a negative one. */
export function timerMs(left: number): number {
  return Math.min(Math.max(left, 0), MAX_TIMER_MS);
}

/** Resolves after `milliseconds`, or when the signal comes. */
export function sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
  if (signal?.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', end);
      resolve();
    };
    const timer = setTimeout(end, milliseconds);
    signal?.addEventListener('abort', end);
  });
}

/** Something to wait for. Code that may not block yields it; its caller waits, blocking or not. */
export type Wait =
  /** Takes an OFD lock on a byte within a time, in ms; the mode as lib/native.ts names it. */
  | { kind: 'lock'; descriptor: number; mode: number; byte: number; milliseconds: number }
  | { kind: 'sleep'; milliseconds: number };

/** A computation that yields what it waits for; `yield*` its parts. */
export type Waiting<Result> = Generator<Wait, Result, unknown>;

/** Waits for a lock. @returns false: others held it all the time */
export function* locking(
  descriptor: number,
  mode: number,
  byte: number,
  milliseconds: number,
): Waiting<boolean> {
  return (yield { kind: 'lock', descriptor, mode, byte, milliseconds }) as boolean;
}

export function* sleeping(milliseconds: number): Waiting<void> {
  yield { kind: 'sleep', milliseconds };
}

/** Asks once in a while, however many want the answer; after a failure, the next one asks. @param forMs how long an answer is reused */
export function reuseAnswer<T>(ask: () => Promise<T>, forMs: number): () => Promise<T> {
  let answer: Promise<T> | null = null;
  return () => {
    if (answer !== null) return answer;
    const asked = ask();
    answer = asked;
    const forget = () => {
      answer = null;
    };
    asked.then(() => setTimeout(forget, forMs).unref(), forget);
    return asked;
  };
}
