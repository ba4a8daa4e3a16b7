// The table of GPUs, for terminals of 80, 120 and 200 columns.
import { isDivided, label, shownState } from '../../gpus/index.ts';
import { formatDuration, hostName, idleTime, sanitize } from '../../platform/index.ts';
import type { ShownGPU } from '../../shapes/index.ts';
import type { MachineState } from '../machine-view.ts';
import { type Ink, type Pen, widthOf } from './pen.ts';
import { columnWidth, type filterOf, isOwn, labelWidth, type Section, shortTime, timeOf } from './rows.ts';

const DAY_MS = 86_400_000;
const GIB = 1024 ** 3;
const MAX_GPU_ROWS = 2_000;

/**
 * The columns of the table with their widths, for terminals of about 200, 120, 80, and fewer. Names have the width of
 * their content where there is room. The last one has what is left, as has the state of a GPU without a holder, from
 * HOLDER on.
 */
const LAYOUTS: readonly { minColumns: number; widths: Readonly<Record<string, number>> }[] = [
  {
    minColumns: 160,
    widths: {
      ...{ GPU: 3, NAME: 15, MEMORY: 19, UTIL: 11, MINUTE: 12, POWER: 5, TEMP: 4 },
      ...{ HOLDER: 10, JOB: 14, SINCE: 5, UNTIL: 5, IDLE: 5, NOTE: 16, COMMAND: 0 },
    },
  },
  {
    minColumns: 112,
    widths: {
      ...{ GPU: 3, MEMORY: 19, UTIL: 11, MINUTE: 10 },
      ...{ HOLDER: 12, JOB: 14, SINCE: 5, UNTIL: 5, IDLE: 5, NOTE: 0 },
    },
  },
  {
    minColumns: 76,
    widths: {
      ...{ GPU: 3, MEMORY: 7, UTIL: 4, MINUTE: 6 },
      ...{ HOLDER: 8, JOB: 10, UNTIL: 5, IDLE: 4, NOTE: 0 },
    },
  },
  { minColumns: 56, widths: { GPU: 3, MEMORY: 4, UTIL: 4, HOLDER: 10, JOB: 10, UNTIL: 5, IDLE: 4, NOTE: 0 } },
  { minColumns: 0, widths: { GPU: 3, MEMORY: 4, UTIL: 4, HOLDER: 0 } },
];
const RIGHT = ['POWER', 'TEMP', 'IDLE'];
/** Wide enough for an amount beside the bar. */
const MIN_AMOUNT_WIDTH = 16;
/** Columns that are as wide as their content, as long as this much is left for the last one. */
const NAMES = ['HOLDER', 'JOB', 'NAME', 'NOTE'];
const MIN_LAST_WIDTH = { NOTE: 6, COMMAND: 24 };

interface Column {
  title: string;
  width: number;
}

interface Cell {
  text: string;
  inks?: Ink[];
}

/** The place of a cell, and whatever else it is drawn from. */
interface Drawing {
  machine: MachineState;
  width: number;
  pen: Pen;
  now: number;
  /** Whether commands have a column of their own. */
  hasCommand: boolean;
}

const holderOf = ({ lease }: ShownGPU) => lease?.nested ?? lease;

/** A line of the table: a GPU, or below it a share of it, whose memory is the share's. */
type Shown = ShownGPU & { isShare?: true };

function withShares(gpu: ShownGPU): Shown[] {
  const unknown = { utilizationPercent: null, powerWatts: null, temperatureCelsius: null, idle: null };
  const own = gpu.shares.map((share): Shown => {
    const memory = { ...gpu.memory, usedBytes: share.usedBytes, totalBytes: share.bytes };
    return { ...gpu, ...unknown, name: '', reason: null, lease: share, shares: [], memory, isShare: true };
  });
  return [gpu, ...own];
}

const CELLS: Readonly<Record<string, (gpu: Shown, drawing: Drawing) => Cell>> = {
  GPU: (gpu) => ({
    text: gpu.isShare === true ? '' : gpu.instance === null ? label(gpu) : ` ${label(gpu)}`,
  }),
  NAME: (gpu) => ({ text: gpu.isShare === true ? 'share' : shortName(gpu) }),
  MEMORY: ({ memory: { usedBytes, totalBytes }, isShare }, { width, pen }) => {
    const share = shareOf(usedBytes, totalBytes);
    const amount = `${gib(usedBytes)}/${gib(totalBytes)}G`.padStart(13);
    const text = width >= MIN_AMOUNT_WIDTH ? amount : ` ${percent(share)}`.slice(-width);
    const isOverused = isShare === true && share !== null && share > 1;
    return { text: pen.bar(share, width - text.length) + text, inks: isOverused ? ['red'] : [] };
  },
  UTIL: ({ utilizationPercent, isShare }, { width, pen }) => {
    if (isShare === true) return { text: '' };
    const share = shareOf(utilizationPercent, 100);
    const text = ` ${percent(share)}`.slice(-width);
    return { text: pen.bar(share, width - text.length) + text, inks: ['green'] };
  },
  MINUTE: ({ uuid, isShare }, { machine, width, pen, now }) => ({
    text: isShare === true ? '' : pen.history(machine.history.of(uuid), width, now),
    inks: ['green'],
  }),
  POWER: ({ powerWatts }) => ({ text: powerWatts === null ? '' : `${Math.round(powerWatts)}W` }),
  TEMP: ({ temperatureCelsius: t }) => ({ text: t === null ? '' : `${Math.round(t)}C` }),
  HOLDER: (gpu) => {
    const lease = holderOf(gpu);
    return { text: lease?.user ?? '', inks: isOwn(lease?.uid ?? null) ? ['bold'] : [] };
  },
  JOB: (gpu) => {
    const lease = holderOf(gpu);
    const words = [lease?.job ?? '', lease?.name ?? ''].filter((word) => word !== '');
    return { text: words.length === 0 ? `pid ${lease?.pid ?? '?'}` : words.join(' ') };
  },
  SINCE: (gpu, { now }) => ({ text: shortTime(holderOf(gpu)?.since ?? null, now) }),
  UNTIL: (gpu, { now }) => {
    const { until, idleEnds } = holderOf(gpu) ?? {};
    // ISO 8601: the earlier one is the lesser text.
    const [first = null] = [until, idleEnds].filter((time) => time !== undefined).sort();
    return { text: shortTime(first, now), inks: first !== null && first === idleEnds ? ['magenta'] : [] };
  },
  IDLE: (gpu, { now }) => ({ text: idleCell(gpu, now), inks: ['magenta'] }),
  NOTE: (gpu, { hasCommand, now }) => {
    const { note = null, command = null, preemptible } = holderOf(gpu) ?? {};
    const text = note ?? (hasCommand ? null : command);
    const words = [preemptible ? 'preemptible' : null, bookingText(gpu, now), text];
    return { text: words.filter(Boolean).join('; ') };
  },
  COMMAND: (gpu) => ({ text: holderOf(gpu)?.command ?? '' }),
};

/** 'booked by cara from 09:00'; null: it isn't, or its share shows it. */
function bookingText({ booking, isShare }: Shown, now: number): string | null {
  if (!booking || isShare === true) return null;
  const { user, from, until } = booking;
  const when = Date.parse(from) > now ? `from ${shortTime(from, now)}` : `until ${shortTime(until, now)}`;
  return `booked by ${user} ${when}`;
}

function gpuColumns(machines: readonly MachineState[], pen: Pen, now: number): Column[] {
  const gpus = machines.flatMap(({ snapshot }) => snapshot?.gpus ?? []);
  const layout = LAYOUTS.find(({ minColumns }) => minColumns <= pen.width);
  const widths: Record<string, number> = { ...layout?.widths, GPU: labelWidth(gpus) };
  const lines = gpus.slice(0, MAX_GPU_ROWS).flatMap(withShares);
  const least = widths.COMMAND === undefined ? MIN_LAST_WIDTH.NOTE : MIN_LAST_WIDTH.COMMAND;
  const left = () => pen.width - Object.values(widths).reduce((sum, width) => sum + width + 1, 0);
  for (const title of NAMES) {
    const width = widths[title] ?? 0;
    if (width === 0) continue;
    const texts = lines
      .filter((gpu) => title === 'NAME' || holderOf(gpu) !== null)
      .map((gpu) => CELLS[title]?.(gpu, { pen, now, width, hasCommand: true } as Drawing).text);
    const content = columnWidth(texts, title.length, pen.width);
    widths[title] = Math.min(content, Math.max(width, width + left() - least));
  }
  const rest = Math.max(1, left());
  return Object.entries(widths).map(([title, width]) => ({ title, width: width === 0 ? rest : width }));
}

export function gpuSection(
  machines: readonly MachineState[],
  isFleet: boolean,
  wanted: ReturnType<typeof filterOf>,
  pen: Pen,
  now: number,
): Section {
  const columns = gpuColumns(machines, pen, now);
  const heading = columns.map(({ title, width }) => pen.cell(title, width, RIGHT.includes(title)));
  const rows: Section['rows'] = [];
  for (const machine of machines) {
    const gpus = (machine.snapshot?.gpus ?? []).slice(0, MAX_GPU_ROWS);
    if (isFleet) rows.push(hostLine(machine, pen));
    const kept = gpus.flatMap(withShares).filter((gpu) => {
      const { user, name, note, command, job } = holderOf(gpu) ?? {};
      return wanted(
        machine.host,
        label(gpu),
        gpu.name,
        gpu.uuid,
        gpu.state,
        user,
        name,
        note,
        command,
        job,
        gpu.reason,
      );
    });
    for (const gpu of kept) {
      const share = gpu.isShare === true ? ` ${gpu.lease?.pid} ${gpu.lease?.since}` : '';
      rows.push({
        key: `${machine.host ?? ''} ${gpu.uuid || label(gpu)}${share}`,
        draw: () => gpuLine(gpu, machine, columns, pen, now),
      });
    }
  }
  if (machines.every(({ snapshot }) => snapshot?.gpus.length === 0))
    rows.push(pen.fit(' The driver reports no GPU.'));
  else if (!isFleet && machines.every(({ snapshot }) => snapshot === null))
    rows.push(pen.fit(' Asking the driver ...'));
  return { head: ` ${heading.join(' ')}`, rows };
}

/** Without a holder, the state and its reason take the room of all that could be told of one. */
function gpuLine(
  gpu: Shown,
  machine: MachineState,
  columns: readonly Column[],
  pen: Pen,
  now: number,
): string {
  const at = columns.findIndex(({ title }) => title === 'HOLDER');
  const own = gpu.lease === null ? columns.slice(0, at) : columns;
  const hasCommand = columns.some(({ title }) => title === 'COMMAND');
  const cells = own.map(({ title, width }) => {
    const { text = '', inks = [] } = CELLS[title]?.(gpu, { machine, width, pen, now, hasCommand }) ?? {};
    const cell =
      title === 'HOLDER' ? pen.nameCell(text, width) : pen.cell(text, width, RIGHT.includes(title));
    return pen.ink(cell, ...inks);
  });
  const rest = columns.slice(own.length);
  const room = rest.reduce((sum, { width }) => sum + width + 1, -1);
  if (rest.length > 0) cells.push(pen.ink(pen.cell(stateText(gpu, now), room), ...stateInks(gpu)));
  return cells.join(' ');
}

/** "busy: python (4711, bob) uses 31 GiB" */
function stateText(gpu: Shown, now: number): string {
  if (isDivided(gpu)) return 'divided into MIG instances';
  const { state, reason } = gpu;
  if (reason === null) return [state, bookingText(gpu, now)].filter(Boolean).join(', ');
  return state === 'busy' || state === 'unavailable' ? `${state}: ${reason}` : reason;
}

function hostLine({ host, snapshot, problem }: MachineState, pen: Pen): string {
  const name = pen.fit(host ?? hostName(), Math.min(40, pen.width - 4));
  const waiting = snapshot === null || snapshot.waiting === 0 ? '' : `, ${snapshot.waiting} waiting`;
  const since = snapshot === null ? '' : ` (shown as of ${timeOf(snapshot.time)})`;
  const isGood = problem === null && snapshot !== null;
  const text = isGood ? countGPUs(snapshot.gpus) + waiting : `${problem ?? 'connecting ...'}${since}`;
  const fitted = pen.fit(text, Math.max(0, pen.width - widthOf(name) - 2));
  return `${pen.ink(name, 'bold')}  ${problem === null ? fitted : pen.ink(fitted, 'red')}`;
}

const STATES = ['free', 'suspect', 'leased', 'booked', 'shared', 'busy', 'unavailable'] as const;

/** "8 GPUs: 2 free, 6 leased"; a GPU that MIG divides counts by its instances. */
export function countGPUs(gpus: readonly ShownGPU[]): string {
  const units = gpus.filter((gpu) => !isDivided(gpu));
  const counts = STATES.map(
    (state) => [units.filter((gpu) => shownState(gpu) === state).length, state] as const,
  );
  const some = counts.filter(([count]) => count > 0).map(([count, state]) => `${count} ${state}`);
  const what = `${units.length} GPU${units.length === 1 ? '' : 's'}`;
  return some.length === 0 ? what : `${what}: ${some.join(', ')}`;
}

function stateInks(gpu: ShownGPU): Ink[] {
  const { state } = gpu;
  if (isDivided(gpu)) return [];
  if (state === 'free') return ['green'];
  if (state === 'busy') return ['magenta'];
  return state === 'unavailable' ? ['red'] : [];
}

function shortName(gpu: ShownGPU): string {
  const name = sanitize(gpu.name).replace(/^NVIDIA /, '') || '?';
  return gpu.instance === null ? name : name.replace(/^.* (?=MIG )/, '');
}

function percent(share: number | null): string {
  return (share === null ? '?' : `${Math.min(999, Math.round(share * 100))}%`).padStart(4);
}

function gib(bytes: number | null): string {
  return bytes === null || !(bytes >= 0 && bytes < 1e5 * GIB) ? '?' : (bytes / GIB).toFixed(1);
}

/** null: unknown, or absurd. */
function shareOf(part: number | null, whole: number | null): number | null {
  const share = part === null || whole === null ? Number.NaN : part / whole;
  return share >= 0 && Number.isFinite(share) ? share : null;
}

/** '45m'; '': the GPU works, or hasn't been idle for long. */
function idleCell(gpu: ShownGPU, now: number): string {
  const time = gpu.lease === null ? null : idleTime(gpu.idle, gpu.lease.since, now);
  if (time === null) return '';
  if ('looks' in time) return 'yes';
  const [amount = '', unit = ''] = formatDuration(Math.min(time.ms, 999 * DAY_MS)).split(' ');
  return `${amount}${unit === 'min' ? 'm' : unit}`;
}
