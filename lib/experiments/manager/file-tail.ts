import { closeSync, constants, fstatSync, openSync, readSync } from 'node:fs';
import { systemError } from '../../platform/index.ts';

const CHUNK = 64 * 1024;
/** The lines that are looked for are shorter. */
const MAX_LINE_BYTES = 4_096;

/** Reads a growing file from an offset on. */
export class FileTail {
  readonly #file: number;
  #at: number;

  private constructor(file: number, at: number) {
    this.#file = file;
    this.#at = at;
  }

  /** @param from in bytes. @returns `problem`: why it can't be read, in words */
  static open(path: string, from: number): FileTail | { problem: string } {
    try {
      // Never waits, as opening a FIFO would.
      const file = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
      if (fstatSync(file).isFile()) return new FileTail(file, from);
      closeSync(file);
      return { problem: 'it is no file' };
    } catch (error) {
      const { errno, message } = error as NodeJS.ErrnoException;
      return { problem: errno === undefined ? message : systemError(-errno) };
    }
  }

  /** The line in front of the offset; '' if there is none. */
  lineBefore(): string {
    const from = Math.max(0, this.#at - MAX_LINE_BYTES);
    const bytes = Buffer.alloc(this.#at - from);
    const count = readSync(this.#file, bytes, 0, bytes.length, from);
    return bytes.toString('utf8', 0, count).split('\n').at(-2) ?? '';
  }

  /** Reads the bytes since the last call. @param to the offset of the end; null: the end of the file */
  *read(to: number | null): Generator<Buffer> {
    for (;;) {
      const size = to === null ? CHUNK : Math.min(CHUNK, to - this.#at);
      if (size <= 0) return;
      const bytes = Buffer.alloc(size);
      const count = readSync(this.#file, bytes, 0, size, this.#at);
      if (count === 0) return;
      this.#at += count;
      yield bytes.subarray(0, count);
    }
  }

  close(): void {
    closeSync(this.#file);
  }
}
