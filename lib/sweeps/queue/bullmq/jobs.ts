// A task is a job of BullMQ: its id the task's, its data what the task is, its returnvalue the result. This is how both are read.
import { randomUUID } from 'node:crypto';
import type * as BullMQ from 'bullmq';
import { parseValue, strictJSON, stringifyValue, type Task } from '../../task/index.ts';
import type { KeptTask } from '../enqueue.ts';
import {
  type AttemptInfo,
  type Completed,
  type Completion,
  DEFAULT_RETRIES,
  type State,
  type TaskRow,
  type WorkerInfo,
} from '../queue.ts';
import * as records from '../records.ts';

/** The priority of fresh tasks; failed ones come after them. BullMQ gives out jobs of priority 0 before all others. */
const FRESH = 2;
/** The priority of cancelled tasks, BullMQ's last one. A job that has it is parked where time never comes. */
export const PARKED = 2 ** 21 - 1;
/** When parked jobs would come: the last time that BullMQ's scores have room for, in ms since the epoch. */
export const NEVER = 2 ** 41 - 1;

/** How an attempt is known to live: by heartbeats, or as long as its lifetime. `table`: a row of a table. */
export type Kind = 'heartbeat' | 'lifetime' | 'table';

/** A token of an attempt, before its task is known. */
export function newToken(): string {
  return randomUUID().replaceAll('-', '');
}

/** The worker that has a job, or had it last: BullMQ keeps that as the name of the worker. */
export interface Holder extends WorkerInfo {
  token: string;
  kind: Kind;
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
  submitted?: true;
  /** Whether it was heard of after all: then its start was taken back. */
  excused?: true;
}

/** Facts for which BullMQ has no place. They are the job's progress, and change with the move of the job, in one step. */
export interface Status {
  /** Attempts that have ended, oldest first. */
  attempts: Ended[];
  /** The last thing that went wrong. */
  error?: string | undefined;
  /** When it was cancelled. */
  ended?: number;
  /** Starts that don't count any longer. */
  forgiven: number;
  /** How many of its stalls are among the attempts. */
  stalls: number;
  /** When a person has retried it. */
  retried?: number;
  /** When it may be given out. */
  due?: number | undefined;
  /** The attempt whose command may still run although the task isn't its own, and until when, by the clock of Redis. */
  held?: { token: string; until: number } | undefined;
  /** Results that came before a completion, by token. */
  results?: Readonly<Record<string, string>> | undefined;
  /** The attempt that has completed it, if that isn't the last one. */
  by?: string;
}

/** The data of a task's job, as any program can read it. `exact` has what JSON would change. */
export function jobData(
  number: number,
  parameters: string,
  { command, destinations, retries }: KeptTask,
): Record<string, unknown> {
  const value = jsonValue(parameters);
  const plain =
    value === undefined
      ? { parameters: JSON.parse(strictJSON(parseValue(parameters))), exact: parameters }
      : { parameters: value };
  return {
    number,
    ...plain,
    command: JSON.parse(command),
    places: destinations.map(({ phase, outputDirectory }) => [phase, outputDirectory]),
    ...(retries === DEFAULT_RETRIES ? {} : { retries }),
  };
}

/** The value of a text that is the same as JSON writes it; undefined: it isn't. */
function jsonValue(text: string): unknown {
  try {
    const value: unknown = JSON.parse(text);
    return JSON.stringify(value) === text ? value : undefined;
  } catch {
    return undefined; // the text is no JSON: nothing else fails there
  }
}

/** The value that BullMQ keeps of a result: a text where JSON would change a number. */
export function resultValue(text: string): unknown {
  return jsonValue(text) ?? text;
}

export class TaskJob {
  readonly id: string;
  readonly json: BullMQ.JobJson;
  readonly status: Status;
  #parsed: Readonly<Record<string, unknown>> | null = null;

  constructor(id: string, json: BullMQ.JobJson) {
    this.id = id;
    this.json = json;
    this.status = statusOf(json.progress);
  }

  /** The worker that has it, or had it last. null: nothing of ours says so. */
  get holder(): Holder | null {
    return holderOf(this.json.processedBy);
  }

  get isParked(): boolean {
    return this.json.priority === PARKED;
  }

  /** When it completed or failed; null: it hasn't. */
  get finished(): 'completed' | 'failed' | null {
    if (this.json.finishedOn === undefined) return null;
    return this.json.returnvalue === undefined ? 'failed' : 'completed';
  }

  state(isActive: boolean): State {
    if (this.finished !== null) return this.finished;
    if (this.isParked) return 'cancelled';
    return isActive ? 'active' : 'pending';
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
    const { retries } = this.#data();
    return retries === undefined ? DEFAULT_RETRIES : records.readCount(retries);
  }

  get number(): number {
    return records.readCount(this.#data().number);
  }

  get isExhausted(): boolean {
    return this.starts(false) > this.retries;
  }

  #data(): Readonly<Record<string, unknown>> {
    this.#parsed ??= records.readRecord(this.json.data);
    return this.#parsed;
  }

  task(): Task {
    const { parameters, exact, command, places } = this.#data();
    return records.taskFrom({ id: this.id, name: this.json.name, parameters, command, places }, exact);
  }

  get parameters(): string {
    return stringifyValue(this.task().parameters);
  }

  kept(isActive: boolean): KeptTask {
    const { command, destinations } = this.task();
    return {
      name: this.json.name,
      state: this.state(isActive),
      command: records.commandText(command),
      destinations,
      retries: this.retries,
    };
  }

  row(isActive: boolean, sequence: number | null): TaskRow {
    const { json, finished, status } = this;
    const isOver = finished !== null || this.isParked;
    const record = {
      state: this.state(isActive),
      starts: this.starts(isActive),
      error: finished === 'completed' ? null : status.error,
      ended: isOver ? (json.finishedOn ?? status.ended) : null,
      source: finished === 'completed' ? this.#source : null,
      sequence,
    };
    return records.taskRowOf(record, this.task());
  }

  completion(sequence: number): Completion {
    return records.completionOf({ sequence, source: this.#source, result: this.result }, this.task());
  }

  completed(sequence: number): Completed {
    return records.completedOf({ sequence, source: this.#source }, this.task());
  }

  get #source(): 'worker' | 'table' {
    return this.holder?.kind === 'table' ? 'table' : 'worker';
  }

  /** The text of the result of a completed one. */
  get result(): unknown {
    const { returnvalue } = this.json;
    return returnvalue?.startsWith('"') ? records.readJSON(returnvalue) : returnvalue;
  }

  /** The token of the attempt that has completed it. */
  get completedBy(): string | null {
    if (this.finished !== 'completed' || this.holder?.kind === 'table') return null;
    return this.status.by ?? this.holder?.token ?? null;
  }

  /** The last attempt, unless it is among those that have ended. */
  get last(): Last | null {
    const { holder, status, json } = this;
    if (holder === null || holder.kind === 'table') return null;
    if (status.attempts.some(({ token }) => token === holder.token)) return null;
    return { ...holder, since: json.processedOn ?? 0 };
  }

  /** Whether the task is that of an attempt, as far as its record says. */
  belongsTo(token: string): boolean {
    return this.last?.token === token && this.finished === null && !this.isParked;
  }

  /** The status after the last attempt has ended so. */
  ended(
    outcome: Ended['outcome'],
    error: string | null,
    more: Partial<Status> = {},
    last: Last | null = this.last,
  ): Status {
    const { status } = this;
    const submitted = last !== null && status.results?.[last.token] !== undefined;
    const ended: Ended[] =
      last === null
        ? []
        : [{ ...last, ended: Date.now(), outcome, error, ...(submitted ? { submitted: true } : {}) }];
    const { due: _, ...rest } = status;
    return {
      ...rest,
      attempts: [...status.attempts, ...ended],
      ...(error === null ? {} : { error }),
      ...more,
    };
  }
}

function statusOf(progress: unknown): Status {
  const given = typeof progress === 'object' && progress !== null ? (progress as Partial<Status>) : {};
  const { attempts, forgiven, stalls } = given;
  return {
    ...given,
    attempts: Array.isArray(attempts) ? attempts.filter((each) => typeof each?.token === 'string') : [],
    forgiven: Number(forgiven ?? 0) || 0,
    stalls: records.readCount(stalls ?? 0),
  };
}

const KINDS: readonly Kind[] = ['heartbeat', 'lifetime', 'table'];

export function holderText({ name, host, pid, gpus, token, kind }: Holder): string {
  return JSON.stringify([name, host, pid, gpus, kind, token].map((each) => wellFormed(each)));
}

/** Halves of characters can't be kept. */
function wellFormed<T>(value: T): T | string {
  return typeof value === 'string' ? Buffer.from(value).toString() : value;
}

function holderOf(text: string | undefined): Holder | null {
  const list = records.readJSON(text);
  if (!Array.isArray(list)) return null;
  const [name, host, pid, gpus, kind, token] = list;
  return {
    name: records.readText(name),
    host: records.readText(host),
    pid: records.readCount(pid),
    gpus: Array.isArray(gpus) ? gpus.filter((each) => typeof each === 'string') : [],
    kind: KINDS.find((known) => known === kind) ?? 'heartbeat',
    token: records.readText(token),
  };
}
