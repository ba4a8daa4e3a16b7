// Text of a certain width for terminals, in colours. This file knows nothing of GPUs.
import { eastAsianWidth } from 'get-east-asian-width';
import { sanitize } from '../../platform/index.ts';
import type { GPUSample } from '../machine-view.ts';

const MIN_COLUMNS = 20;
const MINUTE_MS = 60_000;
const MAX_TEXT_LENGTH = 400;

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

export type Ink = 'bold' | 'dim' | 'reverse' | 'red' | 'green' | 'magenta';
/** Colours that can be read on a dark and on a light background. */
const SGR: Record<Ink, string> = { bold: '1', dim: '2', reverse: '7', red: '31', green: '32', magenta: '35' };
const COLOURS: readonly Ink[] = ['red', 'green', 'magenta'];

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
export function widthOf(text: string): number {
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
