import { closeSync, constants, fstatSync, openSync, readSync } from 'node:fs';
import { systemError } from '../../platform/index.ts';

const CHUNK = 64 * 1024;
/** Longer lines are none that is looked for. */
const LINE = 4_096;

/** A file that grows, read from a place on. */
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

  /** The line that ends where it begins; '' if there is none. */
  lineBefore(): string {
    const from = Math.max(0, this.#at - LINE);
    const bytes = Buffer.alloc(this.#at - from);
    const count = readSync(this.#file, bytes, 0, bytes.length, from);
    return bytes.toString('utf8', 0, count).split('\n').at(-2) ?? '';
  }

  /** What has come since the last call. @param to where it ends, in bytes; null: where the file does */
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
