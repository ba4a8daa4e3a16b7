// A GPU as a card: what it does, its last 24 hours, and who has it.
import { shownState } from '../lib/gpus/types.ts';
import { idleText } from '../lib/platform/idle-text.ts';
import { formatBytes, formatDuration, formatSince } from '../lib/platform/quantities.ts';
import type { MachineSnapshot } from '../lib/views/machine-view.ts';
import type { GPUDay } from '../lib/views/web/day.ts';
import { Chart } from './history.tsx';
import { Pair } from './listing.tsx';

export type GPU = MachineSnapshot['gpus'][number];
export type Intruder = MachineSnapshot['intruders'][number];

const MAX_INTRUDERS = 3;

export const labelOf = ({ index, instance }: { index: number; instance?: number | null }) =>
  typeof instance === 'number' ? `${index}:${instance}` : String(index);
const titleOf = (gpu: { index: number; instance: number | null }) =>
  `${gpu.instance === null ? 'GPU' : 'MIG'} ${labelOf(gpu)}`;

interface GPUCardProps {
  gpu: GPU;
  /** Processes on it without a claim. */
  intruders: readonly Intruder[];
  day: GPUDay | undefined;
  /** The slot with which charts begin. */
  firstSlot: number;
  now: number;
  /** null: there is one. */
  host: string | null;
}

export function GPUCard({ gpu, intruders, day, firstSlot, now, host }: GPUCardProps) {
  const Title = host === null ? 'h3' : 'h4';
  const { memory, lease, shares, utilizationPercent, powerWatts, temperatureCelsius, reason } = gpu;
  const label = labelOf(gpu);
  const readings = [
    temperatureCelsius === null ? '' : `${temperatureCelsius} °C`,
    powerWatts === null ? '' : `${Math.round(powerWatts)} W`,
  ].filter(Boolean);
  const model = [gpu.name.replace(/^NVIDIA /, ''), ...readings].join(' · ');
  const idle = idleOf(gpu, now);
  const [kind, state] = stateOf(gpu, intruders, idle);
  return (
    <li class={`card ${kind}`}>
      <Title>
        {titleOf(gpu)} <span class="state">{state}</span>
      </Title>
      <p class="model" title={model}>
        {model}
      </p>
      <Meter
        name="Utilization"
        of={`GPU ${label}`}
        share={utilizationPercent === null ? null : utilizationPercent / 100}
        levels={[0.1, 0.75]}
        text={utilizationPercent === null ? '?' : `${utilizationPercent} %`}
      />
      <Meter
        name="Memory"
        of={`GPU ${label}`}
        share={memory.usedBytes !== null && memory.totalBytes ? memory.usedBytes / memory.totalBytes : null}
        levels={[0.1, 0.8]}
        text={
          memory.usedBytes === null
            ? '?'
            : `${formatBytes(memory.usedBytes)} of ${formatBytes(memory.totalBytes)}`
        }
      />
      {day !== undefined && (
        <Chart day={day} label={`${host === null ? '' : `${host} `}${titleOf(day)}`} firstSlot={firstSlot} />
      )}
      {lease === null && shares.length === 0 && intruders.length === 0 && reason !== null && (
        <p class="reason">{reason}</p>
      )}
      <dl>
        {lease !== null && (
          <>
            <Pair name="Holder" content={lease.user} class="holder" />
            <Detail name="Job" text={jobText(lease)} />
            <Detail name="Note" text={lease.note} />
            <Detail name="Command" text={lease.command} />
            <Detail name="Since" text={sinceText(lease.since, now)} isTime />
            <Detail name="Until" text={untilText(lease.until, now)} isTime />
            <Detail name="Idle, ends" text={untilText(lease.idleEnds, now)} isTime />
          </>
        )}
        {shares.map((share) => (
          <Pair
            key={`${share.pid} ${share.since}`}
            name={share.user}
            class={isOverused(share) ? 'bad' : 'cut'}
            content={shareText(share, now)}
            title={share.command ?? ''}
          />
        ))}
        {intruders.slice(0, MAX_INTRUDERS).map(({ pid, name, user }) => {
          const text = `${user ?? 'unknown user'}: ${name ?? 'a process'} (PID ${pid})`;
          // On a leased GPU the heading doesn't tell it.
          const isTaken = lease !== null || shares.length > 0;
          const more = isTaken ? ', without a claim' : '';
          return <Pair key={pid} name={isTaken ? 'Also' : 'User'} class="bad" content={text + more} />;
        })}
        {intruders.length > MAX_INTRUDERS && (
          <Pair name="" content={`and ${intruders.length - MAX_INTRUDERS} more`} class="bad" />
        )}
      </dl>
    </li>
  );
}

/** The look of the card, and its state in words. */
function stateOf(
  gpu: GPU,
  intruders: readonly Intruder[],
  idle: string | null,
): [kind: string, text: string] {
  if (gpu.state === 'busy' && intruders.length > 0) return ['busy', 'without a claim'];
  return idle === null ? [gpu.state, shownState(gpu)] : ['idle', idle];
}

function Detail({
  name,
  text,
  isTime = false,
}: {
  name: string;
  text: string | null | undefined;
  isTime?: boolean;
}) {
  if (text === null || text === undefined || text === '') return null;
  return <Pair name={name} content={text} class={isTime ? '' : 'cut'} title={text} />;
}

interface MeterProps {
  name: string;
  of: string;
  share: number | null;
  /** From where on it is a medium level, and a high one. */
  levels: readonly [medium: number, high: number];
  text: string;
}

function Meter({ name, of, share, levels, text }: MeterProps) {
  const level = share === null || share < levels[0] ? 'low' : share < levels[1] ? 'medium' : 'high';
  return (
    <div class="meter">
      <span class="name">{name}</span>
      <span>{text}</span>
      {share !== null && (
        // Browsers draw <meter> each in their own way, and over the text above it.
        // biome-ignore lint/a11y/useSemanticElements: as said
        <div
          class={`bar ${level}`}
          role="meter"
          aria-valuemin={0}
          aria-valuemax={100}
          aria-valuenow={percent(share)}
          aria-valuetext={text}
          aria-label={`${name} of ${of}`}
        >
          <div style={{ width: `${percent(share)}%` }} />
        </div>
      )}
    </div>
  );
}

const percent = (share: number) => Math.round(Math.min(1, Math.max(0, share)) * 100);

const isOverused = ({ bytes, usedBytes }: GPU['shares'][number]) => usedBytes !== null && usedBytes > bytes;

/** 'uses 7.3 of 20 GiB, PID 31415, since 10:42 (1 h)' */
function shareText(share: GPU['shares'][number], now: number): string {
  const { bytes, usedBytes } = share;
  const of =
    usedBytes === null ? formatBytes(bytes) : `uses ${formatBytes(usedBytes)} of ${formatBytes(bytes)}`;
  const since = sinceText(share.since, now);
  const until = untilText(share.until, now);
  const when = [...(since === null ? [] : [`since ${since}`]), ...(until === null ? [] : [`until ${until}`])];
  return [of, jobText(share), ...when, share.note ?? ''].filter(Boolean).join(', ');
}

function jobText({ job, name, pid, preemptible }: NonNullable<GPU['lease']>): string {
  const which = [job === undefined ? (pid === null ? '' : `PID ${pid}`) : String(job), name ?? ''];
  return [which.filter(Boolean).join(' '), preemptible ? 'preemptible' : ''].filter(Boolean).join(', ');
}

export function sinceText(since: string | null, now: number): string | null {
  const moment = formatSince(since, now);
  return moment === null || since === null ? null : `${moment} (${formatDuration(now - Date.parse(since))})`;
}

/** null: there is no limit. */
export function untilText(until: string | null | undefined, now: number): string | null {
  const moment = formatSince(until, now);
  if (moment === null) return null;
  const left = Date.parse(until as string) - now;
  // The moment is exact already.
  const [amount, unit] = formatDuration(left).split(' ');
  return `${moment} (${left > 0 ? `in ${amount} ${unit}` : 'time limit reached'})`;
}

/** The idle time of a leased GPU; null: it works, or hasn't rested for long. */
export function idleOf({ idle, lease }: GPU, now: number): string | null {
  return lease === null ? null : idleText(idle, lease.since, now);
}
