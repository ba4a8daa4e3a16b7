import { constants } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { ifFailed, isFailure } from '../../errors.ts';
import { sleep } from '../../platform/index.ts';
import { metricOf } from '../progress/index.ts';
import type { SearchRecord, WorkerQueue } from '../queue/index.ts';
import { TrialCourse } from '../search/index.ts';
import { isValues, Literal, readValue, type Values } from '../task/index.ts';
import type { WandbRun } from './wandb-run.ts';

const POLL_MS = 250;
const WANDB_POLL_MS = 2_000;
/** The most that is read at a time, and of a line that has no end yet. */
const MAX_READ_BYTES = 1024 * 1024;

interface TrialOptions {
  queue: WorkerQueue;
  /** null: the task is no trial of a search, and isn't watched; its program of W&B says its values. */
  search: SearchRecord | null;
  /** The task's id. */
  id: string;
  /** The file to which the command appends lines of JSON. */
  progress: string;
  /** null: it is no program of W&B. */
  wandb: WandbRun | null;
  /** Called once, with the step, if the trial isn't worth going on. */
  stop: (step: number) => void;
}

/** The values that were reported last to a search, and those that a program of W&B has logged. */
export interface TrialValues {
  reported: Values;
  logged: Values;
}

/** Watches the values that a running trial reports, until {@link end}. */
export class TrialProgress {
  readonly #options: TrialOptions;
  readonly #course: TrialCourse | null;
  readonly #sources: { read(isEnd: boolean): Promise<void> }[];
  readonly #ending = new AbortController();
  #nextWandb = 0;
  /** The last values that a program of W&B has logged. */
  #logged: Values = {};
  #aggregates: Values = {};
  /** Whether a program of W&B has finished its run. */
  #isFinished = false;
  readonly #watching: Promise<void>;

  constructor(options: TrialOptions) {
    this.#options = options;
    const { search, id, progress, wandb } = options;
    this.#course = search === null ? null : new TrialCourse(search, id);
    this.#sources = [new LineReader(progress, (line) => this.#noteReport(line))];
    if (wandb !== null) this.#sources.push({ read: async (isEnd) => this.#readWandb(wandb, isEnd) });
    this.#watching = this.#watch();
  }

  async #watch(): Promise<void> {
    const { signal } = this.#ending;
    const { queue, stop } = this.#options;
    const course = this.#course;
    for (let isBad = false; course !== null && !isBad; ) {
      await sleep(POLL_MS, signal);
      if (signal.aborted) return;
      await this.#read(false);
      // Errors are met again where the queue is needed.
      isBad = await course.isBad(queue).catch(ifFailed(false));
      if (isBad && !signal.aborted && !this.#isFinished) stop(course.step);
    }
  }

  async #read(isEnd: boolean): Promise<void> {
    for (const source of this.#sources) await source.read(isEnd);
  }

  /** Ends watching. The last values count for others, too. */
  async end(): Promise<TrialValues> {
    this.#ending.abort();
    await this.#watching;
    await this.#read(true);
    await this.#course?.isBad(this.#options.queue).catch(ifFailed(false));
    return { reported: this.#course?.last ?? {}, logged: { ...this.#logged, ...this.#aggregates } };
  }

  #noteReport(line: string): void {
    const report = readValue(line);
    if (report === undefined || !isValues(report)) return;
    const { step = null, ...values } = report;
    const number = step instanceof Literal ? step.data : step;
    this.#course?.note(typeof number === 'number' && number >= 0 ? Math.floor(number) : null, values);
  }

  /** Each call of `wandb.log()` with the metric is a step, as W&B counts. */
  #readWandb(run: WandbRun, isEnd: boolean): void {
    if (!isEnd && performance.now() < this.#nextWandb) return;
    this.#nextWandb = performance.now() + WANDB_POLL_MS;
    const name = this.#options.search?.metric?.name ?? '';
    for (const { kind, values, aggregates } of run.read()) {
      const isStep = kind === 'history' && metricOf(values, name) !== null;
      this.#isFinished ||= kind === 'exit';
      this.#logged = { ...this.#logged, ...values };
      this.#aggregates = { ...this.#aggregates, ...aggregates };
      this.#course?.note(isStep ? null : this.#course.step, values);
    }
  }
}

/** Reads lines as they are appended to a file. */
class LineReader {
  readonly #path: string;
  readonly #note: (line: string) => void;
  #at = 0;
  #rest = '';

  constructor(path: string, note: (line: string) => void) {
    this.#path = path;
    this.#note = note;
  }

  /** Reads what is new, if there is a file that can be read. @param isEnd the last line needs no end */
  async read(isEnd: boolean): Promise<void> {
    const file = await open(this.#path, constants.O_RDONLY | constants.O_NONBLOCK).catch(ifFailed(null));
    try {
      // A program may have put something without an end in its place.
      const status = await file?.stat();
      if (file !== null && status?.isFile() && status.size > this.#at) await this.#readOn(file, status.size);
      if (isEnd && this.#rest !== '') this.#note(this.#rest);
    } catch (error) {
      if (!isFailure(error)) throw error; // the disk has an error: the result will tell
    } finally {
      await file?.close();
    }
  }

  async #readOn(file: FileHandle, size: number): Promise<void> {
    const bytes = Buffer.alloc(Math.min(size - this.#at, MAX_READ_BYTES));
    for (let bytesRead = 1; bytesRead > 0; ) {
      ({ bytesRead } = await file.read(bytes, 0, bytes.length, this.#at));
      this.#at += bytesRead;
      const lines = (this.#rest + bytes.toString('utf8', 0, bytesRead)).split(/[\n\r]/);
      this.#rest = (lines.pop() as string).slice(-MAX_READ_BYTES);
      for (const line of lines) this.#note(line);
    }
  }
}
