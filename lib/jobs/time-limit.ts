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
 * @param duration '4h' @param notice 'USR1@5m' @param isHere whether this machine's configuration counts
 * @throws ERR_INVALID_ARGUMENT, ERR_CONFIGURATION
 */
export function parseTimeLimit(duration: unknown, notice: unknown, isHere = true): TimeLimit | null {
  if (duration === undefined) {
    const ms = isHere ? allowedTime(null) : null;
    if (ms !== null) return withNotice({ ms, text: formatDuration(ms) }, notice);
    if (notice === undefined) return null;
    throw usageError('--signal needs a time limit; for example: --for 4h --signal USR1@5m');
  }
  const ms = Math.ceil(parseDuration(duration, '--for'));
  if (ms === 0) throw usageError(`--for: ${showValue(duration)} leaves no time; use '90s', '4h' or '1h30m'`);
  if (isHere) allowedTime(ms);
  return withNotice({ ms, text: String(duration).trim() }, notice);
}

function withNotice(limit: Omit<TimeLimit, 'notice'>, notice: unknown): TimeLimit {
  return { ...limit, notice: notice === undefined ? null : parseNotice(notice, limit) };
}

function parseNotice(value: unknown, limit: Omit<TimeLimit, 'notice'>): TimeLimit['notice'] {
  const [, name, duration] = /^([^@]*)@(.*)$/.exec(String(value)) ?? [];
  if (name === undefined || duration === undefined)
    throw usageError(
      `--signal: ${showValue(value)} is not a signal and how long before the limit it comes; for example: USR1@5m`,
    );
  const signal = signalNumber(name);
  const ms = Math.ceil(parseDuration(duration, '--signal'));
  if (ms > 0 && ms < limit.ms) return { signal, ms };
  throw usageError(
    `--signal: ${showValue(duration)} must be more than 0 and less than the limit, which is ${limit.text}`,
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
