import {
  close,
  closeSync,
  constants,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { type FileHandle, open, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { errorCode, ifFailed, ifPossible } from '../../errors.ts';
import { EXCLUSIVE, native, OFD } from '../../native.ts';
import { sanitize } from '../../platform/index.ts';
import { isShared, makeDirectory, refuseOtherThanFile, setSharedOwner } from '../project/index.ts';
import type { Attempt } from '../queue/index.ts';
import { seedOf, stringifyValue } from '../task/index.ts';

/** The suffix that mkdtemp adds to a name. */
const RANDOM = /-[A-Za-z0-9]{6}$/;
/** The file of a task. It is locked while anything of the attempt lives; a directory without it stays. */
const TASK = 'task.json';

/** The directory of one attempt: files by which the worker and its command tell each other things. */
export class AttemptFiles {
  readonly directory: string;
  /** Every process of the attempt inherits it. */
  readonly descriptor: number;

  private constructor(directory: string, task: string) {
    this.directory = directory;
    this.descriptor = writeLocked(join(directory, TASK), task);
  }

  /**
   * Makes the directory. Removes directories of earlier attempts at the task of which nothing lives: their worker was killed.
   * @param state the project's directory for such things @throws NodeJS.ErrnoException
   */
  static make(state: string, attempt: Attempt, worker: string): AttemptFiles {
    const parent = join(state, 'attempts');
    // Names of tasks may have anything in them.
    const name = attempt.task.name.replace(/[^A-Za-z0-9._-]/g, '_').slice(0, 100);
    // A local disk, and little to write: faster than by way of other threads.
    makeParent(parent);
    removeDead(parent, name);
    return new AttemptFiles(mkdtempSync(join(parent, `${name}-`)), `${taskJSON(attempt, worker)}\n`);
  }

  /** Removes directories that killed workers have left, of any task. Never fails. */
  static tidy(state: string): void {
    ifPossible(() => removeDead(join(state, 'attempts'), null), undefined); // there may be none yet
  }

  get task(): string {
    return join(this.directory, TASK);
  }

  get result(): string {
    return join(this.directory, 'result.json');
  }

  get progress(): string {
    return join(this.directory, 'progress.jsonl');
  }

  /** Leaves the directory, for a person who looks at the result. */
  keep(): void {
    ifPossible(() => renameSync(this.task, join(this.directory, 'kept-task.json')), undefined);
    closeSync(this.descriptor);
  }

  /** Removes the directory. Never fails: files that can't be removed stay. */
  async remove(): Promise<void> {
    await rm(this.directory, { recursive: true, force: true }).catch(ifFailed(undefined));
    // Frees the file's blocks, which takes a while.
    await new Promise((resolve) => close(this.descriptor, resolve));
  }
}

/** Makes the directory for all users of the queue. */
function makeParent(path: string): void {
  try {
    mkdirSync(path, 0o700);
    const state = statSync(dirname(path));
    if (isShared(state)) setSharedOwner(path, state.gid);
  } catch (error) {
    if (errorCode(error) !== 'EEXIST') throw error;
  }
}

/** Removes directories of dead attempts. Never fails. @param task whose attempts; null: all */
function removeDead(parent: string, task: string | null): void {
  for (const name of readdirSync(parent)) {
    if (!RANDOM.test(name) || (task !== null && name.replace(RANDOM, '') !== task)) continue;
    // Where it can't be removed, another process does so, or a later attempt.
    ifPossible(() => {
      if (isDead(join(parent, name))) rmSync(join(parent, name), { recursive: true, force: true });
    }, undefined);
  }
}

/** Whether a directory is of an attempt of which nothing lives. @throws NodeJS.ErrnoException if that isn't known */
function isDead(directory: string): boolean {
  const descriptor = openSync(join(directory, TASK), constants.O_RDONLY | constants.O_NOFOLLOW);
  try {
    return native().lockProbe(descriptor, OFD, EXCLUSIVE, 0, 1) === -1;
  } finally {
    closeSync(descriptor);
  }
}

/** Writes a file, which gets its name once it is locked. @returns its descriptor */
function writeLocked(path: string, text: string): number {
  const descriptor = openSync(`${path}.new`, 'wx');
  native().lockTry(descriptor, OFD, EXCLUSIVE, 0, 1);
  writeFileSync(descriptor, text);
  renameSync(`${path}.new`, path);
  return descriptor;
}

/** The content of the file that GPU_OWNER_TASK names. */
function taskJSON({ task, start }: Attempt, worker: string): string {
  const { id, name, parameters, destinations } = task;
  return stringifyValue({
    id,
    name,
    phase: destinations[0]?.phase ?? '',
    parameters,
    seed: seedOf(parameters),
    output_dir: destinations[0]?.outputDirectory ?? '',
    start,
    worker,
  });
}

const TAIL_BYTES = 8192;
const TAIL_LINES = 8;
const TAIL_LINE = 300; // characters
const NEWLINE = 0x0a;
const APPEND = constants.O_RDWR | constants.O_APPEND | constants.O_CREAT | constants.O_NOFOLLOW;

/** A worker's log from the beginning to the end of one attempt. */
export class AttemptLog {
  readonly path: string;
  /** The offset where the command's output begins, in bytes. */
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
   * @param project its directory @throws UnsafePathError, NodeJS.ErrnoException
   */
  static async open(path: string, project: string, header: string): Promise<AttemptLog> {
    makeDirectory(dirname(path), project);
    refuseOtherThanFile(path);
    const file = await open(path, APPEND);
    try {
      return new AttemptLog(path, file, await writeLine(file, header));
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  get descriptor(): number {
    return this.#file.fd;
  }

  /** Notes where the output ends, in bytes, and writes a line below it. */
  async end(footer: string): Promise<number> {
    const { size } = await this.#file.stat();
    this.#to = size;
    await writeLine(this.#file, footer, size).catch(ifFailed(undefined)); // a full disk
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
      // A progress bar is kept in its last state.
      .map((line) => sanitize(line.replace(/\r+$/, '').split('\r').at(-1), TAIL_LINE))
      .filter((line) => line !== '');
    return lines.slice(-TAIL_LINES);
  }

  async close(): Promise<void> {
    await this.#file.close();
  }
}

/** Writes a line, also behind text that doesn't end with one. @returns the offset of its end, in bytes */
async function writeLine(file: FileHandle, line: string, known?: number): Promise<number> {
  const size = known ?? (await file.stat()).size;
  const last = Buffer.alloc(1);
  const { bytesRead } = size === 0 ? { bytesRead: 0 } : await file.read(last, 0, 1, size - 1);
  const before = bytesRead === 1 && last[0] !== NEWLINE ? '\n' : '';
  const text = Buffer.from(`${before}${line}\n`);
  await file.appendFile(text);
  return size + text.length;
}
