import {
  cancelBooking,
  checkOptions,
  type GPUStatus,
  LockDirectory,
  readBookings,
  type StoredBooking,
} from '../claims/index.ts';
import { loadConfiguration } from '../config/index.ts';
import { label } from '../gpus/index.ts';
import { formatMoment, isoTime, usageError } from '../platform/index.ts';
import type { BookingEntry } from '../shapes/index.ts';
import { discover } from '../status/index.ts';
import { moreTimes } from './book.ts';
import type { Command } from './command.ts';
import { type OptionGroup, type Parsed, rejectOperands } from './command-line.ts';
import { print, show } from './output.ts';

const GROUPS = [
  {
    options: {
      json: {
        help: 'print an array of { id, user, group, gpus, devices: [{ index, uuid }], from, until, note }',
      },
    },
  },
] as const satisfies readonly OptionGroup[];

async function bookings(parsed: Parsed<typeof GROUPS>): Promise<void> {
  const { values, positionals } = parsed;
  const [first, ...words] = positionals;
  const directory = LockDirectory.find(undefined, loadConfiguration());
  if (first === 'cancel') {
    if (words.length === 0) throw usageError('cancel: which booking? `gpu-owner bookings` lists them');
    const ids = words.map((word) => {
      if (/^\d{1,9}$/.test(word)) return Number(word);
      throw usageError(
        `cancel: '${word.slice(0, 60)}' is not the number of a booking; \`gpu-owner bookings\` lists them`,
      );
    });
    for (const id of ids) cancelBooking(directory, id);
    return;
  }
  rejectOperands(parsed);
  const found = readBookings(directory).sort((a, b) => a.from - b.from || a.id - b.id);
  const gpus = found.length === 0 ? [] : await discover(checkOptions({}).request, 'machine');
  if (values.json) return show(found.map((each) => bookingJSON(each, gpus)));
  const ids = [...new Set(found.map(({ id }) => id))];
  const paragraphs = ids.map((id) =>
    paragraph(
      found.filter((each) => each.id === id),
      gpus,
    ),
  );
  print(paragraphs.join('\n') || 'Nothing is booked.');
}

function bookingJSON(booking: StoredBooking, gpus: readonly GPUStatus[]): BookingEntry {
  const { id, user, group, uuids, from, until, note } = booking;
  const index = (uuid: string) => gpus.find((gpu) => gpu.uuid === uuid)?.index ?? null;
  return {
    ...{ id, user, group, gpus: uuids.length },
    devices: uuids.map((uuid) => ({ index: index(uuid), uuid })),
    from: isoTime(from),
    until: isoTime(until),
    note,
  };
}

/** Whether it is in use without or by another user's claim. */
function isInUse({ state, lease, shares }: GPUStatus, user: string): boolean {
  const holders = lease === null ? shares : [lease];
  return state === 'busy' || holders.some((holder) => holder.user !== user);
}

/** A booking and its repeats, with what is in the way if it has begun. */
function paragraph([first, ...repeats]: readonly StoredBooking[], all: readonly GPUStatus[]): string {
  const { id, user, group, uuids, from, until, note } = first as StoredBooking;
  const gpus = all.filter(({ uuid }) => uuids.includes(uuid));
  const labels = gpus.map(label).join(',') + (gpus.length < uuids.length ? ` (of ${uuids.length})` : '');
  const whom = group === null ? user : `${user} and the group ${group}`;
  const times = `from ${formatMoment(from)} to ${formatMoment(until)}${moreTimes(repeats.map((each) => each.from))}`;
  const lines = [`${String(id).padStart(3)}. GPU ${labels} for ${whom}, ${times}`];
  if (note !== null) lines.push(`     note: ${note}`);
  for (const gpu of from <= Date.now() ? gpus : [])
    if (isInUse(gpu, user)) lines.push(`     GPU ${label(gpu)} is still in use: ${gpu.reason}`);
  return lines.join('\n');
}

export const COMMAND: Command = {
  usage: '[OPTIONS] | cancel NUMBER...',
  about: `Shows which GPUs are booked, for whom and when, and what still runs on them. With cancel, it cancels bookings: those that you have made; root cancels any.`,
  groups: GROUPS,
  operands: { first: ['cancel'] },
  run: bookings,
};
