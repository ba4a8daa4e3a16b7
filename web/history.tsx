// The last 24 hours of each GPU, as charts.
import { formatDuration } from '../lib/platform/quantities.ts';
import type { GPUDay } from '../lib/views/web/day.ts';
import type { HistoryAnswer } from '../lib/views/web/feed.ts';

/** The history is asked for more often while it is short, so that the picture is about as old as the rest. */
const MIN_INTERVAL_MS = 2_000;
const MAX_INTERVAL_MS = 60_000;
const INTERVALS_PER_SPAN = 30;
/** A day, in slots of five minutes. */
const SLOTS = 288;
const HEIGHT = 60;
const HOURS = [6, 12, 18];

/** How long an answer is good for. */
export function historyIntervalMs({ machines }: HistoryAnswer): number {
  const spans = machines.flatMap(({ gpus }) => gpus.map(({ spanSeconds }) => spanSeconds));
  const shareMs = (Math.max(0, ...spans) * 1_000) / INTERVALS_PER_SPAN;
  return Math.min(MAX_INTERVAL_MS, Math.max(MIN_INTERVAL_MS, shareMs));
}

/** The first slot in which something is known of any GPU: with it charts begin. */
export function firstSlotOf(days: readonly GPUDay[]): number {
  const first = days.map(({ leasedPercent }) => leasedPercent.findIndex((value) => value !== null));
  return Math.min(SLOTS - 1, ...first.filter((slot) => slot >= 0));
}

interface ChartProps {
  day: GPUDay;
  label: string;
  firstSlot: number;
}

/** A figure: the band of leases, the area of utilization, the line of memory. */
export function Chart({ day, label, firstSlot }: ChartProps) {
  const { utilizationPercent, memoryPercent, leasedPercent, spanSeconds, leasedSeconds } = day;
  const used = known(utilizationPercent);
  const memory = known(memoryPercent);
  const mean = used.reduce((sum, each) => sum + each, 0) / used.length;
  const leased = leasedSeconds === 0 ? 'never leased' : `leased for ${formatDuration(leasedSeconds * 1_000)}`;
  const text = [
    leased,
    used.length === 0 ? '' : `${Math.round(mean)} % utilization`,
    memory.length === 0 ? '' : `memory up to ${Math.max(...memory)} %`,
  ].filter(Boolean);
  const span = spanSeconds < 86_400 ? `last ${formatDuration(spanSeconds * 1_000)}` : 'last 24 h';
  const width = SLOTS - firstSlot;
  return (
    <figure class="chart" title={[span, ...text].join(', ')}>
      <svg
        role="img"
        aria-label={`${label}, ${span}: ${text.join(', ')}`}
        viewBox={`${firstSlot} 0 ${width} ${HEIGHT}`}
        preserveAspectRatio="none"
      >
        {HOURS.map((hour) => (
          <path key={hour} class="hour" d={`M${SLOTS - (hour * SLOTS) / 24} 0V${HEIGHT}`} />
        ))}
        <path class="leases" d={band(leasedPercent)} />
        <path class="utilization" d={area(utilizationPercent)} />
        <path class="memory" d={line(memoryPercent)} />
      </svg>
      <figcaption>
        {span}: {leased}
      </figcaption>
    </figure>
  );
}

/** Explains the colours once. */
export function Legend() {
  return (
    <p class="legend">
      Last 24 hours:
      <span class="utilization">utilization</span>
      <span class="memory">memory</span>
      <span class="leases">leased</span>
    </p>
  );
}

const known = (values: readonly (number | null)[]) => values.filter((value) => value !== null);
const y = (percent: number) => (HEIGHT - (percent * HEIGHT) / 100).toFixed(1);

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

const line = (values: readonly (number | null)[]) =>
  runs(values)
    .map(
      ({ start, values: [first = 0, ...rest] }) =>
        `M${start} ${y(first)}H${start + 1}${steps(start + 1, rest)}`,
    )
    .join('');

const area = (values: readonly (number | null)[]) =>
  runs(values)
    .map(({ start, values }) => `M${start} ${HEIGHT}${steps(start, values)}V${HEIGHT}Z`)
    .join('');

const band = (values: readonly (number | null)[]) =>
  values.map((value, slot) => (value ? `M${slot} 0H${slot + 1}V${HEIGHT}H${slot}Z` : '')).join('');
