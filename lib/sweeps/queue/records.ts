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
import type { ManagerInfo, Pause, SearchRecord } from './queue.ts';

// A queue's records may be damaged: a disk fails, people edit databases, anybody may write to a Redis. A damaged record is an
// error that names it.

const { amount, among, flag, jsonOf, listOf, Mismatch, matching, nullable, pairOf, record, text, whole } =
  schema;

const VALUES: schema.Check<Values> = (stored, path) => {
  let value: Value;
  try {
    value = parseValue(text(stored, path));
  } catch {
    throw new Mismatch(path);
  }
  if (!isValues(value)) throw new Mismatch(path);
  return value;
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

/** Reads a record. @param what names it @throws ERR_QUEUE if it is damaged */
export function readRecord<T>(what: string, check: schema.Check<T>, stored: unknown): T {
  const read = schema.readAs(check, stored);
  if (read !== null) return read;
  throw new GPUOwnerError(
    'ERR_QUEUE',
    `the record of ${sanitize(what, 100)} in the queue is damaged. ` +
      'Restore the queue from a backup, or start again with another one: the results that are in the tables are found there.',
  );
}

export function destinationsText(destinations: readonly Destination[]): string {
  return JSON.stringify(destinations.map(({ phase, outputDirectory }) => [phase, outputDirectory]));
}

export function readDestinations(task: string, stored: string): Destination[] {
  return readRecord(`task ${task}`, jsonOf(DESTINATIONS), stored);
}

const TASK = record({
  id: text,
  name: matching(/./s),
  parameters: VALUES,
  command: jsonOf(COMMAND),
  places: jsonOf(DESTINATIONS),
});
interface StoredTask {
  id: string;
  name: string;
  parameters: string;
  command: string;
  /** The destinations: a list of `[phase, directory]`. */
  places: string;
}

/** @throws ERR_QUEUE if its record is damaged */
export function taskOf(stored: StoredTask): Task {
  const { places, ...task } = readRecord(`task ${stored.name || stored.id}`, TASK, stored);
  return { ...task, destinations: places };
}

/** @throws ERR_QUEUE if the result is damaged */
export function readResult({ name }: Task, stored: unknown): Values {
  return readRecord(`the result of task ${name}`, VALUES, stored);
}

const GPUS = jsonOf(listOf(text));

export function readGPUs(stored: string): string[] {
  return readRecord('an attempt', GPUS, stored);
}

const MANAGER = jsonOf(record({ host: text, pid: whole() }));

export function readManager(stored: string): Pick<ManagerInfo, 'host' | 'pid'> {
  return readRecord('the manager', MANAGER, stored);
}

const PAUSE = record({ by: among(['failures', 'person']), message: text, since: schema.epochMs });

export function readPause(stored: string | null): Pause | null {
  return stored === null ? null : readRecord('the pause', jsonOf(PAUSE), stored);
}

const LEFT: schema.Check<SearchRecord['left']> = (value, path) =>
  Object.fromEntries(
    Object.entries(schema.object(value, path)).map(([id, seed]) => [id, nullable(whole())(seed, path)]),
  );

const SEARCH = record({
  phase: text,
  trials: whole(),
  metric: nullable(record({ name: text, goal: among(['minimize', 'maximize']) })),
  stopping: nullable(record({ rungs: listOf(whole()), eta: amount(), strict: flag })),
  seed: nullable(whole()),
  left: LEFT,
  isOver: flag,
});

export function readSearch(stored: string | null): SearchRecord | null {
  return stored === null ? null : readRecord('the search', jsonOf(SEARCH), stored);
}

export function readGPUsPerTask(stored: string | null): number {
  return stored === null ? 1 : readRecord('the GPUs of a task', jsonOf(whole(undefined, 1)), stored);
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

/** The command of a task that came without one, for workers that know themselves what to run. */
export const NO_COMMAND_TEXT = commandText({ words: [] });

/** Shows a text that {@link commandText} has made. */
export function showCommand(stored: string): string {
  const command = readRecord('a command', jsonOf(COMMAND), stored);
  return `'${sanitize('shell' in command ? command.shell : command.words.join(' '), 120)}'`;
}
