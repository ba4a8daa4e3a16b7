/**
 * Milliseconds on a clock that only goes forward. Like `performance.now()`, whose first use costs the start of the command
 * 2 ms.
 */
export function now(): number {
  return Number(process.hrtime.bigint()) / 1e6;
}
