import { GPUOwnerError } from '../../errors.ts';
import { sanitize, schema } from '../../platform/index.ts';
import {
  type Destination,
  formatValue,
  isValues,
  Literal,
  parseValue,
  type Task,
  type TaskCommand,
  type Value,
  type Values,
} from '../task/index.ts';
import {
  type AttemptInfo,
  type Completed,
  type Completion,
  LEAST_NEEDS,
  type Needs,
  type Pause,
  type SearchRecord,
  STATES,
  type TaskRow,
} from './queue.ts';

// A queue's records may be damaged: a disk fails, people edit databases, anybody may write to a Redis. A damaged task or
// result is an error that names it. Other fields are read as something harmless.

const {
  amount,
  among,
  flag,
  jsonOf,
  listOf,
  Mismatch,
  matching,
  nullable,
  numeric,
  or,
  pairOf,
  record,
  text,
  validOf,
  whole,
} = schema;

const MAP: schema.Check<Values> = (value, path) => {
  if (!isValues(value)) throw new Mismatch(path);
  return value;
};

const VALUES: schema.Check<Values> = (stored, path) => {
  let value: Value;
  try {
    value = parseValue(text(stored, path));
  } catch {
    throw new Mismatch(path);
  }
  return MAP(value, path);
};

const SHELL = record({ shell: text });
const WORDS = record({ words: listOf(text) });
const COMMAND: schema.Check<TaskCommand> = (value, path) =>
  (Object.hasOwn(schema.object(value, path), 'shell') ? SHELL : WORDS)(value, path);

/** A list of `[phase, directory]`. */
const DESTINATIONS: schema.Check<Destination[]> = (value, path) => {
  const pairs = listOf(pairOf(text, text))(value, path);
  if (pairs.length === 0) throw new Mismatch(path);
  return pairs.map(([phase, outputDirectory]) => ({ phase, outputDirectory }));
};

/** Reads a JSON list of `[phase, directory]`. undefined: it is none. */
export function readDestinations(stored: string): Destination[] | undefined {
  return schema.readAs(jsonOf(DESTINATIONS), stored) ?? undefined;
}

/**
 * A task as an engine keeps it. The fields may have any value. `places`, the destinations, is a JSON list of `[phase,
 * directory]`.
 */
export type StoredTask = Record<
  | 'id'
  | 'name'
  | 'parameters'
  | 'command'
  | 'places'
  | 'state'
  | 'starts'
  | 'error'
  | 'ended'
  | 'source'
  | 'sequence',
  unknown
>;

/** An attempt as an engine keeps it. `id` and `name` are the task's. `gpus` is a list. */
type StoredAttempt = Record<
  | 'token'
  | 'id'
  | 'name'
  | 'worker'
  | 'host'
  | 'pid'
  | 'gpus'
  | 'since'
  | 'ended'
  | 'outcome'
  | 'error'
  | 'log'
  | 'log_from'
  | 'log_to',
  unknown
> & { submitted: boolean };

type TaskFields = Pick<StoredTask, 'id' | 'name' | 'parameters' | 'command' | 'places'>;

/** Reads a task of texts. @throws ERR_QUEUE if its record is damaged */
export function taskOf(stored: TaskFields): Task {
  return readTask(stored, VALUES, jsonOf(COMMAND), jsonOf(DESTINATIONS));
}

/** Reads a task of values, as {@link taskOf} does. @param exact the text of parameters that JSON would change */
export function taskFrom(stored: TaskFields, exact?: unknown): Task {
  if (typeof exact !== 'string') return readTask(stored, MAP, COMMAND, DESTINATIONS);
  return readTask({ ...stored, parameters: exact }, VALUES, COMMAND, DESTINATIONS);
}

function readTask(
  stored: TaskFields,
  values: schema.Check<Values>,
  commands: schema.Check<TaskCommand>,
  places: schema.Check<Destination[]>,
): Task {
  const read = <T>(field: keyof TaskFields, check: schema.Check<T>) =>
    readField(stored, field, stored[field], check);
  return {
    id: read('id', text),
    name: read('name', matching(/./s)),
    parameters: read('parameters', values),
    command: read('command', commands),
    destinations: read('places', places),
  };
}

function readField<T>(
  task: { name: unknown; id: unknown },
  field: string,
  value: unknown,
  check: schema.Check<T>,
): T {
  const read = schema.readAs(check, value);
  if (read !== null) return read;
  throw new GPUOwnerError(
    'ERR_QUEUE',
    `the record of task ${sanitize(readText(task.name) || readText(task.id), 100)} in the queue is damaged (${field}). ` +
      'Restore the queue from a backup, or start again with another one: the results that are in the tables are found there.',
  );
}

/** @param task of the record */
export function taskRowOf(stored: Omit<StoredTask, keyof TaskFields>, task: Task): TaskRow {
  return {
    task,
    state: STATES.find((known) => known === stored.state) ?? 'failed',
    starts: readCount(stored.starts),
    error: typeof stored.error === 'string' ? stored.error : null,
    ended: readTime(stored.ended),
    source: readSource(stored.source),
    sequence: stored.sequence == null ? null : readCount(stored.sequence),
  };
}

export function completedOf(stored: Pick<StoredTask, 'sequence' | 'source'>, task: Task): Completed {
  return { sequence: readCount(stored.sequence), task, source: readSource(stored.source) ?? 'worker' };
}

/** @throws ERR_QUEUE if the result is damaged */
export function completionOf(
  stored: Pick<StoredTask, 'sequence' | 'source'> & { result: unknown },
  task: Task,
): Completion {
  return { ...completedOf(stored, task), result: readField(task, 'result', stored.result, VALUES) };
}

export function attemptInfoOf(stored: StoredAttempt): AttemptInfo {
  const { id, name, worker, host, pid, gpus, since, ...attempt } = ATTEMPT(stored, '');
  return {
    ...attempt,
    taskId: id,
    taskName: name,
    worker: { name: worker, host, pid, gpus },
    since: since ?? 0,
    submitted: stored.submitted,
    log: readLog(stored.log, stored.log_from, stored.log_to),
  };
}

const COUNT = or(numeric(whole()), 0);
const TIME = or(numeric(schema.epochMs), null);
const TEXT = or(text, '');

const ATTEMPT = record({
  token: TEXT,
  id: TEXT,
  name: TEXT,
  worker: TEXT,
  host: TEXT,
  pid: COUNT,
  gpus: validOf(text),
  since: TIME,
  ended: TIME,
  outcome: nullable(or(among(['completed', 'failed', 'given-back', 'lost', 'cancelled']), 'lost')),
  error: or(text, null),
});

function readSource(source: unknown): 'worker' | 'table' | null {
  return schema.readAs(among(['worker', 'table']), source);
}

/** Reads a time in ms since the epoch. null: there is none, or the value is no time. */
export function readTime(value: unknown): number | null {
  return TIME(value, '');
}

/** Reads an integer from 0 on; any other value is read as 0. */
export function readCount(value: unknown): number {
  return COUNT(value, '');
}

export function readText(value: unknown): string {
  return TEXT(value, '');
}

/** Reads where an attempt's output is: the file, and from which byte to which. */
function readLog(path: unknown, from: unknown, to: unknown): AttemptInfo['log'] {
  const file = schema.readAs(matching(/^[^\0]+$/s), path);
  if (file === null) return null;
  const begin = readCount(from);
  const end = to === '' ? null : schema.readAs(COUNT, to);
  return { path: file, from: begin, to: end === null || to == null ? null : Math.max(begin, end) };
}

/** Parses JSON from an untrusted source. null: it is no JSON. */
export function readJSON(stored: unknown): unknown {
  return schema.readAs(
    jsonOf((value) => value),
    stored,
  );
}

/** Parses a JSON object as {@link readJSON} does. Anything else is read as an empty object. */
export function readRecord(stored: unknown): Readonly<Record<string, unknown>> {
  return schema.readAs(jsonOf(schema.object), stored) ?? {};
}

const PAUSE = record({
  by: or(among(['failures', 'person']), 'person'),
  message: or(text, 'the record of the pause is damaged'),
  since: TIME,
});

/** Reads why the queue is paused. A damaged record still pauses it: a person wanted that. */
export function readPause(stored: string): Pause {
  const pause = PAUSE(readRecord(stored), '');
  return { ...pause, since: pause.since ?? Date.now() };
}

const LEFT: schema.Check<SearchRecord['left']> = (value, path) =>
  Object.fromEntries(
    Object.entries(schema.object(value, path)).map(([id, seed]) => [id, nullable(whole())(seed, path)]),
  );

const SEARCH = record({
  phase: text,
  trials: whole(),
  metric: nullable(record({ name: text, goal: among(['minimize', 'maximize']), pattern: nullable(text) })),
  stopping: nullable(record({ rungs: listOf(whole()), eta: amount(), strict: flag })),
  seed: nullable(whole()),
  left: LEFT,
  isOver: flag,
});

/** Reads what a search is. A damaged record is none. */
export function readSearch(stored: string | null): SearchRecord | null {
  return schema.readAs(jsonOf(SEARCH), stored);
}

const NEEDS = record({ gpus: whole(undefined, 1), memory: whole() });

/** Reads what each task of the list needs. A damaged record is none. */
export function readNeeds(stored: string | null): Needs {
  return schema.readAs(jsonOf(NEEDS), stored) ?? LEAST_NEEDS;
}

/** Limits that keep a name with a suffix short enough for a file. */
const MAX_PHASE_BYTES = 120;
const MAX_SEED_BYTES = 60;

/** Characters that are unsafe in the name of a file or on a terminal. */
const UNSAFE = /[/\\\p{Cc}\p{Cf}\p{Cs}\p{Z}]+/gu;

/** A phase as it stands in names. Phases that become equal share a counter. */
export function phaseInName(phase: string): string {
  const safe = shorten(phase.replace(UNSAFE, '_'), MAX_PHASE_BYTES) || '_';
  // Neither hidden nor an option.
  return /^[.-]/.test(safe) ? `_${safe}` : safe;
}

/** A task's name: `exp1_vary_width_0_42`. @param phase from `phaseInName` @param seed null: none */
export function taskName(phase: string, counter: number, seed: Value): string {
  if (seed === null || (seed instanceof Literal && seed.data === null)) return `${phase}_${counter}`;
  return `${phase}_${counter}_${shorten(formatValue(seed).replace(UNSAFE, '_'), MAX_SEED_BYTES)}`;
}

function shorten(text: string, bytes: number): string {
  if (Buffer.byteLength(text) <= bytes) return text;
  let result = '';
  let size = 0;
  for (const character of text) {
    size += Buffer.byteLength(character);
    if (size > bytes) break;
    result += character;
  }
  return result;
}

/** A command as text: equal commands have equal texts. */
export function commandText(command: TaskCommand): string {
  return JSON.stringify('shell' in command ? { shell: command.shell } : { words: command.words });
}

/** Whether two commands are there, and differ. */
export function areDifferent(one: TaskCommand, other: TaskCommand): boolean {
  const texts = [one, other].map(commandText);
  return texts[0] !== texts[1] && !texts.includes(NO_COMMAND_TEXT);
}

/** The command of a task that came without one, for workers that know themselves what to run. */
export const NO_COMMAND_TEXT = commandText({ words: [] });

/** Reads a text that {@link commandText} makes. null: it is none. */
export function commandOf(stored: string): TaskCommand | null {
  return schema.readAs(jsonOf(COMMAND), stored);
}
