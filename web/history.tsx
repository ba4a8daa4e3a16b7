// A GPU's last 24 hours and next 12: its utilization, leases to their limit, and its booking.
import { formatDuration, formatSince } from '../lib/platform/quantities.ts';
import type { GPUDay, HistoryAnswer } from '../lib/views/web/shapes.ts';
import type { GPU } from './card.tsx';
import { colourOf } from './users.tsx';

/** The history is asked for more often while it is short, so that the picture is about as old as the rest. */
const MIN_INTERVAL_MS = 2_000;
const MAX_INTERVAL_MS = 60_000;
const INTERVALS_PER_SPAN = 30;
const SLOT_MS = 5 * 60_000;
/** A day, in slots of five minutes; and half of one that comes. */
const SLOTS = 288;
const NEXT = 144;
const WIDTH = SLOTS + NEXT;
const HEIGHT = 100;

/** How long an answer is good for. */
export function historyIntervalMs({ machines }: HistoryAnswer): number {
  const spans = machines.flatMap(({ gpus }) => gpus.map(({ spanSeconds }) => spanSeconds));
  const shareMs = (Math.max(0, ...spans) * 1_000) / INTERVALS_PER_SPAN;
  return Math.min(MAX_INTERVAL_MS, Math.max(MIN_INTERVAL_MS, shareMs));
}

interface ChartProps {
  day: GPUDay;
  gpu: GPU;
  label: string;
  now: number;
}

export function Chart({ day, gpu, label, now }: ChartProps) {
  const { utilizationPercent, leasedPercent } = day;
  const { lease, shares, booking } = gpu;
  const at = (time: string | null | undefined) => SLOTS + (Date.parse(time ?? '') - now) / SLOT_MS;
  const holders = lease === null ? shares : [lease];
  const since = clamp(Math.min(SLOTS, ...holders.map((holder) => at(holder.since) || 0)));
  const until = clamp(Math.max(SLOTS, ...holders.map((holder) => at(holder.until) || 0)));
  // The time before belongs to others.
  const own = Math.floor(since);
  const booked = booking === null ? 0 : clamp(Math.max(SLOTS, at(booking.from)));
  const bookedUntil = booking === null ? 0 : clamp(at(booking.until));
  const isBooked = booking !== null && booked < bookedUntil;
  return (
    <span class={`chart ${colourOf(lease?.user)}`}>
      <svg
        role="img"
        aria-label={`${label}, ${dayText(day)}`}
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
      >
        <title>{dayText(day)}</title>
        <path class="known" d={band(leasedPercent, (value) => value !== null)} />
        <path class="leases" d={band(leasedPercent.slice(0, own), (value) => value !== null && value > 0)} />
        {holders.length > 0 && <path class="lease" d={`M${since} 0H${until}V${HEIGHT}H${since}Z`} />}
        <path class="others" d={area(utilizationPercent.slice(0, own), 0)} />
        <path class="utilization" d={area(utilizationPercent.slice(own), own)} />
      </svg>
      {isBooked && (
        <i
          class="booked"
          style={{ left: percent(booked), width: percent(bookedUntil - booked) }}
          title={bookingText(booking, now)}
        />
      )}
      <i class="now" />
      <span class="axis" aria-hidden="true">
        <span>−24 h</span>
        <span class="cut">
          {isBooked ? `${booking.user} ${hour(booking.from, now)}–${hour(booking.until, now)}` : '+12 h'}
        </span>
      </span>
    </span>
  );
}

/** 'booked by cara from 09:00 until 12:00' */
export function bookingText({ user, from, until }: NonNullable<GPU['booking']>, now: number): string {
  const begin = Date.parse(from) > now ? `from ${formatSince(from, now)} ` : '';
  return `booked by ${user} ${begin}until ${formatSince(until, now)}`;
}

/** 'last 24 h: leased for 11 h, 60 % utilization, memory up to 69 %' */
export function dayText({ utilizationPercent, memoryPercent, spanSeconds, leasedSeconds }: GPUDay): string {
  const used = known(utilizationPercent);
  const memory = known(memoryPercent);
  const mean = used.reduce((sum, each) => sum + each, 0) / used.length;
  const text = [
    leasedSeconds === 0 ? 'never leased' : `leased for ${formatDuration(leasedSeconds * 1_000)}`,
    used.length === 0 ? '' : `${Math.round(mean)} % utilization`,
    memory.length === 0 ? '' : `memory up to ${Math.max(...memory)} %`,
  ];
  const span = spanSeconds < 86_400 ? `last ${formatDuration(spanSeconds * 1_000)}` : 'last 24 h';
  return `${span}: ${text.filter(Boolean).join(', ')}`;
}

const known = (values: readonly (number | null)[]) => values.filter((value) => value !== null);
const clamp = (slot: number) => Math.min(WIDTH, Math.max(0, slot));
const percent = (slots: number) => `${((slots * 100) / WIDTH).toFixed(2)}%`;
const hour = (time: string, now: number) => formatSince(Math.max(now, Date.parse(time)), now)?.split(' ')[0];
const y = (value: number) => (HEIGHT - value).toFixed(0);

/** The parts in which something is known, each with the slot where it begins. */
function runs(values: readonly (number | null)[]): { start: number; values: number[] }[] {
  const found: { start: number; values: number[] }[] = [];
  for (const [slot, value] of values.entries()) {
    const last = found.at(-1);
    if (value === null) continue;
    if (last !== undefined && last.start + last.values.length === slot) last.values.push(value);
    else found.push({ start: slot, values: [value] });
  }
  return found;
}

/** Steps: a slot is a stretch of time. */
const steps = (start: number, values: readonly number[]) =>
  values.map((value, i) => `L${start + i} ${y(value)}H${start + i + 1}`).join('');

const area = (values: readonly (number | null)[], first: number) =>
  runs(values)
    .map(({ start, values }) => `M${first + start} ${HEIGHT}${steps(first + start, values)}V${HEIGHT}Z`)
    .join('');

const band = (values: readonly (number | null)[], isIn: (value: number | null) => boolean) =>
  runs(values.map((value) => (isIn(value) ? 1 : null)))
    .map(({ start, values: { length } }) => `M${start} 0H${start + length}V${HEIGHT}H${start}Z`)
    .join('');
