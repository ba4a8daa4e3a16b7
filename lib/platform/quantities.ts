import { invalidValue } from './argument.ts';
import { listWords } from './text.ts';

const KILO = 1000;
const KIBI = 1024;

/**
 * Bytes per unit. Letters alone are powers of 1024, as in Slurm, Docker and systemd. Made when it is needed, as few starts of the
 * command do.
 */
const sizeUnits = (): Record<string, number> => ({
  '': 1,
  b: 1,
  byte: 1,
  bytes: 1,
  ...powers(KIBI, ['k', 'm', 'g', 't', 'p']),
  ...powers(KIBI, ['ki', 'mi', 'gi', 'ti', 'pi']),
  ...powers(KIBI, ['kib', 'mib', 'gib', 'tib', 'pib']),
  ...powers(KILO, ['kb', 'mb', 'gb', 'tb', 'pb']),
});

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** Milliseconds per unit. */
const DURATION_UNITS: Record<string, number> = {
  ms: 1,
  s: SECOND,
  sec: SECOND,
  m: MINUTE,
  min: MINUTE,
  h: HOUR,
  d: DAY,
};

const SIZE_EXAMPLES = "'20GiB', '1.5 GB', '512MiB' or a number of bytes from 1 MiB on";
const DURATION_TEXTS = "'30s', '10m', '2h' or '1h30m'";
const DURATION_EXAMPLES = "'30s', '10m', '2h', '1h30m' or a number of milliseconds";

function powers(base: number, units: readonly string[]): Record<string, number> {
  return Object.fromEntries(units.map((unit, i) => [unit, base ** (i + 1)]));
}

/** A smaller number without a unit was meant as GiB or MiB: no size that users set is so few bytes. */
const MIN_BARE_SIZE = KIBI ** 2;

/**
 * Bytes from a number of bytes or a text such as '20GiB' (1024³), '1.5 GB' (1000³), '100MiB', '21474836480'.
 * Capitals don't matter. @param option names the value in errors.
 * @throws {GPUOwnerError} ERR_INVALID_ARGUMENT unless it is a whole number of bytes, 0 or more, and has a unit if it is small.
 */
export function parseSize(value: unknown, option = 'size'): number {
  const bare = typeof value === 'string' && /^\s*\d+(\.\d+)?\s*$/.test(value) ? Number(value) : value;
  if (typeof bare === 'number' && bare > 0 && bare < MIN_BARE_SIZE) {
    const examples = bare < 256 ? `'${bare}GiB' or '${bare}MiB'` : `'${bare}MiB'`;
    throw invalidValue(option, value, 'a size without its unit', `use ${examples}`);
  }
  const bytes = typeof value === 'string' ? sizeOfText(value) : value;
  if (typeof bytes !== 'number' || !Number.isSafeInteger(bytes) || bytes < 0) {
    throw invalidValue(option, value, 'a size', `use ${SIZE_EXAMPLES}`);
  }
  return bytes + 0; // -0 becomes 0
}

function sizeOfText(text: string): number {
  const match = /^(\d{1,16}(?:\.\d{1,16})?)\s*([a-z]{0,5})$/i.exec(text.trim());
  const unit = sizeUnits()[match?.[2]?.toLowerCase() ?? ''];
  if (!match || unit === undefined) return Number.NaN;
  const bytes = Number(match[1]) * unit;
  // A fraction of a unit may be rounded to bytes, a fraction of a byte is a forgotten unit.
  return unit === 1 ? bytes : Math.round(bytes);
}

/**
 * Milliseconds from a number of milliseconds or a text such as '250ms', '30s', '10m', '2h', '1d', '1h30m'; '0' is
 * the only text that needs no unit. @param option names the value in errors.
 * @throws {GPUOwnerError} ERR_INVALID_ARGUMENT unless it is a finite duration, 0 or more.
 */
export function parseDuration(value: unknown, option = 'duration'): number {
  if (typeof value === 'string' && /^\s*\d+(\.\d+)?\s*$/.test(value) && Number(value) !== 0) {
    const examples = durationsOf(value.trim().slice(0, 20)).map((each) => `'${each}'`);
    throw invalidValue(option, value, 'a duration without its unit', `use ${listWords(examples, 'or')}`);
  }
  const milliseconds = typeof value === 'string' ? durationOfText(value) : value;
  if (
    typeof milliseconds !== 'number' ||
    !(milliseconds >= 0) ||
    !(milliseconds <= Number.MAX_SAFE_INTEGER)
  ) {
    // A text comes from the command line, where a number needs a unit, or from Python, where it is seconds.
    const examples = typeof value === 'string' ? DURATION_TEXTS : DURATION_EXAMPLES;
    throw invalidValue(option, value, 'a duration', `use ${examples}`);
  }
  return milliseconds + 0;
}

/** The durations that a number without a unit may mean. Large numbers have small units: 600 is never hours. */
export function durationsOf(amount: string): string[] {
  const plausible = { s: Number.POSITIVE_INFINITY, m: 24 * 60, h: 14 * 24, d: 366 };
  const units = Object.entries(plausible).filter(([, most]) => Number(amount) <= most);
  return units.map(([unit]) => amount + unit);
}

function durationOfText(text: string): number {
  const compact = text.trim().toLowerCase();
  if (/^0+(\.0+)?$/.test(compact)) return 0;
  if (compact.length > 64 || !/^(\d+(\.\d+)?\s*[a-z]+\s*)+$/.test(compact)) return Number.NaN;
  let total = 0;
  let last = Number.POSITIVE_INFINITY;
  for (const [, amount, name] of compact.matchAll(/(\d+(?:\.\d+)?)\s*([a-z]+)/g)) {
    const unit = DURATION_UNITS[name ?? ''];
    // From large to small, each once: '30m 1h' and '1m 1m' are mistakes rather than sums.
    if (unit === undefined || unit >= last) return Number.NaN;
    total += Number(amount) * unit;
    last = unit;
  }
  return total;
}

/**
 * Percent, 0 to 100, from a number or a text such as '5' or '5%'. @param right what to do: 'use …'
 * @throws {GPUOwnerError} ERR_INVALID_ARGUMENT
 */
export function parsePercent(value: unknown, option = 'percentage', right = "use 1, 12.5 or '5%'"): number {
  const percent = parseNumber(value, /\s*%$/);
  if (percent === null || percent > 100) {
    throw invalidValue(option, value, 'a percentage from 0 to 100', right);
  }
  return percent;
}

/**
 * Watts from a number or a text such as '80' or '80W'.
 * @throws {GPUOwnerError} ERR_INVALID_ARGUMENT
 */
export function parseWatts(value: unknown, option = 'power'): number {
  const watts = parseNumber(value, /\s*w$/i);
  if (watts === null) throw invalidValue(option, value, 'a power in watts', "use 80, 82.5 or '80W'");
  return watts;
}

/**
 * Degrees Celsius from a number or a text such as '60', '60C' or '60°C'.
 * @throws {GPUOwnerError} ERR_INVALID_ARGUMENT
 */
export function parseCelsius(value: unknown, option = 'temperature'): number {
  const degrees = parseNumber(value, /\s*\u00b0?c$/i);
  if (degrees === null)
    throw invalidValue(option, value, 'a temperature in degrees Celsius', "use 60, 62.5 or '60°C'");
  return degrees;
}

function parseNumber(value: unknown, unit: RegExp): number | null {
  let number = value;
  if (typeof value === 'string') {
    const text = value.trim().slice(0, 64).replace(unit, '');
    number = /^\d{1,12}(\.\d{1,12})?$/.test(text) ? Number(text) : null;
  }
  if (typeof number !== 'number' || !Number.isFinite(number) || number < 0) return null;
  return number + 0;
}

/** '31.2 GiB': powers of 1024, one decimal at most; 'unknown' for null. */
export function formatBytes(bytes: number | null): string {
  if (bytes === null || !Number.isFinite(bytes)) return 'unknown';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  const magnitude = Math.abs(bytes);
  let exponent = 0;
  // Rounded before the choice of the unit: never '1024 MiB'.
  while (exponent < units.length - 1 && roundToTenth(magnitude / KIBI ** exponent) >= KIBI) exponent++;
  return `${bytes < 0 ? '-' : ''}${roundToTenth(magnitude / KIBI ** exponent)} ${units[exponent]}`;
}

function roundToTenth(value: number): number {
  return Math.round(value * 10) / 10;
}

/** '250 ms', '45 s', '2 h 5 min', '3 d 4 h': the two largest units, cut, not rounded; 'unknown' for null. */
export function formatDuration(milliseconds: number | null): string {
  if (milliseconds === null || !Number.isFinite(milliseconds)) return 'unknown';
  const rest = Math.max(0, milliseconds);
  if (rest < SECOND) return `${Math.floor(rest)} ms`;
  const parts = [
    [Math.floor(rest / DAY), 'd'],
    [Math.floor(rest / HOUR) % 24, 'h'],
    [Math.floor(rest / MINUTE) % 60, 'min'],
    [Math.floor(rest / SECOND) % 60, 's'],
  ] as const;
  const first = parts.findIndex(([amount]) => amount > 0);
  return parts
    .slice(first, first + 2)
    .filter(([amount]) => amount > 0)
    .map(([amount, unit]) => `${amount} ${unit}`)
    .join(' ');
}

/**
 * A moment for 'since …' or 'until …', in local time: '14:03' today, '14:03 yesterday', '00:25 tomorrow', '2025-11-20 14:03' on any other
 * day; null when `since` is missing or no moment that a record could truthfully have.
 */
export function formatSince(
  since: string | number | Date | null | undefined,
  now = Date.now(),
): string | null {
  if (since === null || since === undefined || since === '') return null;
  const moment = new Date(since);
  const year = moment.getFullYear();
  if (Number.isNaN(year) || year < 1970 || year > 9999) return null;
  const time = `${twoDigits(moment.getHours())}:${twoDigits(moment.getMinutes())}`;
  const day = (distance: number) => {
    const other = new Date(now);
    other.setDate(other.getDate() + distance);
    return other.toDateString();
  };
  if (moment.toDateString() === day(0)) return time;
  if (moment.toDateString() === day(-1)) return `${time} yesterday`;
  if (moment.toDateString() === day(1)) return `${time} tomorrow`;
  return `${year}-${twoDigits(moment.getMonth() + 1)}-${twoDigits(moment.getDate())} ${time}`;
}

function twoDigits(value: number): string {
  return String(value).padStart(2, '0');
}
