import { closeSync, constants, fstatSync, openSync, readSync } from 'node:fs';
import { basename, resolve } from 'node:path';
import { errorReason, formatSince, hostName, sanitize, sleep } from '../../platform/index.ts';
import { isInside } from '../project/index.ts';
import { type AttemptInfo, NO_PID, type Queue, type TaskRow } from '../queue/index.ts';

/** Where the output of a task is printed. */
interface LogOutput {
  /** Prints a line between the outputs. */
  line(text: string): void;
  /** Tells a person why there is nothing to print. */
  note(text: string): void;
  /** Prints output as it is. */
  bytes(bytes: Uint8Array): void;
}

/** The line above the output of an attempt. */
const NEXT = /^==> \d{4}-\d\d-\d\d \d\d:\d\d:\d\d /m;
/** How often a file is read for more output. */
const POLL_INTERVAL_MS = 300;

/** Prints the output of a task, start by start. */
export class TaskLogs {
  readonly #queue: Queue;
  readonly #id: string;
  readonly #project: string;
  readonly #output: LogOutput;

  /** @param project the absolute path of the project's directory */
  constructor(queue: Queue, id: string, project: string, output: LogOutput) {
    this.#queue = queue;
    this.#id = id;
    this.#project = project;
    this.#output = output;
  }

  /** @param follow goes on until the task has ended */
  async print(follow: boolean): Promise<void> {
    const shown = new Set<string>();
    for (;;) {
      const attempts = await this.#queue.attempts({ taskId: this.#id });
      for (const attempt of attempts) {
        if (shown.has(attempt.token)) continue;
        shown.add(attempt.token);
        await this.#show(attempt, follow);
      }
      const row = await this.#row();
      const over = row === null || !['pending', 'active'].includes(row.state);
      if (attempts.length === 0 && (over || !follow)) {
        const why =
          row?.source === 'table'
            ? 'its result was found in a table'
            : `it is ${row?.state ?? 'gone'} and was never started`;
        this.#output.note(`there is no output of ${sanitize(row?.task.name, 100)}: ${why}`);
        return;
      }
      if (!follow || over) return;
      await this.#queue.changed(1_000);
    }
  }

  async #row(): Promise<TaskRow | null> {
    const [row] = await this.#queue.lookUp([this.#id]);
    return row ?? null;
  }

  async #show(attempt: AttemptInfo, follow: boolean): Promise<void> {
    const { taskName, worker, since } = attempt;
    this.#output.line(
      `==> ${sanitize(taskName, 100)} on ${sanitize(worker.name, 40)} (${sanitize(worker.host, 60)}) since ${formatSince(since) ?? '?'}`,
    );
    let { log, outcome } = attempt;
    while (follow && log === null && outcome === null) {
      await sleep(POLL_INTERVAL_MS);
      ({ log, outcome } = await this.#now(attempt));
    }
    if (log === null) {
      return this.#output.line(
        // Workers that ask over TCP have no log.
        worker.pid === NO_PID
          ? `<== its worker asked over TCP: the output is where that worker was started, on ${sanitize(worker.host, 60)}`
          : outcome === null
            ? '<== no output yet: its command is being started'
            : '<== no output: its command was not started',
      );
    }
    const path = resolve(this.#project, log.path);
    const place = `its output is in ${sanitize(path, 500)} on ${sanitize(worker.host, 60)}`;
    const own = worker.host === hostName();
    // What the queue says may be anything. Logs of other machines have their names, also where they are shared with this one.
    const isLog = isInside(path, this.#project) || basename(path).startsWith(`worker_${worker.host}_`);
    const tail = isLog ? FileTail.open(path, log.from) : { problem: 'it is no log of this project' };
    if ('problem' in tail) {
      const why = own ? `which can't be read here: ${tail.problem}` : 'not on this machine';
      return this.#output.line(`<== ${place}, ${why}`);
    }
    let last: Uint8Array = Buffer.from('\n');
    const copy = (to: number | null, over: boolean) => {
      for (const bytes of tail.read(to)) {
        // The output of a lost attempt ends at the latest where the next one's begins.
        const next = to === null && over ? bytes.toString('latin1').search(NEXT) : -1;
        last = next === -1 ? bytes : bytes.subarray(0, next);
        this.#output.bytes(last);
        if (next !== -1) return;
      }
    };
    try {
      for (;;) {
        const now = await this.#now(attempt);
        copy(now.log?.to ?? null, now.outcome !== null);
        if (now.outcome !== null || !follow) return this.#lineOfEnd(now, last);
        await sleep(POLL_INTERVAL_MS);
      }
    } finally {
      tail.close();
    }
  }

  #lineOfEnd({ outcome, error }: AttemptInfo, last: Uint8Array): void {
    if (last.at(-1) !== 0x0a) this.#output.line('');
    const why = error === null ? '' : `: ${sanitize(error.split('\n')[0], 300)}`;
    this.#output.line(`<== ${outcome ?? 'it runs'}${why}`);
  }

  async #now(attempt: AttemptInfo): Promise<AttemptInfo> {
    const attempts = await this.#queue.attempts({ taskId: this.#id });
    const now = attempts.find(({ token }) => token === attempt.token);
    return now ?? { ...attempt, outcome: 'lost', error: 'the queue no longer knows this attempt' };
  }
}

const CHUNK = 64 * 1024;

/** Reads a growing file from an offset on. */
class FileTail {
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
      return { problem: 'it is not a regular file' };
    } catch (error) {
      return { problem: errorReason(error) };
    }
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
