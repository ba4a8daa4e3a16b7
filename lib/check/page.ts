import { wrapText } from '../platform/index.ts';

const MIN_WIDTH = 50;
/** Longer lines are hard to read, however wide the terminal is. */
const MAX_WIDTH = 110;

/** Draws findings for people: each with its remedy below it. */
export class Page {
  readonly width: number;
  readonly #colour: boolean;

  /** @param width columns of the terminal */
  constructor(width: number, colour: boolean) {
    this.width = Math.min(Math.max(width, MIN_WIDTH), MAX_WIDTH);
    this.#colour = colour;
  }

  paint(text: string, code: string): string {
    return this.#colour ? `\u001b[${code}m${text}\u001b[0m` : text;
  }

  /** @param head the beginning of the first line, so many columns wide; the rest is below each other */
  entry(head: string, headWidth: number, text: string, remedy: string | null): string[] {
    const margin = ' '.repeat(headWidth);
    const [first = '', ...rest] = wrapText(text, this.width - headWidth);
    const advice = remedy === null ? [] : wrapText(remedy, this.width - headWidth - 3);
    return [
      head + first,
      ...rest.map((line) => margin + line),
      ...advice.map((line, i) => `${margin}${i === 0 ? '-> ' : '   '}${line}`),
    ];
  }
}
