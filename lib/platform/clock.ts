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

/** Node.js makes a timer that is to be longer than this one of 1 ms. In ms. */
export const LONGEST_TIMER = 2 ** 31 - 1;

/** What is left of a wait, in ms, as a timer can have it: Node.js 22 warns on standard error of a negative one. */
export function timerOf(left: number): number {
  return Math.min(Math.max(left, 0), LONGEST_TIMER);
}

/** Resolves after so many ms, or when the signal comes. */
export function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener('abort', end);
      resolve();
    };
    const timer = setTimeout(end, milliseconds);
    signal.addEventListener('abort', end);
  });
}
