import { allowedTime } from '../claims/index.ts';
import { closest, formatDuration, parseDuration, showValue, usageError } from '../platform/index.ts';

/** How long a command may run. */
export interface TimeLimit {
  ms: number;
  /** As its user wrote it. */
  text: string;
  /** A signal that the command gets before the end; null: none. */
  notice: { signal: number; ms: number } | null;
}

/**
 * Checks a time limit and the signal before it. Without one, that of the configuration counts, if there is one.
 * @param duration '4h', or in ms @param notice 'USR1@5m' @param isHere whether this machine's configuration counts
 * @throws ERR_INVALID_ARGUMENT, ERR_CONFIGURATION
 */
export function parseTimeLimit(duration: unknown, notice: unknown, isHere = true): TimeLimit | null {
  const asked = duration === undefined ? null : Math.ceil(parseDuration(duration, '--for'));
  if (asked === 0)
    throw usageError(`--for: ${showValue(duration)} leaves no time; use '90s', '4h' or '1h30m'`);
  const ms = isHere ? allowedTime(asked) : asked;
  if (ms === null && notice !== undefined)
    throw usageError('--signal needs a time limit; for example: --for 4h --signal USR1@5m');
  if (ms === null) return null;
  const text = typeof duration === 'string' ? duration.trim() : formatDuration(ms);
  if (notice === undefined) return { ms, text, notice: null };
  const [, name, before] = /^([^@]*)@(.*)$/.exec(String(notice)) ?? [];
  if (name === undefined || before === undefined)
    throw usageError(
      `--signal: ${showValue(notice)} is not a signal and how long before the limit it comes; for example: USR1@5m`,
    );
  const noticed = { signal: signalNumber(name), ms: Math.ceil(parseDuration(before, '--signal')) };
  if (noticed.ms > 0 && noticed.ms < ms) return { ms, text, notice: noticed };
  throw usageError(
    `--signal: ${showValue(before)} must be more than 0 and less than the limit, which is ${text}`,
  );
}

const UNCATCHABLE = ['KILL', 'STOP'];

/** Finds a signal by its name: 'USR1', 'usr1' or 'SIGUSR1'. */
export function signalNumber(name: string): number {
  const short = name.toUpperCase().replace(/^SIG/, '');
  // Loaded where it is needed: every other run would start later for it.
  const { constants } = process.getBuiltinModule('node:os');
  const signals = new Map(Object.entries(constants.signals).map(([full, number]) => [full.slice(3), number]));
  const number = signals.get(short);
  if (number === undefined) {
    const suggestion = closest(short, [...signals.keys()]);
    throw usageError(
      `--signal: ${showValue(name)} is not a signal; ${suggestion === null ? 'use a name such as USR1' : `did you mean ${suggestion}?`}`,
    );
  }
  if (UNCATCHABLE.includes(short))
    throw usageError(`--signal: no program can catch ${short}; use another signal, such as USR1`);
  return number;
}
