// A task is a job of BullMQ: its id the task's, its data what the task is, its returnvalue the result. This is how both are read.
import { randomUUID } from 'node:crypto';
import type * as BullMQ from 'bullmq';
import { schema } from '../../../platform/index.ts';
import type { Task } from '../../task/index.ts';
import type { KeptTask } from '../enqueue.ts';
import {
  type AttemptInfo,
  type Completion,
  DEFAULT_RETRIES,
  type State,
  type TaskRow,
  type WorkerInfo,
} from '../queue.ts';
import { destinationsText, readRecord, readResult, taskOf } from '../records.ts';

/** The priority of fresh tasks; failed ones come after them. BullMQ gives out jobs of priority 0 before all others. */
const FRESH = 2;

/** A token of an attempt, before its task is known. */
export function newToken(): string {
  return randomUUID().replaceAll('-', '');
}

/** The tokens of those who complete a task by a row of a table. */
export const TABLE = 'table-';

/** The worker that has a job, or had it last: BullMQ keeps that as the name of the worker. */
export interface Holder extends WorkerInfo {
  token: string;
}

/** The last attempt of a task. */
export interface Last extends Holder {
  since: number;
}

/** An attempt that has ended. */
export interface Ended extends Last {
  ended: number;
  outcome: NonNullable<AttemptInfo['outcome']>;
  error: string | null;
}

/** Facts for which BullMQ has no place. They are the job's progress, and change with the move of the job, in one step. */
export interface Status {
  /** Attempts that have ended, oldest first. */
  attempts: Ended[];
  /** The last thing that went wrong. */
  error: string | null;
  /** Starts that don't count any longer. */
  forgiven: number;
  /** How many of its stalls are among the attempts. */
  stalls: number;
  /** The attempt that began last: BullMQ forgets it when it gives the job to another one. */
  current: Last | null;
  /** The attempt whose command may still run although the task isn't its own, and until when, by the clock of Redis. */
  held: { token: string; until: number } | null;
}

const { among, epochMs, jsonOf, listOf, nullable, optional, record, text, whole } = schema;
const WORKER = { name: text, host: text, pid: whole(), gpus: listOf(text), token: text };
const HOLDER = jsonOf(record(WORKER));
const LAST = { ...WORKER, since: epochMs };
const STATUS: schema.Check<Status> = record({
  attempts: listOf(
    record({
      ...LAST,
      ended: epochMs,
      outcome: among(['completed', 'failed', 'given-back', 'lost', 'cancelled']),
      error: nullable(text),
    }),
  ),
  error: nullable(text),
  forgiven: whole(),
  stalls: whole(),
  current: nullable(record(LAST)),
  held: nullable(record({ token: text, until: epochMs })),
});
const DATA = jsonOf(
  record({
    number: whole(),
    parameters: text,
    command: text,
    places: text,
    retries: optional(whole()),
  }),
);

const NO_STATUS: Status = { attempts: [], error: null, forgiven: 0, stalls: 0, current: null, held: null };

/** The data of a task's job. Texts keep how numbers are written. */
export function jobData(
  number: number,
  parameters: string,
  { command, destinations, retries }: KeptTask,
): Record<string, unknown> {
  const places = destinationsText(destinations);
  return { number, parameters, command, places, ...(retries === DEFAULT_RETRIES ? {} : { retries }) };
}

/** Ids of jobs whose state doesn't follow from their record. */
export interface Places {
  active: ReadonlySet<string>;
  /** For BullMQ, they have failed. */
  cancelled: ReadonlySet<string>;
}

export class TaskJob {
  readonly id: string;
  readonly json: BullMQ.JobJson;
  readonly status: Status;
  /** The worker that has it, or had it last. */
  readonly holder: Holder | null;
  readonly #data: schema.Checked<typeof DATA>;

  constructor(id: string, json: BullMQ.JobJson) {
    this.id = id;
    this.json = json;
    const what = `task ${json.name}`;
    const { progress, processedBy, data } = json;
    this.status = typeof progress === 'object' ? readRecord(what, STATUS, progress) : { ...NO_STATUS };
    this.holder = processedBy === undefined ? null : readRecord(what, HOLDER, processedBy);
    this.#data = readRecord(what, DATA, data);
  }

  /** What BullMQ did with it in the end; null: it goes on. */
  get finished(): 'completed' | 'failed' | null {
    if (this.json.finishedOn === undefined) return null;
    return this.json.returnvalue === undefined ? 'failed' : 'completed';
  }

  state({ active, cancelled }: Places): State {
    if (this.finished === 'failed' && cancelled.has(this.id)) return 'cancelled';
    return this.finished ?? (active.has(this.id) ? 'active' : 'pending');
  }

  /** Counted starts. @param isActive whether the last of them has not ended */
  starts(isActive: boolean): number {
    const { attemptsMade, stalledCounter } = this.json;
    return Math.max(0, attemptsMade + stalledCounter - this.status.forgiven + (isActive ? 1 : 0));
  }

  /** The priority of a waiting task by its starts. @param early before tasks that have waited after it */
  static priority(starts: number, early = false): number {
    return FRESH * (starts + 1) - (early ? 1 : 0);
  }

  get retries(): number {
    return this.#data.retries ?? DEFAULT_RETRIES;
  }

  get number(): number {
    return this.#data.number;
  }

  get isExhausted(): boolean {
    return this.starts(false) > this.retries;
  }

  task(): Task {
    const { parameters, command, places } = this.#data;
    return taskOf({ id: this.id, name: this.json.name, parameters, command, places });
  }

  get parameters(): string {
    return this.#data.parameters;
  }

  kept(places: Places): KeptTask {
    const { name, destinations } = this.task();
    const { command } = this.#data;
    return { name, state: this.state(places), command, destinations, retries: this.retries };
  }

  row(places: Places, sequence: number | null): TaskRow {
    const { json, finished, status } = this;
    const state = this.state(places);
    const isCompleted = state === 'completed';
    return {
      task: this.task(),
      state,
      starts: this.starts(state === 'active'),
      error: isCompleted ? null : status.error,
      ended: finished === null ? null : (json.finishedOn ?? null),
      source: isCompleted ? this.#source : null,
      sequence: isCompleted ? sequence : null,
    };
  }

  completion(sequence: number): Completion {
    const task = this.task();
    return { sequence, task, source: this.#source, result: readResult(task, this.result) };
  }

  get #source(): 'worker' | 'table' {
    return this.holder?.token.startsWith(TABLE) ? 'table' : 'worker';
  }

  /** The text of the result of a completed one. */
  get result(): string | undefined {
    const { name, returnvalue } = this.json;
    return returnvalue === undefined
      ? undefined
      : readRecord(`the result of task ${name}`, jsonOf(text), returnvalue);
  }

  /** The last attempt, unless it is among those that have ended. */
  get last(): Last | null {
    const { holder, json } = this;
    if (holder === null || this.#source === 'table' || this.#isNoted(holder)) return null;
    return { ...holder, since: json.processedOn ?? 0 };
  }

  /** The attempt that was lost, when BullMQ has found that; null: it ended before it had begun. */
  get lost(): Last | null {
    const { current } = this.status;
    return current === null || this.#isNoted(current) ? null : current;
  }

  #isNoted({ token }: Holder): boolean {
    return this.status.attempts.some((each) => each.token === token);
  }

  /** Whether the task is that of an attempt, as far as its record says. */
  belongsTo(token: string): boolean {
    return this.last?.token === token && this.finished === null;
  }

  /** The status after the last attempt has ended so. */
  ended(
    outcome: Ended['outcome'],
    error: string | null,
    more: Partial<Status> = {},
    last = this.last,
  ): Status {
    const { status } = this;
    const ended = last === null ? [] : [{ ...last, ended: Date.now(), outcome, error }];
    return { ...status, attempts: [...status.attempts, ...ended], error: error ?? status.error, ...more };
  }
}
