import { isUtf8 } from 'node:buffer';
import type { FileHandle } from 'node:fs/promises';

// csv-parse, measured with a million rows (75 MB): 1.8 s without positions, 3.4 s with them, and its line numbers don't count
// CRLF within quotes as one line. Rows of others are kept byte by byte here, and a last line that
// was cut is mended at its first byte: where a record begins and ends must be exact. This takes 1.0 s. Tests compare the two.

/** A record: a line, or several where quoted values have line breaks. */
export interface CSVRow {
  cells: string[];
  /** Where it begins, from 1. */
  line: number;
  /** In bytes, from the beginning of the file. The line break is behind `end`. */
  start: number;
  end: number;
  /** How it ends. '': the file ends here; then the row may have been cut. */
  newline: '\n' | '\r\n' | '';
  /** The file ends within a quoted value. */
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

export const BOM = Buffer.from([0xef, 0xbb, 0xbf]);
const QUOTE = 0x22;
const COMMA = 0x2c;
const LF = 0x0a;
const CR = 0x0d;
const CHUNK = 256 * 1024;
/** A quote that nobody closes would swallow the rest of the file. A result has at most 1 MiB. */
const MAX_RECORD_BYTES = 16 * 1024 * 1024;

/** Rows that were read at once, and their bytes. */
interface Batch {
  rows: CSVRow[];
  bytes: Buffer;
  /** Where in the file the bytes begin. */
  position: number;
}

/** Empty lines are left out. @param position behind the byte order mark @returns where the text ends @throws MalformedCSVError */
export async function* readRows(file: FileHandle, position: number): AsyncGenerator<Batch, number> {
  let line = 1;
  let bytes: Buffer = Buffer.alloc(0);
  for (let last = false; !last; ) {
    const chunk = Buffer.allocUnsafe(CHUNK);
    const { bytesRead } = await file.read(chunk, 0, CHUNK, position + bytes.length);
    last = bytesRead === 0;
    bytes =
      bytes.length === 0
        ? chunk.subarray(0, bytesRead)
        : Buffer.concat([bytes, chunk.subarray(0, bytesRead)]);
    if (last) bytes = withoutTrailingNULs(bytes);
    const scanner = new Scanner(bytes, position, line, last);
    const rows = scanner.rows();
    if (rows.length > 0) yield { rows, bytes, position };
    bytes = bytes.subarray(scanner.at);
    position += scanner.at;
    line = scanner.line;
    if (bytes.length > MAX_RECORD_BYTES) {
      throw new MalformedCSVError(
        line,
        'a quoted value that begins here has more than 16 MiB: a closing quote (") is missing',
      );
    }
  }
  return position;
}

/** Some file systems leave zeros at the end of a file after a power failure: what was there has been cut. */
function withoutTrailingNULs(bytes: Buffer): Buffer {
  let end = bytes.length;
  while (end > 0 && bytes[end - 1] === 0) end--;
  return bytes.subarray(0, end);
}

class Scanner {
  private readonly bytes: Buffer;
  private readonly offset: number;
  private readonly last: boolean;
  line: number;
  /** The first byte that no complete record has. */
  at = 0;

  constructor(bytes: Buffer, offset: number, line: number, last: boolean) {
    this.bytes = bytes;
    this.offset = offset;
    this.line = line;
    this.last = last;
  }

  rows(): CSVRow[] {
    const { bytes } = this;
    const end = this.last ? bytes.length : bytes.lastIndexOf(LF) + 1;
    this.refuseOtherThanText(end);
    const rows: CSVRow[] = [];
    let quote = bytes.indexOf(QUOTE);
    while (this.at < end) {
      if (quote !== -1 && quote < this.at) quote = bytes.indexOf(QUOTE, this.at);
      const lineEnd = bytes.indexOf(LF, this.at);
      const plain = quote === -1 || (lineEnd !== -1 && quote > lineEnd);
      const row = plain ? this.plainRow(lineEnd) : this.quotedRow();
      if (row === null) break;
      if (row.cells.length > 1 || row.cells[0]?.trim() !== '' || row.open) rows.push(row);
    }
    return rows;
  }

  private refuseOtherThanText(end: number): void {
    const { bytes } = this;
    const text = bytes.subarray(0, end);
    const zero = text.indexOf(0);
    if (zero !== -1)
      throw new MalformedCSVError(
        this.line + breaks(bytes, 0, zero),
        'there is a NUL byte: this is not a text file',
      );
    if (isUtf8(text)) return;
    for (let from = 0; from < end; ) {
      const next = text.indexOf(LF, from);
      const to = next === -1 ? end : next + 1;
      if (!isUtf8(text.subarray(from, to))) {
        if (this.last && to === end && next === -1) return; // cut within a character
        throw new MalformedCSVError(
          this.line + breaks(bytes, 0, from),
          'this is not UTF-8: convert the file (iconv -t UTF-8)',
        );
      }
      from = to;
    }
  }

  /** Without a quote in it. */
  private plainRow(lineEnd: number): CSVRow {
    const { bytes, at } = this;
    const end = lineEnd === -1 ? bytes.length : lineEnd;
    const contentEnd = withoutCR(bytes, at, end);
    const text = bytes.toString('utf8', at, contentEnd);
    if (text.includes('\r')) throw this.loneCR(this.line);
    return this.finish(text.split(','), contentEnd, lineEnd === -1 ? end : end + 1, lineEnd === -1 ? 0 : 1);
  }

  /** null: it goes on behind these bytes. */
  private quotedRow(): CSVRow | null {
    const { bytes, last } = this;
    const cells: string[] = [];
    for (let position = this.at; ; position++) {
      let end: number;
      if (bytes[position] === QUOTE) {
        let close = position;
        let doubled = false;
        for (;;) {
          close = bytes.indexOf(QUOTE, close + 1);
          if (close === -1 || (close + 1 >= bytes.length && !last)) {
            if (!last) return null;
            cells.push(bytes.toString('utf8', position + 1));
            return {
              ...this.finish(cells, bytes.length, bytes.length, breaks(bytes, this.at, bytes.length)),
              open: true,
            };
          }
          if (bytes[close + 1] !== QUOTE) break;
          doubled = true;
          close++;
        }
        const text = bytes.toString('utf8', position + 1, close);
        cells.push(doubled ? text.replaceAll('""', '"') : text);
        end = close + 1;
      } else {
        end = position;
        while (end < bytes.length && bytes[end] !== COMMA && bytes[end] !== LF) end++;
        if (end >= bytes.length && !last) return null;
        const to = bytes[end] === COMMA ? end : withoutCR(bytes, position, end);
        const text = bytes.toString('utf8', position, to);
        if (text.includes('\r')) throw this.loneCR(this.line + breaks(bytes, this.at, position));
        cells.push(text);
        end = to;
      }
      if (bytes[end] === COMMA) {
        position = end;
        continue;
      }
      const inside = breaks(bytes, this.at, end);
      let lineEnd = end;
      while (bytes[lineEnd] === CR) lineEnd++;
      if (lineEnd >= bytes.length) return last ? this.finish(cells, end, bytes.length, inside) : null;
      if (bytes[lineEnd] === LF) return this.finish(cells, end, lineEnd + 1, inside + 1);
      // Zeros behind the last line are taken off at the end of the file.
      if (bytes[lineEnd] === 0 && !last) return null;
      throw new MalformedCSVError(
        this.line + inside,
        'there is text after a closing quote: write quotes within quoted values twice ("")',
      );
    }
  }

  private finish(cells: string[], end: number, next: number, lines: number): CSVRow {
    const { at, line, offset } = this;
    this.line += lines;
    this.at = next;
    const newline = next === end ? '' : next - end > 1 ? '\r\n' : '\n';
    return { cells, line, start: offset + at, end: offset + end, newline, open: false };
  }

  private loneCR(line: number): MalformedCSVError {
    return new MalformedCSVError(
      line,
      'there is a carriage return without a line feed: end lines with \\n or \\r\\n',
    );
  }
}

function withoutCR(bytes: Buffer, from: number, end: number): number {
  let to = end;
  while (to > from && bytes[to - 1] === CR) to--;
  return to;
}

function breaks(bytes: Buffer, from: number, to: number): number {
  let count = 0;
  for (let at = bytes.indexOf(LF, from); at !== -1 && at < to; at = bytes.indexOf(LF, at + 1)) count++;
  return count;
}

/** Cells that need quotes, by RFC 4180 or for readers that strip spaces. */
const NEEDS_QUOTES = /[",\r\n]|^\s|\s$/;

function quote(cell: string): string {
  return NEEDS_QUOTES.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell;
}

/** A line of a table, without its line break. */
export function formatRow(cells: readonly string[]): string {
  // A lone empty cell would be an empty line, which readers skip.
  if (cells.length === 1 && (cells[0] as string).trim() === '') return `"${cells[0]}"`;
  return cells.map(quote).join(',');
}
