import { test } from 'vitest';
import { TIMEOUTS, type Timeout } from '../../lib/platform/timeouts.ts';

/** A test of `npm run test:soak` alone: it takes long, and what it shows is also shown in less time, in part. */
export const soakTest = test.skipIf(!process.env.GPU_OWNER_SOAK);

/** Tells how long a timeout of the product is in a test: shorter, but in `npm run test:soak`. In ms. */
export function timeoutMs(name: Timeout, short: number): number {
  return process.env.GPU_OWNER_SOAK ? TIMEOUTS[name] : short;
}

/** The environment for a program that has these timeouts, in ms. */
export function withTimeouts(timeouts: Partial<Record<Timeout, number>>): { GPU_OWNER_TIMEOUTS: string } {
  const pairs = Object.entries(timeouts).map(([name, ms]) => `${name}:${ms}`);
  return { GPU_OWNER_TIMEOUTS: pairs.join() };
}

/**
 * How long a test waits for what must come, in ms, where nothing promises a time. The limit is for hangs: the machine may have
 * much else to do. Shorter than the time limit of a test, so that the wait fails first, and says for what.
 */
export const WAIT_TIMEOUT_MS = 30_000;

type Condition = () => boolean | Promise<boolean>;

/** Waits until it is so. @param what is waited for, for the error; default: the condition's source */
export async function until(isSo: Condition, milliseconds?: number): Promise<void>;
export async function until(
  isSo: Condition,
  what: string | (() => string),
  milliseconds?: number,
): Promise<void>;
export async function until(
  isSo: Condition,
  second?: number | string | (() => string),
  third?: number,
): Promise<void> {
  const milliseconds = (typeof second === 'number' ? second : third) ?? WAIT_TIMEOUT_MS;
  const end = performance.now() + milliseconds;
  for (;;) {
    const asked = performance.now();
    if (await isSo()) return;
    const now = performance.now();
    if (now > end) {
      const what = typeof second === 'function' ? second() : typeof second === 'string' ? second : isSo;
      throw new Error(`timed out after ${milliseconds} ms, waiting for ${what}`);
    }
    // A condition that starts a program leaves the processors to what it waits for.
    await pause(Math.min(Math.max(10, 3 * (now - asked)), 300));
  }
}

export function pause(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

/**
 * The shortest time that `act` takes in up to five tries, in ms; the first below `limit` will do. For what is promised to be quick: a busy
 * machine delays any one try, and what isn't quick isn't so in any.
 */
export async function quickest(limit: number, act: () => unknown): Promise<number> {
  let shortest = Number.POSITIVE_INFINITY;
  for (let i = 0; i < 5 && shortest >= limit; i++) {
    const start = performance.now();
    const own = await act();
    shortest = Math.min(shortest, typeof own === 'number' ? own : performance.now() - start);
  }
  return shortest;
}

/** The processor time that this process takes for it, in ms: whatever else the machine has to do. */
export async function processorTime(act: () => unknown): Promise<number> {
  const before = process.cpuUsage();
  await act();
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1_000;
}

/** Waits until `look` finds the same twice, a third of a second apart. @returns what it found */
export async function settled<T>(look: () => T): Promise<T> {
  for (const end = performance.now() + WAIT_TIMEOUT_MS; ; ) {
    const before = look();
    await pause(333);
    if (JSON.stringify(look()) === JSON.stringify(before)) return before;
    if (performance.now() > end)
      throw new Error(`no rest within ${WAIT_TIMEOUT_MS} ms: ${JSON.stringify(before)}`);
  }
}
