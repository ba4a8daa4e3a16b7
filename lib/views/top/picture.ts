// Draws machines as lines of text: every GPU, who waits, who uses GPUs without a claim, and what each user has. It knows no terminal.
import { eastAsianWidth } from 'get-east-asian-width';
import { NOTEWORTHY_IDLE_LOOKS, NOTEWORTHY_IDLE_MS, type QueueEntry } from '../../claims/index.ts';
import { isDivided, label } from '../../gpus/index.ts';
import {
  formatBytes,
  formatDuration,
  formatSince,
  hostName,
  listWords,
  sanitize,
} from '../../platform/index.ts';
import type { GPUSample, MachineState, ShownGPU, ShownProcess, SortKey } from '../machine-view.ts';
import { type UserTotal, userTotals } from '../user-totals.ts';

/** The place to draw on. */
export interface ScreenStyle {
  columns: number;
  /** null: as many as there are lines. */
  rows: number | null;
  /** Bold and reversed text; without, there is no escape sequence at all. */
  attributes: boolean;
  colour: boolean;
  /** Whether more than ASCII can be shown. */
  unicode: boolean;
}

/** The choices of the person who looks. */
export interface Choice {
  sort: SortKey;
  /** Only rows with this text; '': all. */
  filter: string;
  /** Only this host; null: all. */
  host: string | null;
  /** The key of a row; null: none. */
  selected: string | null;
}

/** A row that can be selected. */
export interface SelectableRow {
  key: string;
  machine: MachineState;
  /** The user's own background job there, or another's; null: none. */
  job: number | null;
  user: string | null;
  uid: number | null;
  pid: number | null;
  /** A process that the driver lists there; null: it is another row. */
  process: ShownProcess | null;
}

interface ShownRow extends SelectableRow {
  /** Without its mark. */
  draw: (width: number) => string;
}

/** Rows under a heading. */
interface Section {
  head: string;
  rows: (ShownRow | string)[];
}

const isSelectable = (row: ShownRow | string): row is ShownRow => typeof row !== 'string';

interface Picture {
  lines: string[];
  /** In the order in which they are shown, those out of sight included. */
  rows: SelectableRow[];
}

type Ink = 'bold' | 'dim' | 'reverse' | 'red' | 'green' | 'magenta';
/** Colours that can be read on a dark and on a light background. */
const SGR: Record<Ink, string> = { bold: '1', dim: '2', reverse: '7', red: '31', green: '32', magenta: '35' };
const COLOURS: readonly Ink[] = ['red', 'green', 'magenta'];

const MIN_COLUMNS = 20;
const MINUTE_MS = 60_000;
const DAY_MS = 86_400_000;
const GIB = 1024 ** 3;
const MAX_TEXT_LENGTH = 400;
/** Nobody reads more, and foreign records may have any number. */
const MAX_USERS = 50;
const MAX_GPU_ROWS = 2_000;

/** Draws machines. @param footer lines below, cut to the width */
export function drawMachines(
  machines: readonly MachineState[],
  choice: Choice,
  style: ScreenStyle,
  now: number,
  footer: readonly string[] = [],
): Picture {
  const pen = new Pen(style);
  const shown = machines.filter(({ host }) => choice.host === null || host === choice.host);
  const wanted = filterOf(choice.filter);
  const title = titleLines(machines, shown, choice, pen, now);
  const table = gpuSection(shown, machines.length > 1, choice, wanted, pen, now);
  const others = [
    waitSection(shown, machines.length > 1, wanted, pen, now),
    processSection(shown, machines.length > 1, wanted, pen),
    userSection(shown, wanted, pen, now),
  ].filter(({ rows }) => rows.length > 0);
  if (choice.filter !== '' && ![table, ...others].some(({ rows }) => rows.some(isSelectable)))
    table.rows.push(pen.fit(` Nothing matches '${choice.filter}'. Esc shows all again.`));
  const room = style.rows === null ? null : Math.max(0, style.rows - title.length - footer.length);
  const body = arrange(table, others, room, choice.selected, pen);
  const filling = room === null ? 0 : Math.max(0, room - body.length);
  const lines = [
    ...title,
    ...body,
    ...Array<string>(filling).fill(''),
    ...footer.map((line) => pen.fit(line)),
  ];
  const rows = [table, ...others].flatMap((section) => section.rows.filter(isSelectable));
  return { lines: style.rows === null ? lines : lines.slice(0, style.rows), rows };
}

/** Writes text of a certain width, in ink. */
export class Pen {
  readonly style: ScreenStyle;
  readonly width: number;

  constructor(style: ScreenStyle) {
    this.style = style;
    this.width = Math.max(style.columns, MIN_COLUMNS);
  }

  ink(text: string, ...inks: Ink[]): string {
    const { attributes, colour } = this.style;
    const codes = inks
      .filter((ink) => attributes && (colour || !COLOURS.includes(ink)))
      .map((ink) => SGR[ink]);
    return codes.length === 0 || text === '' ? text : `\u001b[${codes.join(';')}m${text}\u001b[0m`;
  }

  /** Foreign text, at most so wide. */
  fit(text: string, width = this.width): string {
    const clean = this.#clean(text);
    return widthOf(clean) <= width ? clean : cutTo(clean, Math.max(0, width - 1)) + this.cut;
  }

  /** Foreign text, exactly so wide. */
  cell(text: string, width: number, isRight = false): string {
    const fitted = this.fit(text, width);
    const filling = ' '.repeat(Math.max(0, width - widthOf(fitted)));
    return isRight ? filling + fitted : fitted + filling;
  }

  /** The name of a user, exactly so wide. Long names begin or end alike, so both ends are kept. */
  nameCell(text: string, width: number): string {
    const end = Math.floor((width - 1) / 2);
    const clean = this.#clean(text);
    const isLong = widthOf(clean) > width && /^[ -~]*$/.test(clean);
    return this.cell(isLong ? cutTo(clean, width - 1 - end) + this.cut + clean.slice(-end) : clean, width);
  }

  get cut(): string {
    return this.style.unicode ? '\u2026' : '~';
  }

  /** Keeps the indentation. */
  #clean(text: string): string {
    const clean = (/^ */.exec(text.slice(0, 200))?.[0] ?? '') + sanitize(text, MAX_TEXT_LENGTH);
    return this.style.unicode ? clean : clean.replace(/[^ -~]/gu, '?');
  }

  /** A bar for a share of 0 to 1; null: unknown. */
  bar(share: number | null, width: number): string {
    if (share === null || width < 1) return ' '.repeat(Math.max(0, width));
    const filled = Math.min(1, share) * width;
    const whole = Math.floor(filled);
    const [full, empty] = this.style.unicode ? ['\u2588', '\u00b7'] : ['#', '.'];
    const rest = Math.floor((filled - whole) * 8);
    const part = this.style.unicode && rest > 0 ? String.fromCharCode(0x2590 - rest) : '';
    const used = (full as string).repeat(whole) + part;
    return used + (empty as string).repeat(width - used.length);
  }

  /** The last minute, the newest at the right. */
  history(samples: readonly GPUSample[], width: number, now: number): string {
    const span = MINUTE_MS / width;
    const columns = Array.from({ length: width }, (): number[] => []);
    const newest = samples.at(-1)?.at ?? now;
    for (const { at, utilization, memory } of samples) {
      const value = utilization ?? memory;
      const column = width - 1 - Math.floor((newest - at) / span);
      if (value !== null) columns[column]?.push(value);
    }
    const levels = this.style.unicode ? '\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588' : '_.:-=+*#';
    return columns
      .map((values) => {
        if (values.length === 0) return ' ';
        const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
        return levels[Math.min(levels.length - 1, Math.max(0, Math.floor(mean * levels.length)))];
      })
      .join('');
  }
}

/** Characters that take one column, or part of them: other text is measured. */
const NARROW = /^[ -~\u00a0-\u02ff\u2010-\u2027\u2500-\u259f]*$/;

/** In columns of a terminal. */
function widthOf(text: string): number {
  if (NARROW.test(text)) return text.length;
  return graphemes(text).reduce((sum, [, width]) => sum + width, 0);
}

function cutTo(text: string, width: number): string {
  if (NARROW.test(text)) return text.slice(0, width);
  let left = width;
  const kept = graphemes(text).filter(([, columns]) => {
    left -= columns;
    return left >= 0;
  });
  return kept.map(([grapheme]) => grapheme).join('');
}

/** Characters as a reader counts them, each with its columns. */
function graphemes(text: string): [grapheme: string, columns: number][] {
  segmenter ??= new Intl.Segmenter('en');
  return Array.from(segmenter.segment(text), ({ segment }) => [
    segment,
    eastAsianWidth(segment.codePointAt(0) as number),
  ]);
}

let segmenter: Intl.Segmenter | undefined;

function filterOf(filter: string): (...texts: unknown[]) => boolean {
  const wanted = filter.toLowerCase();
  if (wanted === '') return () => true;
  return (...texts) =>
    texts.some((text) =>
      String(text ?? '')
        .toLowerCase()
        .includes(wanted),
    );
}

const STATES = ['free', 'leased', 'busy', 'unavailable'] as const;

function titleLines(
  all: readonly MachineState[],
  shown: readonly MachineState[],
  { sort, filter, host }: Choice,
  pen: Pen,
  now: number,
): string[] {
  const single = all.length === 1 ? all[0] : undefined;
  const name = host ?? (single === undefined ? `${all.length} hosts` : (single.host ?? hostName()));
  const snapshots = shown.flatMap(({ snapshot }) => snapshot ?? []);
  const waiting = snapshots.reduce((sum, each) => sum + each.waiting, 0);
  const intruders = snapshots.reduce((sum, each) => sum + each.intruders.length, 0);
  const words = [
    name,
    ...(snapshots.length === 0 ? [] : [countGPUs(snapshots.flatMap(({ gpus }) => gpus))]),
    ...(waiting === 0 ? [] : [`${waiting} waiting`]),
    ...(intruders === 0 ? [] : [`${intruders} without a claim`]),
    ...(sort === 'gpu' ? [] : [`by ${sort}`]),
    ...(filter === '' ? [] : [`only '${filter}'`]),
  ];
  const clock = new Date(now).toTimeString().slice(0, 8);
  const room = pen.width - clock.length - 2;
  const text = words.join('  ');
  const called = 'gpu-owner top  ';
  const title = `${pen.ink(pen.cell(called.length + text.length <= room ? called + text : text, room), 'bold')}  ${clock}`;
  const problems = shown.length === 1 ? problemLines(shown[0] as MachineState, pen) : [];
  return [title, ...problems];
}

function problemLines({ problem, snapshot }: MachineState, pen: Pen): string[] {
  if (problem === null) return [];
  const since = snapshot === null ? '' : ` Showing the snapshot of ${timeOf(snapshot.time)}.`;
  return [pen.ink(pen.fit(`! ${problem.replace(/\.?$/, '.')}${since}`), 'bold', 'red')];
}

/** "8 GPUs: 2 free, 6 leased"; a GPU that MIG divides counts by its instances. */
function countGPUs(gpus: readonly ShownGPU[]): string {
  const units = gpus.filter((gpu) => !isDivided(gpu));
  const counts = STATES.map((state) => [units.filter((gpu) => gpu.state === state).length, state] as const);
  const some = counts.filter(([count]) => count > 0).map(([count, state]) => `${count} ${state}`);
  const what = `${units.length} GPU${units.length === 1 ? '' : 's'}`;
  return some.length === 0 ? what : `${what}: ${some.join(', ')}`;
}

/**
 * The columns of the table of GPUs with their widths, for terminals of so many columns. The last one has what is left, as has the state
 * of a GPU without a holder, from HOLDER on.
 */
const LAYOUTS: readonly [minColumns: number, widths: Readonly<Record<string, number>>][] = [
  [
    160,
    {
      GPU: 3,
      NAME: 15,
      MEMORY: 18,
      UTIL: 10,
      MINUTE: 12,
      POWER: 5,
      TEMP: 4,
      HOLDER: 10,
      JOB: 14,
      SINCE: 5,
      UNTIL: 5,
      IDLE: 5,
      NOTE: 16,
      COMMAND: 0,
    },
  ],
  [
    112,
    {
      GPU: 3,
      MEMORY: 18,
      UTIL: 10,
      MINUTE: 15,
      HOLDER: 12,
      JOB: 14,
      SINCE: 5,
      UNTIL: 5,
      IDLE: 5,
      NOTE: 0,
    },
  ],
  [
    76,
    {
      GPU: 3,
      MEMORY: 8,
      UTIL: 8,
      MINUTE: 8,
      HOLDER: 8,
      JOB: 10,
      SINCE: 5,
      UNTIL: 5,
      IDLE: 4,
      NOTE: 0,
    },
  ],
  [56, { GPU: 3, MEMORY: 4, UTIL: 4, HOLDER: 10, JOB: 10, UNTIL: 5, IDLE: 5, NOTE: 0 }],
  [0, { GPU: 3, MEMORY: 4, UTIL: 4, HOLDER: 0 }],
];
/** Columns that aren't shown where they would be empty. */
const OPTIONAL = ['POWER', 'TEMP', 'UNTIL', 'IDLE'];
const RIGHT = ['POWER', 'TEMP', 'IDLE'];
/** Wide enough for an amount beside the bar. */
const MIN_AMOUNT_WIDTH = 16;

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

const CELLS: Readonly<Record<string, (gpu: ShownGPU, drawing: Drawing) => Cell>> = {
  GPU: (gpu) => ({ text: gpu.instance === null ? label(gpu) : ` ${label(gpu)}` }),
  NAME: (gpu) => ({ text: shortName(gpu) }),
  MEMORY: ({ memory: { usedBytes, totalBytes } }, { width, pen }) => {
    const share = shareOf(usedBytes, totalBytes);
    const amount = `${gib(usedBytes)}/${gib(totalBytes)}G`.padStart(12);
    const text = width >= MIN_AMOUNT_WIDTH ? amount : percent(share);
    return { text: pen.bar(share, width - text.length) + text };
  },
  UTIL: ({ utilizationPercent }, { width, pen }) => {
    const share = shareOf(utilizationPercent, 100);
    return { text: pen.bar(share, width - 4) + percent(share), inks: ['green'] };
  },
  MINUTE: ({ uuid }, { machine, width, pen, now }) => ({
    text: pen.history(machine.history.of(uuid), width, now),
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
  UNTIL: (gpu, { now }) => ({ text: shortTime(holderOf(gpu)?.until ?? null, now) }),
  IDLE: (gpu, { now }) => ({ text: idleOf(gpu, now), inks: ['magenta'] }),
  NOTE: (gpu, { hasCommand }) => {
    const { note = null, command = null } = holderOf(gpu) ?? {};
    return { text: note ?? (hasCommand ? null : command) ?? '' };
  },
  COMMAND: (gpu) => ({ text: holderOf(gpu)?.command ?? '' }),
};

/** How wide numbers of GPUs are. */
function labelWidth(gpus: readonly ShownGPU[]): number {
  const widths = gpus.map((gpu) => label(gpu).length + (gpu.instance === null ? 0 : 1));
  return Math.min(8, Math.max(3, ...widths));
}

function gpuColumns(machines: readonly MachineState[], pen: Pen, now: number): Column[] {
  const gpus = machines.flatMap(({ snapshot }) => snapshot?.gpus ?? []);
  const [, widths = {}] = LAYOUTS.find(([columns]) => columns <= pen.width) ?? [];
  const isFilled = (title: string) =>
    machines.some((machine) =>
      machine.snapshot?.gpus.some(
        (gpu) => CELLS[title]?.(gpu, { machine, width: 5, pen, now, hasCommand: false }).text !== '',
      ),
    );
  const columns = Object.entries({ ...widths, GPU: labelWidth(gpus) })
    .filter(([title]) => !OPTIONAL.includes(title) || isFilled(title))
    .map(([title, width]) => ({ title, width }));
  const used = columns.reduce((sum, { width }) => sum + width + 1, 0);
  const last = columns.at(-1) as Column;
  last.width = Math.max(1, pen.width - used);
  return columns;
}

function gpuSection(
  machines: readonly MachineState[],
  isFleet: boolean,
  choice: Choice,
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
    const kept = gpus.filter((gpu) => {
      const { lease, state } = gpu;
      const { user, name, note, command, job } = lease?.nested ?? lease ?? {};
      return wanted(
        machine.host,
        label(gpu),
        gpu.name,
        gpu.uuid,
        state,
        user,
        name,
        note,
        command,
        job,
        gpu.reason,
      );
    });
    for (const gpu of sorted(kept, choice.sort, now)) {
      const lease = gpu.lease?.nested ?? gpu.lease;
      rows.push({
        key: `${machine.host ?? ''} ${gpu.uuid || label(gpu)}`,
        machine,
        job: lease?.job ?? null,
        user: lease?.user ?? null,
        uid: lease?.uid ?? null,
        pid: lease?.pid ?? null,
        process: null,
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
  gpu: ShownGPU,
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
    return pen.ink(pen.cell(text, width, RIGHT.includes(title)), ...inks);
  });
  const rest = columns.slice(own.length);
  const room = rest.reduce((sum, { width }) => sum + width + 1, -1);
  if (rest.length > 0) cells.push(pen.ink(pen.cell(stateText(gpu), room), ...stateInks(gpu)));
  return cells.join(' ');
}

/** "busy: python (4711, bob) uses 31 GiB" */
function stateText(gpu: ShownGPU): string {
  if (isDivided(gpu)) return 'divided into MIG instances';
  const { state, reason } = gpu;
  return reason === null ? state : `${state}: ${reason.replace(new RegExp(`^${state}: `), '')}`;
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

function sorted(gpus: readonly ShownGPU[], sort: SortKey, now: number): ShownGPU[] {
  if (sort === 'gpu') return [...gpus];
  const largest = (value: (gpu: ShownGPU) => number | null) => (a: ShownGPU, b: ShownGPU) =>
    (value(b) ?? -1) - (value(a) ?? -1);
  const orders: Record<Exclude<SortKey, 'gpu'>, (a: ShownGPU, b: ShownGPU) => number> = {
    util: largest(({ utilizationPercent }) => utilizationPercent),
    memory: largest(({ memory }) => memory.usedBytes),
    user: (a, b) => (a.lease?.user ?? '\uffff').localeCompare(b.lease?.user ?? '\uffff'),
    since: largest(({ lease }) => (lease === null ? null : now - (Date.parse(lease.since ?? '') || now))),
    idle: largest((gpu) => idleMs(gpu, now)),
  };
  return [...gpus].sort(orders[sort]);
}

function waitSection(
  machines: readonly MachineState[],
  isFleet: boolean,
  wanted: ReturnType<typeof filterOf>,
  pen: Pen,
  now: number,
): Section {
  const rows: Section['rows'] = [];
  let unread = 0;
  for (const machine of machines) {
    const { queue = [], waiting = 0 } = machine.snapshot ?? {};
    unread += Math.max(0, waiting - queue.length);
    for (const entry of queue) {
      if (!wanted(machine.host, entry.user, entry.name, entry.note, entry.command, entry.job, 'waiting'))
        continue;
      rows.push({
        key: `${machine.host ?? ''} waiting ${entry.pid} ${entry.since}`,
        machine,
        job: entry.job,
        user: entry.user,
        uid: entry.uid,
        pid: entry.pid,
        process: null,
        draw: (width) => waitLine(entry, isFleet ? machine.host : null, pen, width, now),
      });
    }
    for (const job of machine.jobs) {
      if (job.state !== 'waiting' || job.position !== null) continue;
      if (!wanted(machine.host, job.user, job.name, job.note, job.command, job.id, 'waiting')) continue;
      const text = `   -  ${job.user}  job ${[job.id, job.name].filter((word) => word !== null).join(' ')}: ${job.reason ?? ''}`;
      rows.push({
        key: `${machine.host ?? ''} job ${job.id}`,
        machine,
        job: job.id,
        user: job.user,
        uid: process.geteuid?.() ?? null,
        pid: job.pid,
        process: null,
        draw: (width) => pen.cell(text, width),
      });
    }
  }
  if (unread > 0) rows.push(pen.fit(`   and ${unread} more`));
  return { head: ' WAITING', rows };
}

function waitLine(entry: QueueEntry, host: string | null, pen: Pen, width: number, now: number): string {
  const {
    position,
    count,
    user,
    job,
    name,
    note,
    command,
    since,
    stopped,
    latestStart,
    waitUntil,
    waitingFor,
  } = entry;
  const what = [job ?? '', name ?? ''].filter((word) => word !== '').join(' ') || `pid ${entry.pid ?? '?'}`;
  const gpus = waitingFor.map((gpu) => label(gpu)).slice(0, 16);
  const rest = [
    ...(stopped ? ['suspended'] : []),
    ...(latestStart === null ? [] : [`starts at ${formatSince(latestStart, now)} at the latest`]),
    ...(waitUntil === null ? [] : [`gives up in ${formatDuration(Date.parse(waitUntil) - now)}`]),
    ...(note === null ? [] : [note]),
    ...(command === null ? [] : [command]),
    ...(gpus.length === 0 ? [] : [`(for GPU ${listWords(gpus, 'or')})`]),
  ];
  const cells = [
    pen.cell(`${position}.`, 4, true),
    ...(host === null ? [] : [pen.cell(host, 8)]),
    pen.cell(user, 8),
    pen.cell(count === 1 ? 'a GPU' : `${count} GPUs`, 7),
    pen.cell(what, 12),
    pen.cell(shortTime(since, now), 5),
  ];
  const left = cells.join(' ');
  return pen.cell(`${left} ${rest.join('  ')}`, width);
}

/** Those without a claim are the first, lest they be out of sight. */
function processSection(
  machines: readonly MachineState[],
  isFleet: boolean,
  wanted: ReturnType<typeof filterOf>,
  pen: Pen,
): Section {
  const width = labelWidth(machines.flatMap(({ snapshot }) => snapshot?.gpus ?? []));
  const cellsOf = (host: string, words: readonly string[]) => {
    const [gpu = '', pid = '', user = '', memory = '', sm = '', command = ''] = words;
    return [
      ...(isFleet ? [pen.cell(host, 8)] : []),
      pen.cell(gpu, width),
      pen.cell(pid, 8, true),
      pen.cell(user, 10),
      pen.cell(memory, 9, true),
      pen.cell(sm, 4, true),
      command,
    ].join(' ');
  };
  const rows = machines.flatMap((machine) => {
    const { host, snapshot } = machine;
    const gpus = new Map(snapshot?.gpus.map((gpu) => [gpu.uuid, gpu]));
    const order = [...processesOf(machine)].sort((a, b) => Number(b.isIntruder) - Number(a.isIntruder));
    return order.flatMap((process) => {
      const { uuid, pid, user, name, command, usedBytes, smPercent, isIntruder } = process;
      const claim = isIntruder ? 'without a claim' : null;
      if (!wanted(host, user, name, command, pid, claim)) return [];
      const gpu = gpus.get(uuid);
      const what = command ?? name ?? 'not visible';
      const words = [
        gpu === undefined ? '?' : label(gpu),
        String(pid),
        user ?? '?',
        usedBytes === null ? '?' : formatBytes(usedBytes),
        smPercent === null ? '?' : String(Math.round(smPercent)),
        claim === null ? what : `${claim}: ${what}`,
      ];
      return {
        key: `${host ?? ''} process ${uuid} ${pid}`,
        machine,
        job: null,
        user,
        uid: process.uid,
        pid,
        process,
        draw: (room: number) =>
          pen.ink(pen.cell(cellsOf(host ?? '', words), room), ...(isIntruder ? (['magenta'] as const) : [])),
      };
    });
  });
  return { head: ` ${cellsOf('HOST', ['GPU', 'PID', 'USER', 'MEMORY', '%SM', 'PROCESS'])}`, rows };
}

/** An older gpu-owner on another machine tells of intruders only. */
function processesOf({ snapshot }: MachineState): readonly ShownProcess[] {
  const { intruders = [], processes } = snapshot ?? {};
  const more = { type: 'compute', command: null, smPercent: null, isIntruder: true } as const;
  return processes ?? intruders.map((each) => ({ ...each, ...more }));
}

function userSection(
  machines: readonly MachineState[],
  wanted: ReturnType<typeof filterOf>,
  pen: Pen,
  now: number,
): Section {
  const snapshots = machines.flatMap(({ snapshot }) => snapshot ?? []);
  const totals = userTotals(snapshots, (gpu) => idleOf(gpu, now) !== '', 'unknown user');
  const all = [...totals].filter(([user]) => wanted(user)).sort(([, a], [, b]) => size(b) - size(a));
  const longest = Math.max(...all.map(([user]) => widthOf(user)));
  const nameWidth = Math.min(Math.max(12, longest), Math.max(12, Math.floor(pen.width * 0.4)));
  const rows = all.slice(0, MAX_USERS).map(([user, total]) => {
    const { gpus, instances, memory, utilization, idle, waiting, unclaimed } = total;
    const mean = utilization.reduce((sum, value) => sum + value, 0) / utilization.length;
    const words = [
      ...(gpus === 0 ? [] : [`${gpus} GPU${gpus === 1 ? '' : 's'}`]),
      ...(instances === 0 ? [] : [`${instances} MIG instance${instances === 1 ? '' : 's'}`]),
      ...(gpus + instances + unclaimed === 0 ? [] : [formatBytes(memory)]),
      ...(utilization.length === 0 ? [] : [`${Math.round(mean)}% util`]),
      ...(idle === 0 ? [] : [`${idle} idle`]),
      ...(waiting === 0 ? [] : [`${waiting} waiting`]),
      ...(unclaimed === 0 ? [] : [`${unclaimed} without a claim`]),
    ];
    return ` ${pen.nameCell(user, nameWidth)} ${pen.fit(words.join(', '), pen.width - nameWidth - 2)}`;
  });
  if (all.length > MAX_USERS) rows.push(pen.fit(` and ${all.length - MAX_USERS} more`));
  return { head: ' USERS', rows };
}

function size({ gpus, instances, waiting, unclaimed }: UserTotal): number {
  return gpus * 1e6 + instances * 1e4 + unclaimed * 1e2 + waiting;
}

/** Fits the sections into so many lines; null: without limit. The table of GPUs has what the others leave, and at least half. */
function arrange(
  table: Section,
  others: readonly Section[],
  room: number | null,
  selected: string | null,
  pen: Pen,
): string[] {
  const heightOf = ({ rows }: Section) => rows.length + 1;
  const needed = heightOf(table) + others.reduce((sum, section) => sum + heightOf(section), 0);
  if (room === null || needed + others.length <= room) {
    return [table, ...others].flatMap((section, i) => [
      ...(i === 0 ? [] : ['']),
      ...drawSection(section, Number.POSITIVE_INFINITY, selected, pen),
    ]);
  }
  let left = Math.max(room - heightOf(table), Math.floor(room / 2));
  const lines: string[][] = [];
  for (const [i, section] of others.entries()) {
    // What the last ones don't need is left to those before.
    const behind = others.slice(i + 1).reduce((sum, each) => sum + Math.min(heightOf(each), 3), 0);
    // In little room, the first ones have something rather than all too little.
    const least = Math.min(heightOf(section), 3, left);
    const height = Math.min(heightOf(section), Math.max(least, left - behind));
    const drawn = height < 2 ? [] : drawSection(section, height, selected, pen);
    lines.push(drawn);
    left -= drawn.length;
  }
  const below = lines.flat();
  return [...drawSection(table, Math.max(0, room - below.length), selected, pen), ...below];
}

/** @param height lines, with the heading, which says what part of it is shown */
function drawSection({ head, rows }: Section, height: number, selected: string | null, pen: Pen): string[] {
  const room = Math.max(0, height - 1);
  if (rows.length <= room)
    return [pen.ink(pen.fit(head), 'bold'), ...rows.map((row) => drawRow(row, selected, pen))];
  const at = rows.findIndex((row) => typeof row !== 'string' && row.key === selected);
  const first = Math.min(Math.max(0, at - (room >> 1)), rows.length - room);
  const mark = ` ${first + 1}-${first + room} of ${rows.length}`;
  const width = pen.width - mark.length;
  const titles = head
    .slice(0, width)
    .replace(/\S+$/, (title) => (/^\S/.test(head.slice(width)) ? '' : title));
  const heading = pen.ink(pen.cell(titles, width) + mark, 'bold');
  return [heading, ...rows.slice(first, first + room).map((row) => drawRow(row, selected, pen))];
}

function drawRow(row: ShownRow | string, selected: string | null, pen: Pen): string {
  if (typeof row === 'string') return row;
  const text = row.draw(pen.width - 1);
  if (row.key !== selected) return ` ${text}`;
  // An end of ink inside of it would end the reversal.
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  return pen.ink(`>${text.replace(/\u001b\[[\d;]*m/g, '')}`, 'reverse');
}

function stateInks(gpu: ShownGPU): Ink[] {
  const { state } = gpu;
  if (isDivided(gpu)) return [];
  if (state === 'free') return ['green'];
  if (state === 'busy') return ['magenta'];
  return state === 'unavailable' ? ['red'] : [];
}

export function isOwn(uid: number | null): boolean {
  return uid !== null && uid === process.geteuid?.();
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

/** '14:03' for less than a day from now, '11-23' for others. */
function shortTime(time: string | null, now: number): string {
  const text = formatSince(time, now);
  if (text === null) return '';
  const moment = new Date(time as string);
  if (Math.abs(moment.getTime() - now) < DAY_MS)
    return text.length === 16 ? text.slice(11) : text.slice(0, 5);
  const [month, day] = [moment.getMonth() + 1, moment.getDate()];
  return `${String(month).padStart(2, '0')}-${String(day).padStart(2, '0')}`;
}

function timeOf(time: string): string {
  return new Date(time).toTimeString().slice(0, 8);
}

/** Since its holder came at the earliest; null: it works, or nobody knows since when. */
function idleMs({ idle, lease }: ShownGPU, now: number): number | null {
  const since = Date.parse(idle?.since ?? '');
  if (lease === null || Number.isNaN(since)) return null;
  return now - Math.max(since, Date.parse(lease.since ?? '') || 0);
}

/** '45m'; '': it works, or hasn't been idle for long. */
function idleOf(gpu: ShownGPU, now: number): string {
  const span = idleMs(gpu, now);
  if (span !== null) {
    if (span < NOTEWORTHY_IDLE_MS) return '';
    return formatDuration(Math.min(span, 999 * DAY_MS))
      .split(' ')
      .slice(0, 2)
      .join('')
      .replace('min', 'm');
  }
  const isUnused = gpu.lease !== null && gpu.idle?.since === null && gpu.idle.looks >= NOTEWORTHY_IDLE_LOOKS;
  return isUnused ? 'yes' : '';
}
