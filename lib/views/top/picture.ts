// Draws machines as lines of text: every GPU, who waits, who uses GPUs without a claim, and what each user has. The drawing
// knows no terminal.
import { hostName } from '../../platform/index.ts';
import type { MachineState } from '../machine-view.ts';
import { countGPUs, gpuSection } from './gpu-table.ts';
import { Pen, type ScreenStyle } from './pen.ts';
import { filterOf, isSelectable, type Section, type ShownRow, timeOf, type ViewOptions } from './rows.ts';
import { processSection, userSection, waitSection } from './sections.ts';

interface Picture {
  lines: string[];
  /** The keys of rows in the order in which they are shown, those out of sight included. */
  rows: string[];
}

/** Draws machines. @param footer lines below, cut to the width */
export function drawMachines(
  machines: readonly MachineState[],
  choice: ViewOptions,
  style: ScreenStyle,
  now: number,
  footer: readonly string[] = [],
): Picture {
  const pen = new Pen(style);
  const wanted = filterOf(choice.filter);
  const title = titleLines(machines, choice.filter, pen, now);
  const table = gpuSection(machines, machines.length > 1, wanted, pen, now);
  const others = [
    waitSection(machines, machines.length > 1, wanted, pen, now),
    processSection(machines, machines.length > 1, wanted, pen),
    userSection(machines, wanted, pen, now),
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
  const rows = [table, ...others].flatMap((section) =>
    section.rows.filter(isSelectable).map(({ key }) => key),
  );
  return { lines: style.rows === null ? lines : lines.slice(0, style.rows), rows };
}

function titleLines(machines: readonly MachineState[], filter: string, pen: Pen, now: number): string[] {
  const single = machines.length === 1 ? machines[0] : undefined;
  const name = single === undefined ? `${machines.length} hosts` : (single.host ?? hostName());
  const snapshots = machines.flatMap(({ snapshot }) => snapshot ?? []);
  const waiting = snapshots.reduce((sum, each) => sum + each.waiting, 0);
  const intruders = snapshots.reduce((sum, each) => sum + each.intruders.length, 0);
  const words = [
    name,
    ...(snapshots.length === 0 ? [] : [countGPUs(snapshots.flatMap(({ gpus }) => gpus))]),
    ...(waiting === 0 ? [] : [`${waiting} waiting`]),
    ...(intruders === 0 ? [] : [`${intruders} without a claim`]),
    ...(filter === '' ? [] : [`only '${filter}'`]),
  ];
  const clock = new Date(now).toTimeString().slice(0, 8);
  const room = pen.width - clock.length - 2;
  const text = words.join('  ');
  const called = 'gpu-owner top  ';
  const title = `${pen.ink(pen.cell(called.length + text.length <= room ? called + text : text, room), 'bold')}  ${clock}`;
  const problems = single === undefined ? [] : problemLines(single, pen);
  return [title, ...problems];
}

function problemLines({ problem, snapshot }: MachineState, pen: Pen): string[] {
  if (problem === null) return [];
  const since = snapshot === null ? '' : ` Showing the snapshot of ${timeOf(snapshot.time)}.`;
  return [pen.ink(pen.fit(`! ${problem.replace(/\.?$/, '.')}${since}`), 'bold', 'red')];
}

/** Fits the sections into the lines of the terminal; null: without limit. The table of GPUs has what the others leave, and at least half. */
function arrange(
  table: Section,
  others: readonly Section[],
  room: number | null,
  selected: string | null,
  pen: Pen,
): string[] {
  const heightOf = ({ rows }: Section) => rows.reduce((sum, row) => sum + linesOf(row), 1);
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
    // Room that the last ones don't need is left to those before.
    const behind = others.slice(i + 1).reduce((sum, each) => sum + Math.min(heightOf(each), 2), 0);
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

const linesOf = (row: ShownRow | string) => (typeof row !== 'string' && row.second !== undefined ? 2 : 1);

/** @param height lines, with the heading, which says what part of it is shown */
function drawSection({ head, rows }: Section, height: number, selected: string | null, pen: Pen): string[] {
  const room = Math.max(0, height - 1);
  const drawn = (some: Section['rows']) =>
    some.flatMap((row) => [
      drawRow(row, selected, pen),
      ...(typeof row === 'string' || row.second === undefined ? [] : [pen.ink(pen.fit(row.second), 'dim')]),
    ]);
  const [first, end] = windowOf(rows, room, selected);
  if (end - first === rows.length) return [pen.ink(pen.fit(head), 'bold'), ...drawn(rows)];
  const mark = ` ${first + 1}-${end} of ${rows.length}`;
  const width = pen.width - mark.length;
  const titles = head
    .slice(0, width)
    .replace(/\S+$/, (title) => (/^\S/.test(head.slice(width)) ? '' : title));
  const heading = pen.ink(pen.cell(titles, width) + mark, 'bold');
  return [heading, ...drawn(rows.slice(first, end)).slice(0, room)];
}

/** The rows that fit into so many lines, the selected one among them. @returns the first, and the one after the last */
function windowOf(
  rows: Section['rows'],
  room: number,
  selected: string | null,
): [first: number, end: number] {
  const at = rows.findIndex((row) => typeof row !== 'string' && row.key === selected);
  let first = Math.max(0, at);
  let end = first;
  let left = room;
  const take = (row: ShownRow | string | undefined, least = 0) => {
    if (row === undefined || left - linesOf(row) < least) return false;
    left -= linesOf(row);
    return true;
  };
  while (first > 0 && take(rows[first - 1], room >> 1)) first--;
  while (take(rows[end])) end++;
  while (first > 0 && take(rows[first - 1])) first--;
  // A row of which only the first line fits.
  if (end === first && room > 0) end = Math.min(rows.length, first + 1);
  return [first, end];
}

function drawRow(row: ShownRow | string, selected: string | null, pen: Pen): string {
  if (typeof row === 'string') return row;
  const text = row.draw(pen.width - 1);
  if (row.key !== selected) return ` ${text}`;
  // An end of ink inside of it would end the reversal.
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  return pen.ink(`>${text.replace(/\u001b\[[\d;]*m/g, '')}`, 'reverse');
}
