// The file with a job's output, while it grows.
import { closeSync, constants, fstatSync, openSync, readSync } from 'node:fs';
import { errorMessage, GPUOwnerError } from '../errors.ts';
import { errno, nativeOrNull } from '../native.ts';
import { showValue } from '../platform/index.ts';

/** As the keeper cuts: native/keeper/job_file.cc. */
const CHUNK = 64 * 1024;
const NEWLINE = 0x0a;

/** Reads a job's output from its beginning, or from its last lines on, to the end that it has now, as often as it is asked. */
export class JobOutput {
  readonly #file: number;
  #at: number;

  /** @param at where to begin @throws ERR_INVALID_ARGUMENT: it can't be read */
  constructor(path: string, id: number, at = 0) {
    this.#at = at;
    try {
      this.#file = openOutput(path);
    } catch (error) {
      throw unreadable(
        `the output of job ${id} can't be read: ${errorMessage(error)}. Check whether the file was moved, and its permissions.`,
      );
    }
    // A device may have no end.
    if (fstatSync(this.#file).isFile()) return;
    this.close();
    throw unreadable(
      `the output of job ${id} can't be read again: ${showValue(path)} is not an ordinary file. To keep the output of a job, submit it without --output.`,
    );
  }

  /** Where the next bytes are read. */
  get at(): number {
    return this.#at;
  }

  skipToLast(lines: number): void {
    this.#at = startOfLast(this.#file, lines);
  }

  /** Reads what is new. @param onDropped so many bytes were cut out by the keeper, as the output became too large */
  read(onBytes: (bytes: Buffer) => void, onDropped: (bytes: number) => void): void {
    const chunk = Buffer.alloc(CHUNK);
    const { size } = fstatSync(this.#file);
    // The file may have been emptied.
    if (size < this.#at) this.#at = 0;
    let dropped = 0;
    // Not further than it goes now: it may grow as fast as it is read.
    while (this.#at < size) {
      // Whole chunks were cut out of the middle.
      const start = this.#at - (this.#at % CHUNK);
      const length = readSync(this.#file, chunk, 0, CHUNK, start);
      const bytes = chunk.subarray(this.#at - start, length);
      if (bytes.length === 0) break;
      this.#at += bytes.length;
      if (length === CHUNK && isEmpty(chunk) && mayHaveHoles(this.#file)) {
        const end = endOfHole(this.#file, this.#at, size);
        dropped += bytes.length + end - this.#at;
        this.#at = end;
        continue;
      }
      if (dropped > 0) onDropped(dropped);
      dropped = 0;
      onBytes(bytes);
    }
    if (dropped > 0) onDropped(dropped);
  }

  close(): void {
    closeSync(this.#file);
  }
}

function openOutput(path: string): number {
  return openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
}

function unreadable(message: string): GPUOwnerError {
  return new GPUOwnerError('ERR_INVALID_ARGUMENT', message);
}

/** Asked for each block of NUL bytes: the keeper may be cutting just now. */
function mayHaveHoles(file: number): boolean {
  const { size, blocks } = fstatSync(file);
  return blocks * 512 < size;
}

/** How far whole chunks from there on are in a hole: it may be many gigabytes. */
function endOfHole(file: number, at: number, size: number): number {
  const data = nativeOrNull()?.fileNextData(file, at) ?? at;
  // No data comes any more.
  const end = data === -errno.ENXIO ? size : Math.min(data, size);
  return Math.max(at, end - (end % CHUNK));
}

function isEmpty(bytes: Buffer): boolean {
  return bytes[0] === 0 && bytes.subarray(1).equals(bytes.subarray(0, -1));
}

/** The offset where the last so many lines begin. */
function startOfLast(file: number, lines: number): number {
  const { size } = fstatSync(file);
  let left = lines;
  // The newline at the very end ends the last line.
  let before = true;
  for (let end = size; end > 0; ) {
    const start = Math.max(0, end - CHUNK);
    const bytes = Buffer.alloc(end - start);
    readSync(file, bytes, 0, bytes.length, start);
    for (let i = bytes.length - 1; i >= 0; i--) {
      if (before && start + i === size - 1) {
        before = false;
        if (bytes[i] === NEWLINE && lines > 0) continue;
      }
      if (lines === 0) return size;
      if (bytes[i] === NEWLINE && --left === 0) return start + i + 1;
    }
    end = start;
  }
  return 0;
}

/** More of the end than anybody pages through on a terminal, in bytes. */
const MAX_TAIL = 256 * 1024;

/** The end of a job's output, as lines to show. */
export class JobOutputTail {
  readonly #path: string;
  #seen = '';
  #lines: string[] = [];

  constructor(path: string) {
    this.#path = path;
  }

  /** Read anew where the file has changed. Not cleaned of control characters. */
  get lines(): readonly string[] {
    let file: number;
    try {
      file = openOutput(this.#path);
    } catch (error) {
      return [`(it can't be read: ${errorMessage(error)})`];
    }
    try {
      const status = fstatSync(file);
      if (!status.isFile()) return ["(it can't be read again: it is not an ordinary file)"];
      const seen = `${status.size} ${status.mtimeMs}`;
      if (seen !== this.#seen) this.#lines = lastLines(file, status.size);
      this.#seen = seen;
      return this.#lines;
    } finally {
      closeSync(file);
    }
  }
}

function lastLines(file: number, size: number): string[] {
  const begin = Math.max(0, size - MAX_TAIL);
  const bytes = Buffer.alloc(size - begin);
  const length = readSync(file, bytes, 0, bytes.length, begin);
  const lines = linesOf(bytes.toString('utf8', 0, length));
  // The line may have begun before, but a whole line of that length is better than none.
  if (begin > 0 && lines.length > 1) lines.shift();
  return lines;
}

/** The lines of an output, to be shown. A line that a program has drawn anew looks as it was drawn last. */
export function linesOf(text: string): string[] {
  const lines = text.split('\n');
  if (lines.at(-1) === '') lines.pop();
  return lines.map((line) => line.replace(/\r+$/, '').replace(/^.*\r/s, '').replaceAll('\t', '    '));
}
