// Moments as people write them, in local time.
import { usageError } from './argument.ts';
import { parseDuration } from './quantities.ts';
import { showValue } from './text.ts';
import { isoTime } from './time.ts';

const DAYS = ['sunday', 'monday', 'tuesday', 'wednesday', 'thursday', 'friday', 'saturday'];
const EXAMPLES = "'tomorrow 9:00', 'monday 14:30', '2026-01-31 9:00', '+2h' or 'now'";

/**
 * ms since 1970 from 'now', '+2h', '9:00' (the next one), 'today 9:00', 'tomorrow 9:00', 'friday 9:00', '2026-01-31 9:00' or
 * '2026-01-31T09:00Z', all but the last in local time; a day alone is its midnight. A time of day that occurs twice, as clocks are set back, is the first.
 * @param now as `Date.now()` @throws ERR_INVALID_ARGUMENT, also for a time of day that clocks leave out
 */
export function parseMoment(value: string, option: string, now = Date.now()): number {
  const text = value.trim().toLowerCase();
  if (text === 'now') return now;
  const [date] = /^\d{4}-\d\d-\d\d/.exec(text) ?? [];
  if (date !== undefined && !isDate(date)) throw noMoment(option, value);
  if (text.startsWith('+')) return now + parseDuration(text.slice(1).trim(), option);
  if (/^\d{4}-\d\d-\d\dt\d\d:\d\d(:\d\d)?(z|[+-]\d\d:\d\d)$/.test(text)) {
    const moment = Date.parse(value.trim().toUpperCase());
    if (!Number.isNaN(moment)) return moment;
  }
  const whole = /^[a-z]+$|^\d{4}-\d\d-\d\d$/.test(text) ? `${text} 0:00` : text;
  const [, day, hours, minutes] =
    /^(?:(\S+)[\st]+)?(\d{1,2}):(\d\d)$/.exec(whole.replace(/(\d)t(\d)/, '$1 $2')) ?? [];
  if (hours === undefined || Number(hours) > 23 || Number(minutes) > 59) throw noMoment(option, value);
  const at = (days: number) => atTime(now, days, Number(hours), Number(minutes), option, value);
  if (day === undefined) {
    const today = at(0);
    return today > now ? today : at(1);
  }
  if (day === 'today') return at(0);
  if (day === 'tomorrow') return at(1);
  if (day === date)
    return atTime(Date.parse(`${day}T12:00`), 0, Number(hours), Number(minutes), option, value);
  const weekday = DAYS.findIndex((name) => name === day || (day.length >= 3 && name.startsWith(day)));
  if (weekday < 0) throw noMoment(option, value);
  const distance = (weekday - new Date(now).getDay() + 7) % 7;
  const next = at(distance);
  return next > now ? next : at(distance + 7);
}

/** Midnight, in local time, that a date such as '2026-01-31' begins with; null: the text is no date. @throws ERR_INVALID_ARGUMENT for a day that isn't */
export function parseDate(value: string, option: string): number | null {
  const text = value.trim();
  if (!/^\d{4}-\d\d-\d\d$/.test(text)) return null;
  if (!isDate(text)) throw noMoment(option, value, "there is no such day; use one such as '2026-01-31'");
  return new Date(`${text}T00:00`).getTime();
}

/** The beginnings of a month such as '2026-10', and of the next one, in local time. @throws ERR_INVALID_ARGUMENT */
export function parseMonth(value: string, option: string): { from: number; until: number } {
  const [, year, month] = /^(19[7-9]\d|[2-9]\d{3})-(0[1-9]|1[0-2])$/.exec(value.trim()) ?? [];
  if (year === undefined)
    throw usageError(`${option}: ${showValue(value)} is not a month; use one such as '2026-10'`);
  const first = (later: number) => new Date(Number(year), Number(month) - 1 + later, 1).getTime();
  return { from: first(0), until: first(1) };
}

/** `Date.parse` takes 2026-02-30 for 2026-03-02. */
function isDate(text: string): boolean {
  const moment = Date.parse(text);
  return !Number.isNaN(moment) && isoTime(moment).startsWith(text);
}

/** A time of day, some days after a moment. Days have 23 to 25 hours. */
function atTime(
  from: number,
  days: number,
  hours: number,
  minutes: number,
  option: string,
  value: string,
): number {
  const moment = new Date(from);
  moment.setHours(0, 0, 0, 0);
  moment.setDate(moment.getDate() + days);
  moment.setHours(hours, minutes, 0, 0);
  if (moment.getHours() === hours && moment.getMinutes() === minutes) return moment.getTime();
  throw usageError(
    `${option}: ${showValue(value)} doesn't exist: clocks are set forward then, to ${formatMoment(moment.getTime())}. Use another time.`,
  );
}

function noMoment(option: string, value: string, remedy = `use ${EXAMPLES}`) {
  return usageError(`${option}: ${showValue(value)} is not a time; ${remedy}`);
}

/** 'Fri 2026-01-30 09:00 +01:00': in local time. */
export function formatMoment(moment: number): string {
  const date = new Date(moment);
  const two = (number: number) => String(number).padStart(2, '0');
  const offset = -date.getTimezoneOffset();
  const zone = `${offset < 0 ? '-' : '+'}${two(Math.floor(Math.abs(offset) / 60))}:${two(Math.abs(offset) % 60)}`;
  const name = DAYS[date.getDay()] ?? '';
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${name.charAt(0).toUpperCase()}${name.slice(1, 3)} ${day} ${two(date.getHours())}:${two(date.getMinutes())} ${zone}`;
}
