import { MAX_TIMER_MS, parseDuration, sleep } from '../platform/index.ts';
import type { InferValues, OptionTable } from './command-line.ts';

export const WATCH = {
  watch: {
    value: 'DURATION',
    isValueOptional: true,
    help: 'refresh every second, or every DURATION',
    candidates: ['1s', '5s', '1m'],
  },
} satisfies OptionTable;

/** Empties a terminal. */
export const CLEAR = '\u001b[H\u001b[2J';
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

export function untilNext(interval: number): Promise<void> {
  return sleep(interval);
}
