import { closeSync, constants, fstatSync, openSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';
import { sanitize, systemError } from '../../platform/index.ts';
import { locate, readable } from '../project/index.ts';

/** Lines that are kept while the file can't be written. */
const MOST_KEPT = 1_000;

/** `experiment_manager.log`: a line per event, with its time, appended. A file that can't be written stops nothing. */
export class ManagerLog {
  readonly #path: string;
  readonly #tell: (message: string) => void;
  #file: number | null = null;
  #waiting: Buffer[] = [];
  #lost = 0;
  #complained = false;

  /** @param path in the project's directory @param tell for people, once when lines can't be written */
  constructor(path: string, tell: (message: string) => void) {
    this.#path = path;
    this.#tell = tell;
  }

  write(message: string): void {
    if (this.#waiting.length === MOST_KEPT) {
      this.#waiting.shift();
      this.#lost++;
    }
    this.#waiting.push(line(message));
    this.flush();
  }

  /** Writes what could not be written before. */
  flush(): void {
    if (this.#waiting.length === 0) return;
    try {
      this.#file ??= open(this.#path);
      while (this.#waiting.length > 0) {
        const bytes = this.#waiting[0] as Buffer;
        const written = writeSync(this.#file, bytes);
        if (written < bytes.length) {
          // The rest is written when there is room again.
          this.#waiting[0] = bytes.subarray(written);
          throw Object.assign(new Error(), { errno: -28 });
        }
        this.#waiting.shift();
        if (this.#waiting.length === 0 && this.#lost > 0) {
          this.#waiting.push(line(`${this.#lost} lines are missing before these`));
          this.#lost = 0;
        }
      }
      this.#complained = false;
    } catch (error) {
      this.close();
      if (this.#complained) return;
      this.#complained = true;
      const { errno, message } = error as NodeJS.ErrnoException;
      const why = errno === undefined ? message : systemError(-errno);
      this.#tell(
        `${this.#path} can't be written: ${why}. The log goes on as soon as it can; nothing else waits for it.`,
      );
    }
  }

  close(): void {
    if (this.#file !== null) closeSync(this.#file);
    this.#file = null;
  }
}

function line(message: string): Buffer {
  return Buffer.from(`${timestamp(new Date())} ${sanitize(message, 2_000)}\n`);
}

/** Never waits, as opening a FIFO would. */
function open(path: string): number {
  const { O_APPEND, O_CREAT, O_NOFOLLOW, O_NONBLOCK, O_WRONLY } = constants;
  const place = locate(path, dirname(path));
  let file: number | null = null;
  try {
    file = openSync(place.at, O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_WRONLY, 0o666);
    place.check(fstatSync(file));
    return file;
  } catch (error) {
    if (file !== null) closeSync(file);
    throw readable(error, path);
  } finally {
    place.close();
  }
}

/** `2026-01-01 12:00:00`, local time. */
export function timestamp(date: Date): string {
  const two = (value: number) => String(value).padStart(2, '0');
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}
