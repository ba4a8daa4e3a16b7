import { MAX_TIMER_MS, parseDuration, sleep } from '../platform/index.ts';
import type { InferValues, OptionTable } from './command-line.ts';
import { isTerminal, print } from './output.ts';

export const WATCH = {
  watch: {
    value: 'DURATION',
    isValueOptional: true,
    help: 'refresh every second, or every DURATION',
    candidates: ['1s', '5s', '1m'],
  },
} satisfies OptionTable;

/** Empties a terminal. */
const CLEAR = '\u001b[H\u001b[2J';
const DEFAULT_MS = 1_000;
const MIN_MS = 100;

/** How often to show it, in ms; null: once. @throws ERR_INVALID_ARGUMENT */
export function watchInterval(values: InferValues<typeof WATCH>): number | null {
  const { watch } = values;
  if (watch === undefined) return null;
  return Math.min(
    Math.max(MIN_MS, parseDuration(watch === true ? DEFAULT_MS : watch, '--watch')),
    MAX_TIMER_MS,
  );
}

/**
 * Prints something once, or again and again, on a terminal in place of the last.
 * @param interval in ms; null: once @param make a text for people, or a value to be printed as JSON
 */
export async function refresh(
  called: string,
  interval: number | null,
  make: () => unknown | Promise<unknown>,
): Promise<void> {
  for (;;) {
    const made = await make();
    const isText = typeof made === 'string';
    const text = isText ? made : JSON.stringify(made, null, interval === null ? 2 : 0);
    const isPainted = isText && interval !== null && isTerminal(1);
    print(isPainted ? `${CLEAR}gpu-owner ${called}  ${new Date().toLocaleTimeString()}\n${text}` : text);
    if (interval === null) return;
    await sleep(interval);
  }
}
