// A GPU: its state, who has it and until when, two bars, and its day; a click shows the rest.
import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import { shownState } from '../lib/gpus/types.ts';
import { idleText } from '../lib/platform/idle-text.ts';
import { formatBytes, formatDuration, formatSince } from '../lib/platform/quantities.ts';
import type { MachineSnapshot } from '../lib/views/machine-view.ts';
import type { GPUDay } from '../lib/views/web/shapes.ts';
import { bookingText, Chart, dayText } from './history.tsx';
import { Pair } from './listing.tsx';
import { colourOf, User } from './users.tsx';

export type GPU = MachineSnapshot['gpus'][number];
export type Intruder = MachineSnapshot['intruders'][number];
type Share = GPU['shares'][number];

/** How much is shown of each GPU, by how many there are. */
export type Density = 'cards' | 'compact' | 'lines';

const GIB = 1024 ** 3;
const SOON_MS = 12 * 3_600_000;
const DAY_MS = 2 * SOON_MS;

export const labelOf = ({ index, instance }: { index: number; instance?: number | null }) =>
  typeof instance === 'number' ? `${index}:${instance}` : String(index);
const titleOf = (gpu: { index: number; instance: number | null }) =>
  `${gpu.instance === null ? 'GPU' : 'MIG'} ${labelOf(gpu)}`;

interface GPUCardProps {
  gpu: GPU;
  /** Processes on it without a claim. */
  intruders: readonly Intruder[];
  day: GPUDay | undefined;
  density: Density;
  now: number;
  /** null: there is one. */
  host: string | null;
}

export function GPUCard({ gpu, intruders, day, density, now, host }: GPUCardProps) {
  const [isOpen, setOpen] = useState(false);
  const Title = host === null ? 'h3' : 'h4';
  const { memory, utilizationPercent, powerWatts, temperatureCelsius } = gpu;
  const readings = [
    gpu.name.replace(/^NVIDIA /, ''),
    temperatureCelsius === null ? '' : `${temperatureCelsius} °C`,
    powerWatts === null ? '' : `${Math.round(powerWatts)} W`,
  ].filter(Boolean);
  const model = readings.join(' · ');
  const [kind, state] = stateOf(gpu, intruders, now);
  const name = `${host === null ? '' : `${host} `}${titleOf(gpu)}`;
  const chart = day !== undefined && <Chart day={day} gpu={gpu} label={name} now={now} />;
  const total = memory.totalBytes || 1;
  return (
    <li class="gpu">
      <details onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>
          <span class="title">
            <Title>{titleOf(gpu)}</Title> <span class="model cut">{model}</span>{' '}
            <span class={`state ${kind}`}>{state}</span>
          </span>
          <Who gpu={gpu} intruders={intruders} now={now} />
          <span class="meters">
            <Meter
              name="GPU"
              label={`Utilization of ${name}`}
              text={utilizationPercent === null ? '?' : `${utilizationPercent} %`}
              parts={[[soleUser(gpu, intruders), (utilizationPercent ?? 0) / 100]]}
            />
            <Meter
              name="Mem"
              label={`Memory of ${name}`}
              text={
                memory.usedBytes === null
                  ? '?'
                  : density === 'lines'
                    ? `${gib(memory.usedBytes)} GiB`
                    : `${gib(memory.usedBytes)} of ${gib(memory.totalBytes)} GiB`
              }
              parts={memoryParts(gpu, intruders).map(([user, bytes]) => [user, bytes / total])}
            />
          </span>
          {density === 'cards' && chart}
        </summary>
        {isOpen && (
          <>
            {density !== 'cards' && chart}
            <Facts gpu={gpu} intruders={intruders} day={day} model={model} now={now} />
          </>
        )}
      </details>
    </li>
  );
}

/** The look of its state, and the state in words. */
function stateOf(gpu: GPU, intruders: readonly Intruder[], now: number): [kind: string, text: string] {
  if (gpu.state === 'busy' && intruders.length > 0) return ['busy', 'without a claim'];
  const state = shownState(gpu);
  const { length } = gpu.shares;
  const { booking } = gpu;
  if (state === 'free' && booking !== null && Date.parse(booking.from) - now < SOON_MS)
    return ['free', `free ${soon('until', booking.from, now)}`];
  return [state, state === 'shared' ? `${length} share${length === 1 ? '' : 's'}` : state];
}

/** 'ana · llama-sft · until 07:33' */
function Who({ gpu, intruders, now }: { gpu: GPU; intruders: readonly Intruder[]; now: number }) {
  const { lease, shares, booking, reason } = gpu;
  const others = [...new Set(intruders.map(({ user }) => user ?? 'unknown user'))];
  const [first] = intruders;
  if (first !== undefined && lease === null && shares.length === 0)
    return <Line users={others} text={first.name ?? `PID ${first.pid}`} />;
  if (first !== undefined)
    return (
      <Line users={others} text="" isBad>
        without a claim
      </Line>
    );
  if (lease !== null) {
    const idle = idleOf(gpu, now)?.replace(/^(idle for \d+ \w+) .*/, '$1');
    const notes = [idle, lease.preemptible ? 'gives way' : null, soon('until', lease.until, now)];
    const job = lease.name ?? (lease.job === undefined ? `PID ${lease.pid ?? '?'}` : `job ${lease.job}`);
    return (
      <Line users={[lease.user]} text={job}>
        {notes.filter(Boolean).join(' · ')}
      </Line>
    );
  }
  const over = shares.find(isOverused);
  if (over !== undefined)
    return (
      <Line users={[over.user]} text="" isBad>
        uses {gib(over.usedBytes)} of {gib(over.bytes)} GiB
      </Line>
    );
  if (shares.length > 0) return <Line users={[...new Set(shares.map(({ user }) => user))]} text="" />;
  if (booking !== null && Date.parse(booking.from) - now < SOON_MS)
    return (
      <Line
        users={[booking.user]}
        text={
          Date.parse(booking.from) > now ? 'has booked it' : `booked ${soon('until', booking.until, now)}`
        }
      />
    );
  const text = reason ?? (gpu.migEnabled === true ? 'divided into MIG instances' : '');
  return (
    <span class="who">
      <span class="cut quiet" title={text}>
        {text}
      </span>
    </span>
  );
}

/** 'until 07:33', and with its day if it isn't within one; null: unknown. */
function soon(word: string, time: string | null | undefined, now: number): string | null {
  const moment = formatSince(time, now);
  if (moment === null) return null;
  return `${word} ${Date.parse(time as string) - now < DAY_MS ? moment.split(' ')[0] : moment}`;
}

function Line({
  users,
  text,
  isBad = false,
  children,
}: {
  users: readonly string[];
  text: string;
  isBad?: boolean;
  children?: ComponentChildren;
}) {
  return (
    <span class="who">
      {users.slice(0, 2).map((user) => (
        <User key={user} name={user} />
      ))}
      {users.length > 2 && <span class="quiet">+{users.length - 2}</span>}
      {text !== '' && <span class="cut">{text}</span>}
      <span class={isBad ? 'end bad' : 'end'}>{children}</span>
    </span>
  );
}

/** The user of all that runs on it; null: none, or several. */
function soleUser({ lease, shares }: GPU, intruders: readonly Intruder[]): string | null {
  const users = new Set([...(lease === null ? shares : [lease]), ...intruders].map(({ user }) => user));
  return users.size === 1 ? ([...users][0] ?? null) : null;
}

type Part = readonly [user: string | null, bytes: number];

/** The parts of the used memory with their users: the holder has what can't be told apart. */
function memoryParts({ memory, lease, shares }: GPU, intruders: readonly Intruder[]): Part[] {
  const others = intruders.map(({ user, usedBytes }): Part => [user, usedBytes ?? 0]);
  const parts = [...shares.map(({ user, usedBytes }): Part => [user, usedBytes ?? 0]), ...others];
  const rest = (memory.usedBytes ?? 0) - parts.reduce((sum, [, bytes]) => sum + bytes, 0);
  const whole: Part = [lease?.user ?? null, Math.max(0, rest)];
  return lease === null ? [...parts, whole] : [whole, ...parts];
}

function Facts({
  gpu,
  intruders,
  day,
  model,
  now,
}: Omit<GPUCardProps, 'density' | 'host'> & { model: string }) {
  const { lease, shares, reason, booking } = gpu;
  const holders = lease === null ? shares : [lease.nested ?? lease];
  return (
    <dl>
      <Pair name="Model" content={model} />
      {holders.map((holder) => (
        <Pair key={`${holder.pid} ${holder.since}`} name={holder.user} content={holderText(holder, now)} />
      ))}
      {intruders.map(({ pid, name, user, usedBytes }) => (
        <Pair
          key={pid}
          name={user ?? 'unknown user'}
          class="bad"
          content={`${name ?? 'a process'} (PID ${pid})${usedBytes === null ? '' : `, ${formatBytes(usedBytes)}`}, without a claim`}
        />
      ))}
      {holders.length === 0 && intruders.length === 0 && reason !== null && (
        <Pair name="Reason" content={reason} />
      )}
      {booking !== null && (
        <Pair name="Booking" content={[bookingText(booking, now), booking.note].filter(Boolean).join(': ')} />
      )}
      {day !== undefined && <Pair name="Day" content={dayText(day)} />}
    </dl>
  );
}

/** 'job 3 llama-sft, uses 7.3 GiB of 20 GiB, since 10:42 (1 h), until 12:42 (in 1 h), for Friday; python train.py' */
function holderText(holder: Omit<Share, 'bytes' | 'usedBytes'> & Partial<Share>, now: number): string {
  const {
    job,
    name,
    pid,
    preemptible,
    since,
    until,
    idleEnds,
    note,
    command,
    bytes,
    usedBytes = null,
  } = holder;
  const amount = bytes === undefined ? '' : formatBytes(bytes);
  const words = [
    [job === undefined ? '' : `job ${job}`, name ?? ''].filter(Boolean).join(' ') || `PID ${pid ?? '?'}`,
    usedBytes === null ? amount : `uses ${formatBytes(usedBytes)} of ${amount}`,
    preemptible ? 'gives way to requests that can’t start otherwise' : '',
    since === null ? '' : `since ${sinceText(since, now)}`,
    until === undefined ? '' : `until ${untilText(until, now)}`,
    idleEnds === undefined ? '' : `ended ${untilText(idleEnds, now)} unless used`,
    note ?? '',
  ];
  return [words.filter(Boolean).join(', '), command ?? ''].filter(Boolean).join('; ');
}

interface MeterProps {
  name: string;
  label: string;
  text: string;
  /** Each with its share of the whole. */
  parts: readonly Part[];
}

function Meter({ name, label, text, parts }: MeterProps) {
  const share = parts.reduce((sum, [, part]) => sum + part, 0);
  return (
    <span class="meter">
      <span class="quiet">{name}</span>
      {/* Browsers draw <meter> each in their own way, and of one part only. */}
      {/* biome-ignore lint/a11y/useSemanticElements: as said */}
      <span
        class="bar"
        role="meter"
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuenow={percent(share)}
        aria-valuetext={text}
        aria-label={label}
      >
        {parts.map(([user, part], i) => (
          <i key={i} class={colourOf(user)} style={{ width: `${percent(part)}%` }} />
        ))}
      </span>
      <span class="amount">{text}</span>
    </span>
  );
}

const percent = (share: number) => Math.round(Math.min(1, Math.max(0, share)) * 1_000) / 10;
const isOverused = ({ bytes, usedBytes }: Share) => usedBytes !== null && usedBytes > bytes;

/** '7.3', '96' */
function gib(bytes: number | null): string {
  const amount = (bytes ?? 0) / GIB;
  return amount.toFixed(amount < 10 ? 1 : 0);
}

/** '22:33 (18 min)' */
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
