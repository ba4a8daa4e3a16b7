// Rows of the picture, and what all kinds of them share.
import { label } from '../../gpus/index.ts';
import { formatSince, sanitize } from '../../platform/index.ts';
import type { ShownGPU } from '../../shapes/index.ts';
import { widthOf } from './pen.ts';

const DAY_MS = 86_400_000;

/** The choices of the person who looks. */
export interface ViewOptions {
  /** Only rows with this text; '': all. */
  filter: string;
  /** The key of a row; null: none. */
  selected: string | null;
}

/** A row that can be selected. */
export interface ShownRow {
  key: string;
  /** Without its mark. */
  draw: (width: number) => string;
  /** A line below it; missing: none. */
  second?: string;
}

/** Rows under a heading. */
export interface Section {
  head: string;
  rows: (ShownRow | string)[];
}

export const isSelectable = (row: ShownRow | string): row is ShownRow => typeof row !== 'string';

export function filterOf(filter: string): (...texts: unknown[]) => boolean {
  const wanted = filter.toLowerCase();
  if (wanted === '') return () => true;
  return (...texts) =>
    texts.some((text) =>
      String(text ?? '')
        .toLowerCase()
        .includes(wanted),
    );
}

/** A column as wide as its longest text, within limits. */
export function columnWidth(
  texts: readonly (string | null | undefined)[],
  least: number,
  most: number,
): number {
  let longest = least;
  for (const text of texts) longest = Math.max(longest, text == null ? 0 : widthOf(sanitize(text)));
  return Math.min(longest, Math.max(least, most));
}

/** How wide numbers of GPUs are. */
export function labelWidth(gpus: readonly ShownGPU[]): number {
  const widths = gpus.map((gpu) => label(gpu).length + (gpu.instance === null ? 0 : 1));
  return Math.min(8, Math.max(3, ...widths));
}

/** '14:03' for less than a day from now, '11-23' for others. */
export function shortTime(time: string | null, now: number): string {
  const text = formatSince(time, now);
  if (text === null) return '';
  const moment = new Date(time as string);
  if (Math.abs(moment.getTime() - now) < DAY_MS)
    return text.length === 16 ? text.slice(11) : text.slice(0, 5);
  const [month, day] = [moment.getMonth() + 1, moment.getDate()];
  return `${String(month).padStart(2, '0')}-${String(day).padStart(2, '0')}`;
}

export function timeOf(time: string): string {
  return new Date(time).toTimeString().slice(0, 8);
}

export function isOwn(uid: number | null): boolean {
  return uid !== null && uid === process.geteuid?.();
}
