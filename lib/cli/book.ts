import { bookedGroup, bookedUser, bookGPUs, MAX_NOTE_LENGTH, PERIODS, repeatsOf } from '../claims/index.ts';
import { label } from '../gpus/index.ts';
import {
  formatDuration,
  formatMoment,
  parseDuration,
  parseMoment,
  sanitize,
  usageError,
} from '../platform/index.ts';
import { countOption } from './claim-options.ts';
import { checkClaim } from './claim-values.ts';
import type { Command } from './command.ts';
import { type OptionGroup, type Parsed, rejectOperands } from './command-line.ts';
import { print, say } from './output.ts';

/** A booking may begin this long ago: typing takes time. */
const LATE_MS = 60_000;

const GROUPS = [
  {
    options: {
      ...countOption('book'),
      from: {
        value: 'TIME',
        help: "begin at TIME (default now): 'tomorrow 9:00', 'friday 14:30', '2026-01-31', '+2h'",
        candidates: ['now', '+1h', 'tomorrow 9:00'],
      },
      for: { value: 'DURATION', help: 'end after DURATION', candidates: ['1h', '4h', '8h'] },
      every: {
        value: 'PERIOD',
        help: 'repeat it each day, or each week, at the same time of day, until --until',
        candidates: PERIODS,
      },
      until: { value: 'DATE', help: 'with --every: repeat it until DATE, that day included (2026-12-31)' },
      devices: {
        value: 'LIST',
        isRepeatable: true,
        help: 'book only these GPUs: indices, ranges, UUIDs, names',
      },
      group: { value: 'GROUP', help: 'keep the GPUs for the members of this group, too' },
      user: { value: 'USER', help: 'keep the GPUs for this user; for root' },
      note: { value: 'TEXT', help: 'show others this remark' },
    },
  },
] as const satisfies readonly OptionGroup[];

async function book(parsed: Parsed<typeof GROUPS>): Promise<void> {
  rejectOperands(parsed);
  const { values } = parsed;
  const now = Date.now();
  if (values.for === undefined) throw usageError('for how long? Give it with --for; for example: --for 8h');
  const from = parseMoment(values.from ?? 'now', '--from', now);
  if (from < now - LATE_MS) throw usageError(`--from: ${formatMoment(from)} is over; use a time to come`);
  const duration = parseDuration(values.for, '--for');
  if (duration === 0) throw usageError('--for: the booking must last; for example: --for 8h');
  const repeats = repeatsOf(values, from, duration);
  const { request } = checkClaim(values);
  const { booking, gpus, inUse, isVolatile } = await bookGPUs(request, {
    from,
    until: from + duration,
    repeats,
    uid: bookedUser(values.user),
    group: bookedGroup(values.group),
    note: values.note === undefined ? null : sanitize(values.note, MAX_NOTE_LENGTH) || null,
  });
  print(String(booking.id));
  const whom = booking.group === null ? booking.user : `${booking.user} and the group ${booking.group}`;
  say(
    `booking ${booking.id}: GPU ${gpus.map(label).join(',')} for ${whom}, from ${formatMoment(from)} to ${formatMoment(booking.until)}${moreTimes(repeats)}`,
  );
  for (const { gpu, verdict } of inUse)
    say(
      `GPU ${label(gpu)} may still be in use then: ${verdict.reason}. Only a preemptible job is ended for you.`,
    );
  if (isVolatile)
    say(
      `the lock directory ${booking.path} is in memory: a reboot within ${formatDuration(booking.until - now)} loses this booking`,
    );
}

/** ', and 3 more times, the last one from …' */
export function moreTimes(repeats: readonly number[]): string {
  const last = repeats.at(-1);
  if (last === undefined) return '';
  return `, and ${repeats.length === 1 ? 'once' : `${repeats.length} times`} more, the last time from ${formatMoment(last)}`;
}

export const COMMAND: Command = {
  usage: '[-n N] [--from TIME] --for DURATION [OPTIONS]',
  about: `Books GPUs for a time: they are kept for you, and others use them before only if their job ends in time (\`--for\`). Prints the booking's number. Only root, and the users that \`bookings\` in the machine's configuration lists, may book.`,
  groups: GROUPS,
  notes: 'Exit code: 0 if the GPUs are booked, 75 if too many are booked already, 77 if you may not book.',
  run: book,
};
