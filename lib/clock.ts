/**
 * Milliseconds on a clock that only goes forward. Like `performance.now()`, whose first use costs the start of the command
 * 2 ms.
 */
export function now(): number {
  return Number(process.hrtime.bigint()) / 1e6;
}

/** Node.js makes a timer that is to be longer than this one of 1 ms. In ms. */
export const LONGEST_TIMER = 2 ** 31 - 1;
