// The end of a file that grows, as lines to show.
import { closeSync, constants, fstatSync, openSync, readSync } from 'node:fs';

/** So much of the end is read: more than anybody pages through on a terminal. */
const MAX_BYTES = 256 * 1024;

export class LogTail {
  readonly path: string;
  #seen = '';
  #lines: string[] = [];

  constructor(path: string) {
    this.path = path;
  }

  /** Read anew where the file has changed. Not cleaned of control characters. */
  get lines(): readonly string[] {
    let file: number;
    try {
      file = openSync(this.path, constants.O_RDONLY | constants.O_NONBLOCK);
    } catch (error) {
      return [`(it can't be read: ${(error as Error).message})`];
    }
    try {
      const status = fstatSync(file);
      if (!status.isFile()) return ["(it can't be read again: it is not an ordinary file)"];
      const seen = `${status.size} ${status.mtimeMs}`;
      if (seen !== this.#seen) this.#lines = readLines(file, status.size);
      this.#seen = seen;
      return this.#lines;
    } finally {
      closeSync(file);
    }
  }
}

function readLines(file: number, size: number): string[] {
  const begin = Math.max(0, size - MAX_BYTES);
  const bytes = Buffer.alloc(size - begin);
  const length = readSync(file, bytes, 0, bytes.length, begin);
  const lines = bytes.toString('utf8', 0, length).split('\n');
  if (begin > 0) lines.shift();
  if (lines.at(-1) === '') lines.pop();
  // A line that a program has drawn anew looks as it was drawn last.
  return lines.map((line) => line.replace(/\r+$/, '').replace(/^.*\r/, '').replaceAll('\t', '    '));
}
