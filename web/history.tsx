// The last 24 hours of each GPU, as charts.
import { useEffect, useState } from 'preact/hooks';
import { formatDuration } from '../lib/platform/quantities.ts';
import type { GPUDay } from '../lib/views/web/day.ts';
import type { HistoryAnswer } from '../lib/views/web/feed.ts';

const INTERVAL_MS = 60_000;
/** Until the server knows something. */
const FIRST_INTERVAL_MS = 2_000;
const WIDTH = 288;
const HEIGHT = 60;
const HOURS = [6, 12, 18];

/** Asks for the last 24 hours as long as the page is seen. null: not known yet */
export function useHistory(token: string | null, isSeen: boolean): HistoryAnswer | null {
  const [history, setHistory] = useState<HistoryAnswer | null>(null);
  useEffect(() => {
    if (token === null || !isSeen) return;
    const end = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const ask = async (): Promise<boolean> => {
      const headers = { authorization: `Bearer ${token}` };
      const response = await fetch('api/v1/history', { headers, cache: 'no-store', signal: end.signal });
      if (!response.ok) return true;
      const answer = (await response.json()) as HistoryAnswer;
      setHistory(answer);
      return answer.machines.some(({ gpus }) => gpus.length > 0);
    };
    const repeat = async () => {
      // Where there is no connection, the stream says so.
      const isKnown = await ask().catch(() => true);
      if (!end.signal.aborted) timer = setTimeout(repeat, isKnown ? INTERVAL_MS : FIRST_INTERVAL_MS);
    };
    void repeat();
    return () => {
      clearTimeout(timer);
      end.abort();
    };
  }, [token, isSeen]);
  return history;
}

interface ChartProps {
  day: GPUDay;
  label: string;
  slotSeconds: number;
}

/** A figure: the band of leases, the area of utilization, the line of memory. */
export function Chart({ day, label, slotSeconds }: ChartProps) {
  const { utilizationPercent, memoryPercent, leasedPercent } = day;
  const text = summaryOf(day, slotSeconds);
  return (
    <figure class="chart">
      <figcaption>
        <strong>{label}</strong> {text}
      </figcaption>
      <svg
        role="img"
        aria-label={`${label}, last 24 hours: ${text}`}
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
      >
        {HOURS.map((hour) => (
          <path key={hour} class="hour" d={`M${(hour * WIDTH) / 24} 0V${HEIGHT}`} />
        ))}
        <path class="leases" d={band(leasedPercent)} />
        <path class="utilization" d={area(utilizationPercent)} />
        <path class="memory" d={line(memoryPercent)} />
      </svg>
      <div class="axis" aria-hidden="true">
        <span>24 h ago</span>
        <span>12 h ago</span>
        <span>now</span>
      </div>
    </figure>
  );
}

/** Explains the colours once. */
export function Legend() {
  return (
    <p class="legend">
      <span class="utilization">utilization</span>
      <span class="memory">memory</span>
      <span class="leases">leased</span>
    </p>
  );
}

function summaryOf(
  { utilizationPercent, memoryPercent, leasedPercent }: GPUDay,
  slotSeconds: number,
): string {
  const used = known(utilizationPercent);
  const memory = known(memoryPercent);
  const leasedMs = known(leasedPercent).reduce((sum, percent) => sum + percent, 0) * 10 * slotSeconds;
  return [
    used.length === 0
      ? ''
      : `${Math.round(used.reduce((sum, each) => sum + each, 0) / used.length)} % utilization`,
    memory.length === 0 ? '' : `memory up to ${Math.max(...memory)} %`,
    leasedMs === 0 ? 'never leased' : `leased for ${formatDuration(leasedMs)}`,
  ]
    .filter(Boolean)
    .join(', ');
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
