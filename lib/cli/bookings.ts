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
import { formatMoment } from '../platform/index.ts';
import type { BookingEntry } from '../shapes/index.ts';
import { discover } from '../status/index.ts';
import { moreTimes } from './book.ts';
import type { Command } from './command.ts';
import { askFleet, HOSTS_WITH_JSON, isForHosts } from './hosts.ts';
import { type OptionGroup, type Parsed, rejectOperands, SIMULATE, usage } from './options.ts';
import { print } from './output.ts';

const GROUPS = [
  {
    options: {
      json: {
        help: 'print an array of { id, user, group, gpus, devices: [{ index, uuid }], from, until, note }',
      },
      ...HOSTS_WITH_JSON,
      ...SIMULATE,
    },
  },
] as const satisfies readonly OptionGroup[];

const NOTHING = 'Nothing is booked.';

async function bookings(parsed: Parsed<typeof GROUPS>): Promise<void> {
  const { values, positionals } = parsed;
  if (isForHosts(values)) {
    if (positionals[0] === 'cancel')
      throw usage('cancel: it is for this machine; leave --hosts out, or run it there');
    rejectOperands(parsed);
    return askFleet('bookings', parsed, 'bookings', ({ host, records }) => {
      const lines = firsts(records).map(([entry, repeats]) =>
        lineOf(entry, entry.devices.map(({ index }) => index ?? '?').join(), repeats),
      );
      return `${host}:\n${lines.join('\n') || NOTHING}\n`;
    });
  }
  const directory = LockDirectory.find(undefined, loadConfiguration());
  if (positionals[0] === 'cancel') {
    const [, ...words] = positionals;
    if (words.length === 0) throw usage('cancel: which booking? `gpu-owner bookings` lists them');
    const ids = words.map((word) => {
      if (/^\d{1,9}$/.test(word)) return Number(word);
      throw usage(
        `cancel: '${word.slice(0, 60)}' is not the number of a booking; \`gpu-owner bookings\` lists them`,
      );
    });
    for (const id of ids) cancelBooking(directory, id);
    return;
  }
  rejectOperands(parsed);
  const found = readBookings(directory).sort((a, b) => a.from - b.from || a.id - b.id);
  const gpus = found.length === 0 ? [] : await discover(checkOptions({}).request, 'machine');
  if (values.json)
    print(
      JSON.stringify(
        found.map((booking) => bookingJSON(booking, gpus)),
        null,
        2,
      ),
    );
  else
    print(
      found.length === 0
        ? NOTHING
        : firsts(found)
            .map((each) => paragraph(...each, gpus))
            .join('\n'),
    );
}

function gpusOf({ uuids }: StoredBooking, gpus: readonly GPUStatus[]): GPUStatus[] {
  return gpus.filter(({ uuid }) => uuids.includes(uuid));
}

function bookingJSON(booking: StoredBooking, gpus: readonly GPUStatus[]): BookingEntry {
  const { id, user, group, uuids, from, until, note } = booking;
  const index = (uuid: string) => gpus.find((gpu) => gpu.uuid === uuid)?.index ?? null;
  return {
    id,
    user,
    group,
    gpus: uuids.length,
    devices: uuids.map((uuid) => ({ index: index(uuid), uuid })),
    from: new Date(from).toISOString(),
    until: new Date(until).toISOString(),
    note,
  };
}

/** Whether it is in use without or by another user's claim. */
function isInUse({ state, lease, shares }: GPUStatus, user: string): boolean {
  const holders = lease === null ? shares : [lease];
  return state === 'busy' || holders.some((holder) => holder.user !== user);
}

/** The bookings, each with its repeats. */
function firsts<Each extends { id: number; from: number | string }>(
  all: readonly Each[],
): [Each, number[]][] {
  const ids = [...new Set(all.map(({ id }) => id))];
  return ids.flatMap((id): [Each, number[]][] => {
    const [first, ...repeats] = all.filter((each) => each.id === id);
    return first === undefined ? [] : [[first, repeats.map(({ from }) => new Date(from).getTime())]];
  });
}

function lineOf(
  { id, user, group, from, until, note }: BookingEntry,
  labels: string,
  repeats: readonly number[],
): string {
  const whom = group === null ? user : `${user} and the group ${group}`;
  const [begin, end] = [from, until].map((time) => formatMoment(Date.parse(time)));
  return `${String(id).padStart(3)}. GPU ${labels} for ${whom}, from ${begin} to ${end}${moreTimes(repeats)}${note === null ? '' : `\n     note: ${note}`}`;
}

/** With what is in the way of a booking that has begun. */
function paragraph(booking: StoredBooking, repeats: readonly number[], gpus: readonly GPUStatus[]): string {
  const { user, uuids, from } = booking;
  const own = gpusOf(booking, gpus);
  const labels =
    own.length < uuids.length ? `${own.map(label).join(',')} (of ${uuids.length})` : own.map(label).join(',');
  const lines = [lineOf(bookingJSON(booking, gpus), labels, repeats)];
  if (from <= Date.now())
    for (const gpu of own)
      if (isInUse(gpu, user))
        lines.push(`     GPU ${label(gpu)} is still in use: ${gpu.reason?.replace(/; booked for .*/s, '')}`);
  return lines.join('\n');
}

export const COMMAND: Command = {
  usage: '[OPTIONS] | cancel NUMBER...',
  about: `Shows which GPUs are booked, for whom and when, and what still runs on them. With cancel, it cancels bookings: those that you have made; root cancels any.`,
  groups: GROUPS,
  operands: { first: ['cancel'] },
  run: bookings,
};
