// The notes of what the processes of tasks have seen themselves, and checks of them.
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

/** A line of the log of fixtures/witness.py. */
export interface Testimony {
  /** On the monotonic clock, in ms. */
  at: number;
  kind: 'start' | 'beat' | 'end' | 'violation';
  pid: number;
  role: 'command' | 'forked' | 'started' | 'claimant';
  gpus: string[];
  /** A random number for each run of a command; its children have it, too. */
  attempt: number;
  /** null for who isn't a task. */
  task: string | null;
  name: string | null;
  /** Which start of the task this is, as it was told. */
  start: number | null;
  what?: string;
  code?: number | string;
  result?: string;
}

/** A row of a table, as Python's csv module reads it. */
export interface ResultRow {
  table: string;
  task: string;
  attempt: string;
}

/** A task as gpu-owner tells it in the end. */
export interface TaskOutcome {
  id: string;
  name: string;
  state: string;
  starts: number;
  /** The tables that have the task. */
  tables: string[];
}

export function readTestimony(directory: string): Testimony[] {
  const path = join(directory, 'log');
  if (!existsSync(path)) return [];
  // Behind the last line may be one that is being written.
  const lines = readFileSync(path, 'utf8').split('\n').slice(0, -1);
  return lines.map((line) => JSON.parse(line) as Testimony);
}

const MAX_STARTS = 3;
/** A command that ends so says that it isn't the task's fault. */
const NOT_ITS_FAULT = 75;
const GOOD_RESULTS = ['plain', 'nan', 'more', 'none'];

/** Descriptions of what went wrong while commands ran: two on a GPU, a task run twice at once, or too often. */
export function violationsIn(log: readonly Testimony[], { givenBack = 0 } = {}): string[] {
  return [
    ...log.filter(({ kind }) => kind === 'violation').map((line) => `${who(line)}: ${line.what}`),
    ...overlaps(log, 'GPU', ({ gpus }) => gpus),
    ...overlaps(log, 'task', ({ task }) => (task === null ? [] : [task])),
    ...tooManyStarts(log, givenBack),
  ];
}

/** Whether the tables have what tasks have become: a row per completed task and table, from its last attempt, and no other. */
export function violationsOfTables(
  log: readonly Testimony[],
  outcomes: readonly TaskOutcome[],
  rows: readonly ResultRow[],
): string[] {
  const found: string[] = [];
  const last = new Map<string, Testimony>();
  const ends = new Map<number, Testimony>();
  for (const line of log) {
    if (line.role !== 'command' || line.task === null) continue;
    if (line.kind === 'start') last.set(line.task, line);
    if (line.kind === 'end') ends.set(line.attempt, line);
  }
  const byTable = new Map<string, ResultRow[]>();
  for (const row of rows) {
    const key = `${row.table} ${row.task}`;
    byTable.set(key, [...(byTable.get(key) ?? []), row]);
  }
  for (const { id, name, state, starts, tables } of outcomes) {
    if (!['completed', 'failed', 'cancelled'].includes(state)) found.push(`${name} is ${state} in the end`);
    if (starts > MAX_STARTS) found.push(`${name} was started ${starts} times, says the queue`);
    for (const table of tables) {
      const its = byTable.get(`${table} ${name}`) ?? [];
      byTable.delete(`${table} ${name}`);
      const expected = state === 'completed' ? 1 : 0;
      if (its.length !== expected)
        found.push(`${table} has ${its.length} rows for ${name}, which is ${state}`);
      if (state !== 'completed') continue;
      const attempt = last.get(id)?.attempt;
      const end = attempt === undefined ? undefined : ends.get(attempt);
      if (end === undefined || end.code !== 0 || !GOOD_RESULTS.includes(end.result ?? '')) {
        found.push(`${name} is completed, but its last attempt ended with ${end?.code} and ${end?.result}`);
      }
      const written = end?.result === 'none' ? '' : String(attempt);
      for (const row of its) {
        if (row.attempt !== written)
          found.push(`${table}: the row of ${name} is of ${row.attempt}, not ${written}`);
      }
    }
  }
  for (const key of byTable.keys()) found.push(`a row that no task explains: ${key}`);
  return found;
}

function who({ role, pid, name, attempt, start }: Testimony): string {
  return `${role} ${pid} of ${name ?? 'no task'}, attempt ${attempt}, start ${start}`;
}

/** A process from its first to its last line. */
interface Life {
  first: Testimony;
  from: number;
  to: number;
}

/** In the order of their beginnings. */
export function livesIn(log: readonly Testimony[]): Life[] {
  const lives = new Map<string, Life>();
  for (const line of log) {
    const key = `${line.pid} ${line.attempt}`;
    const life = lives.get(key);
    if (life === undefined) lives.set(key, { first: line, from: line.at, to: line.at });
    else life.to = Math.max(life.to, line.at);
  }
  return [...lives.values()].sort((a, b) => a.from - b.from);
}

/** Two attempts of which it is known that they lived at one time with the same thing. */
function overlaps(
  log: readonly Testimony[],
  thing: string,
  of: (line: Testimony) => readonly string[],
): string[] {
  const found: string[] = [];
  const last = new Map<string, Life[]>();
  for (const life of livesIn(log)) {
    for (const each of of(life.first)) {
      const living = (last.get(each) ?? []).filter(({ to }) => to >= life.from);
      for (const other of living) {
        if (other.first.attempt === life.first.attempt) continue;
        found.push(
          `${thing} ${each} had two attempts at ${life.from}: ${who(other.first)} and ${who(life.first)}`,
        );
      }
      last.set(each, [...living, life]);
    }
  }
  return found;
}

function tooManyStarts(log: readonly Testimony[], givenBack: number): string[] {
  const commands = log.filter(({ role, task }) => role === 'command' && task !== null);
  const excused = new Set(
    commands
      .filter(({ kind, code }) => kind === 'end' && code === NOT_ITS_FAULT)
      .map(({ attempt }) => attempt),
  );
  const starts = new Map<string, Testimony[]>();
  for (const line of commands) {
    if (line.kind !== 'start') continue;
    if ((line.start ?? 0) < 1 || (line.start ?? 0) > MAX_STARTS) {
      return [`${who(line)}: there is no such start`];
    }
    if (excused.has(line.attempt)) continue;
    starts.set(line.name as string, [...(starts.get(line.name as string) ?? []), line]);
  }
  const found: string[] = [];
  for (const [name, lines] of starts) {
    if (lines.length > MAX_STARTS + givenBack) {
      found.push(`${name} was started ${lines.length} times: ${lines.map(({ start }) => start).join(', ')}`);
    }
  }
  return found;
}
