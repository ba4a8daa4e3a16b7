// Sections below the table of GPUs: requests that wait, processes, and what each user has.

import { label } from '../../gpus/index.ts';
import { formatBytes, formatDuration, idleTime } from '../../platform/index.ts';
import type { QueueEntry, ShownProcess } from '../../shapes/index.ts';
import type { MachineState } from '../machine-view.ts';
import { type UserTotal, userTotals } from '../user-totals.ts';
import { type Pen, widthOf } from './pen.ts';
import { columnWidth, type filterOf, labelWidth, type Section, shortTime } from './rows.ts';

/** More are read by no person, and foreign records may have any number. */
const MAX_USERS = 50;

export function waitSection(
  machines: readonly MachineState[],
  isFleet: boolean,
  wanted: ReturnType<typeof filterOf>,
  pen: Pen,
  now: number,
): Section {
  const rows: Section['rows'] = [];
  const widths = waitWidths(machines, isFleet, pen);
  let unread = 0;
  for (const machine of machines) {
    const { queue = [], waiting = 0 } = machine.snapshot ?? {};
    unread += Math.max(0, waiting - queue.length);
    for (const entry of queue) {
      if (!wanted(machine.host, entry.user, entry.name, entry.note, entry.command, entry.job, 'waiting'))
        continue;
      rows.push({
        key: `${machine.host ?? ''} waiting ${entry.pid} ${entry.since}`,
        draw: (width) => waitLine(entry, machine.host, widths, pen, width, now),
        second: `      ${waitText(entry, now)}`,
      });
    }
    for (const job of machine.jobs) {
      if (job.state !== 'waiting' || job.position !== null) continue;
      if (!wanted(machine.host, job.user, job.name, job.note, job.command, job.id, 'waiting')) continue;
      const text = `   -  ${job.user}  job ${[job.id, job.name].filter((word) => word !== null).join(' ')}: ${job.reason ?? ''}`;
      rows.push({
        key: `${machine.host ?? ''} job ${job.id}`,
        draw: (width) => pen.cell(text, width),
      });
    }
  }
  if (unread > 0) rows.push(pen.fit(`   and ${unread} more`));
  return { head: ' WAITING', rows };
}

/** The widths of columns whose content is a name. */
type WaitWidths = Readonly<Record<'host' | 'user' | 'wanted' | 'what', number>>;

function waitWidths(machines: readonly MachineState[], isFleet: boolean, pen: Pen): WaitWidths {
  const entries = machines.flatMap(({ snapshot }) => snapshot?.queue.slice(0, MAX_MEASURED) ?? []);
  const most = Math.floor(pen.width / 4);
  return {
    host: isFleet
      ? columnWidth(
          machines.map(({ host }) => host),
          4,
          most,
        )
      : 0,
    user: columnWidth(
      entries.map(({ user }) => user),
      4,
      most,
    ),
    wanted: columnWidth(entries.map(wantedText), 5, 12),
    what: columnWidth(entries.map(whatText), 5, most),
  };
}

/** More hardly fit on a screen. */
const MAX_MEASURED = 200;

function wantedText({ count, memory }: QueueEntry): string {
  if (memory === null) return count === 1 ? 'a GPU' : `${count} GPUs`;
  return `${count === 1 ? '' : `${count}×`}${memory}`;
}

function whatText({ job, name, pid }: QueueEntry): string {
  return [job ?? '', name ?? ''].filter((word) => word !== '').join(' ') || `pid ${pid ?? '?'}`;
}

function waitLine(
  entry: QueueEntry,
  host: string | null,
  widths: WaitWidths,
  pen: Pen,
  width: number,
  now: number,
): string {
  const { position, user, command, since } = entry;
  const cells = [
    pen.cell(`${position}.`, 4, true),
    ...(widths.host === 0 ? [] : [pen.cell(host ?? '', widths.host)]),
    pen.nameCell(user, widths.user),
    pen.cell(wantedText(entry), widths.wanted),
    pen.cell(whatText(entry), widths.what),
    pen.cell(shortTime(since, now), 5),
    command ?? '',
  ];
  return pen.cell(cells.join(' '), width);
}

/** Why it waits, and what else is known of the wait. */
function waitText({ why, note, waitUntil }: QueueEntry, now: number): string {
  const end = waitUntil === null ? '' : `gives up in ${formatDuration(Date.parse(waitUntil) - now)}`;
  return [why, end, note].filter(Boolean).join('; ');
}

/** Processes without a claim are the first, lest they be out of sight. */
export function processSection(
  machines: readonly MachineState[],
  isFleet: boolean,
  wanted: ReturnType<typeof filterOf>,
  pen: Pen,
): Section {
  const width = labelWidth(machines.flatMap(({ snapshot }) => snapshot?.gpus ?? []));
  const most = Math.floor(pen.width / 4);
  const users = machines.flatMap((machine) => processesOf(machine).map(({ user }) => user));
  const userWidth = columnWidth(users, 4, most);
  const hostWidth = columnWidth(
    machines.map(({ host }) => host),
    4,
    most,
  );
  const cellsOf = (host: string, words: readonly string[]) => {
    const [gpu = '', pid = '', user = '', memory = '', sm = '', command = ''] = words;
    return [
      ...(isFleet ? [pen.cell(host, hostWidth)] : []),
      pen.cell(gpu, width),
      pen.cell(pid, 8, true),
      pen.nameCell(user, userWidth),
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
        draw: (room: number) =>
          pen.ink(pen.cell(cellsOf(host ?? '', words), room), ...(isIntruder ? (['magenta'] as const) : [])),
      };
    });
  });
  return { head: ` ${cellsOf('HOST', ['GPU', 'PID', 'USER', 'MEMORY', '%SM', 'PROCESS'])}`, rows };
}

const processesOf = ({ snapshot }: MachineState): readonly ShownProcess[] => snapshot?.processes ?? [];

export function userSection(
  machines: readonly MachineState[],
  wanted: ReturnType<typeof filterOf>,
  pen: Pen,
  now: number,
): Section {
  const snapshots = machines.flatMap(({ snapshot }) => snapshot ?? []);
  const totals = userTotals(
    snapshots,
    ({ lease, idle }) => lease !== null && idleTime(idle, lease.since, now) !== null,
    'unknown user',
  );
  const all = [...totals].filter(([user]) => wanted(user)).sort(([, a], [, b]) => size(b) - size(a));
  const longest = Math.max(...all.map(([user]) => widthOf(user)));
  const nameWidth = Math.min(Math.max(12, longest), Math.max(12, Math.floor(pen.width * 0.4)));
  const rows = all.slice(0, MAX_USERS).map(([user, total]) => {
    const { gpus, instances, shares, memory, utilization, idle, waiting, unclaimed } = total;
    const mean = utilization.reduce((sum, value) => sum + value, 0) / utilization.length;
    const words = [
      ...(gpus === 0 ? [] : [`${gpus} GPU${gpus === 1 ? '' : 's'}`]),
      ...(instances === 0 ? [] : [`${instances} MIG instance${instances === 1 ? '' : 's'}`]),
      ...(shares === 0 ? [] : [`${shares} share${shares === 1 ? '' : 's'}`]),
      ...(gpus + instances + shares + unclaimed === 0 ? [] : [formatBytes(memory)]),
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

function size({ gpus, instances, shares, waiting, unclaimed }: UserTotal): number {
  return gpus * 1e6 + (instances + shares) * 1e4 + unclaimed * 1e2 + waiting;
}
