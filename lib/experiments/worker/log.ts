import { constants } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { sanitize } from '../../platform/index.ts';
import { locate, readable } from '../project/index.ts';

const TAIL_BYTES = 8192;
const TAIL_LINES = 8;
const TAIL_LINE = 300; // characters
const NEWLINE = 0x0a;
const APPEND = constants.O_RDWR | constants.O_APPEND | constants.O_CREAT | constants.O_NOFOLLOW;

/** The log of a worker, from the beginning of an attempt to its end. */
export class AttemptLog {
  readonly path: string;
  /** Where the command's output begins, in bytes. */
  readonly from: number;
  readonly #file: FileHandle;
  #to: number | null = null;

  private constructor(path: string, file: FileHandle, from: number) {
    this.path = path;
    this.#file = file;
    this.from = from;
  }

  /**
   * Opens the log, makes directories that aren't there, and writes a line above the attempt's output.
   * @param project its directory @throws Unsafe, NodeJS.ErrnoException
   */
  static async open(path: string, project: string, header: string): Promise<AttemptLog> {
    const place = locate(path, project, { create: true });
    try {
      const file = await open(place.at, APPEND);
      try {
        place.check(await file.stat());
        return new AttemptLog(path, file, await writeLine(file, header));
      } catch (error) {
        await file.close();
        throw error;
      }
    } catch (error) {
      throw readable(error, path);
    } finally {
      place.close();
    }
  }

  get descriptor(): number {
    return this.#file.fd;
  }

  /** Notes where the output ends, in bytes, and writes a line below it. */
  async end(footer: string): Promise<number> {
    const { size } = await this.#file.stat();
    this.#to = size;
    await writeLine(this.#file, footer, size).catch(() => {}); // a full disk
    return size;
  }

  /** The last lines of the output, harmless to print. */
  async tail(): Promise<string[]> {
    const to = this.#to ?? (await this.#file.stat()).size;
    const from = Math.max(this.from, to - TAIL_BYTES);
    const bytes = Buffer.alloc(Math.max(0, to - from));
    const { bytesRead } = await this.#file.read(bytes, 0, bytes.length, from);
    const lines = bytes
      .toString('utf8', 0, bytesRead)
      .split('\n')
      // Of a progress bar, its last state.
      .map((line) => sanitize(line.replace(/\r+$/, '').split('\r').at(-1), TAIL_LINE))
      .filter((line) => line !== '');
    return lines.slice(-TAIL_LINES);
  }

  async close(): Promise<void> {
    await this.#file.close();
  }
}

/** On a line of its own, also behind somebody who didn't end theirs. @returns where it ends, in bytes */
async function writeLine(file: FileHandle, line: string, known?: number): Promise<number> {
  const size = known ?? (await file.stat()).size;
  const last = Buffer.alloc(1);
  const { bytesRead } = size === 0 ? { bytesRead: 0 } : await file.read(last, 0, 1, size - 1);
  const before = bytesRead === 1 && last[0] !== NEWLINE ? '\n' : '';
  const text = Buffer.from(`${before}${line}\n`);
  await file.appendFile(text);
  return size + text.length;
}
