import { LONGEST_TIMER, parseDuration } from '../platform/index.ts';
import type { OptionTable, Values } from './arguments.ts';

/** `--watch` may have a value, attached with `=`: to the parser that is an option of its own. */
export const WATCH = {
  watch: { type: 'boolean' },
  'watch-every': { type: 'string' },
} as const satisfies OptionTable;

/** Empties a terminal. */
export const CLEAR = '\u001b[H\u001b[2J';
const DEFAULT = 1_000; // ms
const SHORTEST = 100;

export function withWatchOption(args: readonly string[]): string[] {
  return args.map((arg) => (arg.startsWith('--watch=') ? `--watch-every=${arg.slice(8)}` : arg));
}

/** How often to show it, in ms; null: once. @throws ERR_INVALID_ARGUMENT */
export function watchInterval(values: Values): number | null {
  const every = values['watch-every'];
  if (every === undefined && values.watch !== true) return null;
  return Math.min(Math.max(SHORTEST, parseDuration(every ?? DEFAULT, '--watch')), LONGEST_TIMER);
}

export function untilNext(interval: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, interval));
}
