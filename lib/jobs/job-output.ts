// The file with a job's output, while it grows.
import { closeSync, constants, fstatSync, openSync, readSync } from 'node:fs';
import { errorMessage } from '../errors.ts';
import { errno, nativeOrNull } from '../native.ts';
import { showValue, sleep, usageError } from '../platform/index.ts';
import { isLiving, type Job } from './job-state.ts';

/** As the keeper cuts: native/keeper/job_file.cc. */
const CHUNK = 64 * 1024;
const NEWLINE = 0x0a;
const POLL_MS = 200;

/** A piece of a job's output. */
export interface OutputPart {
  bytes: Buffer;
  /** How many bytes before these the keeper has cut out, as the output became too large. */
  dropped: number;
  /** Where the next piece begins, in bytes. */
  at: number;
}

/** Where to begin: at an offset (negative: from the end), or with the last lines. */
interface OutputStart {
  at: number;
  /** null: the offset counts. */
  lines: number | null;
}

/** Reads a job's output from some place on to the end that it has now, as often as it is asked. */
export class JobOutput {
  readonly #file: number;
  #at: number;

  /** @throws ERR_INVALID_ARGUMENT: it can't be read */
  constructor(path: string, id: number, { at, lines }: OutputStart = { at: 0, lines: null }) {
    try {
      this.#file = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
    } catch (error) {
      throw usageError(
        `the output of job ${id} can't be read: ${errorMessage(error)}. Check whether the file was moved, and its permissions.`,
      );
    }
    // A device may have no end.
    if (!fstatSync(this.#file).isFile()) {
      this.close();
      throw usageError(
        `the output of job ${id} can't be read again: ${showValue(path)} is not an ordinary file. To keep the output of a job, submit it without --output.`,
      );
    }
    if (lines !== null) this.#at = startOfLast(this.#file, lines);
    else this.#at = at < 0 ? Math.max(0, this.size + at) : at;
  }

  /** Where the next bytes are read. */
  get at(): number {
    return this.#at;
  }

  get size(): number {
    return fstatSync(this.#file).size;
  }

  /** Reads what is new. */
  *read(): Generator<OutputPart> {
    const { size } = this;
    // The file may have been emptied.
    if (size < this.#at) this.#at = 0;
    let dropped = 0;
    // Not further than it goes now: it may grow as fast as it is read.
    while (this.#at < size) {
      // Whole chunks were cut out of the middle.
      const start = this.#at - (this.#at % CHUNK);
      const chunk = Buffer.allocUnsafe(CHUNK);
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
      yield { bytes, dropped, at: this.#at };
      dropped = 0;
    }
    if (dropped > 0) yield { bytes: Buffer.alloc(0), dropped, at: this.#at };
  }

  close(): void {
    closeSync(this.#file);
  }
}

/**
 * Reads a job's output to the end that it has now, or until the job has ended.
 * @param describe tells how the job stands now, and where its output is; null: nowhere yet
 * @returns pieces, and after each look an empty one. `size`: of the whole output. `isOver`: it is the last
 */
export async function* followOutput(
  id: number,
  describe: () => Pick<Job, 'state' | 'output'> | Promise<Pick<Job, 'state' | 'output'>>,
  { follow, ...start }: OutputStart & { follow: boolean },
  signal?: AbortSignal,
): AsyncGenerator<OutputPart & { size: number; isOver: boolean }> {
  let output: JobOutput | null = null;
  try {
    for (let isOver = false; !isOver && !signal?.aborted; ) {
      const { output: path, state } = await describe();
      isOver = !follow || !isLiving(state);
      if (output === null && path !== null) output = new JobOutput(path, id, start);
      for (const part of output?.read() ?? []) yield { ...part, size: output?.size ?? 0, isOver: false };
      const [at, size] = [output?.at ?? 0, output?.size ?? 0];
      yield { bytes: Buffer.alloc(0), dropped: 0, at, size, isOver };
      if (!isOver) await sleep(POLL_MS, signal);
    }
  } finally {
    output?.close();
  }
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

/** The offset of the last `lines` lines. */
function startOfLast(file: number, lines: number): number {
  const { size } = fstatSync(file);
  let remaining = lines;
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
      if (bytes[i] === NEWLINE && --remaining === 0) return start + i + 1;
    }
    end = start;
  }
  return 0;
}
