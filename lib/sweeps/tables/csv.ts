import { isUtf8 } from 'node:buffer';
import { StringDecoder } from 'node:string_decoder';

// An own reader: csv-parse takes twice as long for a million rows, and doesn't count CRLF within quotes as one line. Tests compare both.

/** A record: a line, or several where quoted values have line breaks. */
export interface CSVRow {
  cells: string[];
  /** Where it begins: its line, from 1, and its place in the text. */
  line: number;
  start: number;
  /** How it ends. '': the text ends here; then the row may have been cut. */
  newline: '\n' | '\r\n' | '';
  /** The text ends within a quoted value, or within a character. */
  open: boolean;
}

/** Thrown for text that is no CSV; the message is for people, after `FILE:LINE: `. */
export class MalformedCSVError extends Error {
  readonly line: number;

  constructor(line: number, message: string) {
    super(message);
    this.line = line;
  }
}

export const BOM = '\ufeff';
const BOM_BYTES = Buffer.from(BOM);

/**
 * Reads the bytes of a table as text. Some file systems leave zeros at its end after a power failure: they are taken off.
 * @returns `isCut`: the text ends within a character, which is U+FFFD there
 * @throws MalformedCSVError for NUL bytes, and for what isn't UTF-8
 */
export function decode(bytes: Buffer): { text: string; bom: boolean; zeros: boolean; isCut: boolean } {
  let end = bytes.length;
  while (end > 0 && bytes[end - 1] === 0) end--;
  const bom = bytes.subarray(0, BOM_BYTES.length).equals(BOM_BYTES);
  const body = bytes.subarray(bom ? BOM_BYTES.length : 0, end);
  const lineAt = (at: number) => 1 + breaks(body.toString('latin1', 0, at));
  const zero = body.indexOf(0);
  if (zero !== -1) throw new MalformedCSVError(lineAt(zero), 'there is a NUL byte: this is not a text file');
  const lastLine = body.lastIndexOf('\n') + 1;
  // Bytes that aren't UTF-8 become U+FFFD, which isn't shorter: only a cut character makes the text end before the bytes.
  const whole = new StringDecoder('utf8').write(body.subarray(lastLine));
  const wholeEnd = lastLine + Buffer.byteLength(whole);
  if (!isUtf8(body.subarray(0, wholeEnd))) {
    const nextLine = (at: number) => body.indexOf('\n', at) + 1 || body.length;
    let at = 0;
    while (isUtf8(body.subarray(at, nextLine(at)))) at = nextLine(at);
    throw new MalformedCSVError(lineAt(at), 'this is not UTF-8: convert the file (iconv -t UTF-8)');
  }
  return { text: body.toString('utf8'), bom, zeros: end < bytes.length, isCut: wholeEnd < body.length };
}

/** Empty lines are left out. @param isCut whether the text ends within a character @throws MalformedCSVError */
export function* parseRows(text: string, isCut = false): Generator<CSVRow> {
  let line = 1;
  let quote = text.indexOf('"');
  for (let at = 0; at < text.length; ) {
    if (quote !== -1 && quote < at) quote = text.indexOf('"', at);
    const lineEnd = text.indexOf('\n', at);
    const isPlain = quote === -1 || (lineEnd !== -1 && quote > lineEnd);
    const { cells, end, next, open } = isPlain
      ? plainRecord(text, at, lineEnd, line)
      : quotedRecord(text, at, line);
    if (cells.length > 1 || cells[0]?.trim() !== '' || open) {
      const newline = text[next - 1] !== '\n' || next === end ? '' : next - end > 1 ? '\r\n' : '\n';
      yield { cells, line, start: at, newline, open: open || (isCut && next === text.length) };
    }
    line += isPlain ? 1 : breaks(text.slice(at, next));
    at = next;
  }
}

/** `end`: where the last cell ends. `next`: where the next record begins. */
interface Scanned {
  cells: string[];
  end: number;
  next: number;
  open: boolean;
}

/** A line without a quote in it. */
function plainRecord(text: string, at: number, lineEnd: number, line: number): Scanned {
  const end = withoutCR(text, at, lineEnd === -1 ? text.length : lineEnd);
  const content = text.slice(at, end);
  if (content.includes('\r')) throw loneCR(line);
  return { cells: content.split(','), end, next: lineEnd === -1 ? text.length : lineEnd + 1, open: false };
}

function quotedRecord(text: string, start: number, line: number): Scanned {
  const cells: string[] = [];
  for (let at = start; ; at++) {
    if (text[at] === '"') {
      let close = at;
      do close = text.indexOf('"', close + 1);
      while (close !== -1 && text[close + 1] === '"' && close++);
      cells.push(text.slice(at + 1, close === -1 ? undefined : close).replaceAll('""', '"'));
      if (close === -1) return { cells, end: text.length, next: text.length, open: true };
      at = close + 1;
    } else {
      const from = at;
      while (at < text.length && text[at] !== ',' && text[at] !== '\n') at++;
      if (text[at] !== ',') at = withoutCR(text, from, at);
      const cell = text.slice(from, at);
      if (cell.includes('\r')) throw loneCR(line + breaks(text.slice(start, from)));
      cells.push(cell);
    }
    if (text[at] === ',') continue;
    let lineEnd = at;
    while (text[lineEnd] === '\r') lineEnd++;
    if (lineEnd >= text.length) return { cells, end: at, next: text.length, open: false };
    if (text[lineEnd] === '\n') return { cells, end: at, next: lineEnd + 1, open: false };
    throw new MalformedCSVError(
      line + breaks(text.slice(start, at)),
      'there is text after a closing quote: write quotes within quoted values twice ("")',
    );
  }
}

function loneCR(line: number): MalformedCSVError {
  return new MalformedCSVError(
    line,
    'there is a carriage return without a line feed: end lines with \\n or \\r\\n',
  );
}

function withoutCR(text: string, from: number, end: number): number {
  let to = end;
  while (to > from && text[to - 1] === '\r') to--;
  return to;
}

function breaks(text: string): number {
  let count = 0;
  for (let at = text.indexOf('\n'); at !== -1; at = text.indexOf('\n', at + 1)) count++;
  return count;
}
