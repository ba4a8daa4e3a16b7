import { GPUOwnerError } from '../../errors.ts';
import { listWords, sanitize } from '../../platform/index.ts';
import { type Place, parse, type Task, type TaskCommand, type Value, type Values, Written } from '../task/index.ts';
import { type AttemptInfo, type Pause, STATES, type State, type WorkerInfo } from './queue.ts';

// What a queue has kept may be damaged: a disk fails, people edit databases, anybody may write to a Redis. Whoever reads a record that is
// gets something harmless and is told; nothing ends because of it, and all other records are as ever.

/** What is wrong with records, while they are read. */
class Finding {
  readonly #bad: string[] = [];

  /** @param read answers undefined for what can't be */
  read<T>(what: string, text: unknown, read: (text: string) => T | undefined, otherwise: T): T {
    let value: T | undefined;
    try {
      value = typeof text === 'string' ? read(text) : undefined;
    } catch {
      // as below
    }
    if (value === undefined) this.#bad.push(what);
    return value ?? otherwise;
  }

  get damage(): string | null {
    return this.#bad.length === 0 ? null : `its record in the queue is damaged (${listWords(this.#bad)})`;
  }
}

function readValues(text: string): Values | undefined {
  const value: Value = parse(text);
  const isMap =
    typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof Written);
  return isMap ? (value as Values) : undefined;
}

/** @throws SyntaxError */
export function readCommand(text: string): TaskCommand | undefined {
  const { words, shell } = JSON.parse(text) as { words?: unknown; shell?: unknown };
  if (typeof shell === 'string') return { shell };
  return Array.isArray(words) && words.every((word) => typeof word === 'string') ? { words } : undefined;
}

/** @param pairs phase and directory of each */
function placesFrom(pairs: readonly unknown[]): Place[] | undefined {
  const places: Place[] = [];
  for (const pair of pairs) {
    const [phase, outputDirectory] = Array.isArray(pair) ? pair : [];
    if (typeof phase !== 'string' || typeof outputDirectory !== 'string') return undefined;
    places.push({ phase, outputDirectory });
  }
  return places.length === 0 ? undefined : places;
}

/** A JSON list of `[phase, directory]`. @throws SyntaxError */
export function readPlaces(text: string): Place[] | undefined {
  return placesFrom(JSON.parse(text) as unknown[]);
}

/** A line of JSON for each. @throws SyntaxError */
export function readPlaceLines(text: string): Place[] | undefined {
  return placesFrom(text.split('\n').map((line) => JSON.parse(line)));
}

/** Of a damaged one nothing is used but its id and its name: it has no parameters, no command, and no table. */
export function readTask(
  record: { id: unknown; name: unknown; parameters: unknown; command: unknown; places: unknown },
  placesOf: (text: string) => Place[] | undefined,
): Task {
  const finding = new Finding();
  const id = finding.read('id', record.id, (text) => text, '');
  const name = finding.read('name', record.name, (text) => text || undefined, id);
  const parameters = finding.read('parameters', record.parameters, readValues, {});
  const command = finding.read('command', record.command, readCommand, { words: [] });
  const places = finding.read('output directories', record.places, placesOf, []);
  const { damage } = finding;
  if (damage === null) return { id, name, parameters, command, places };
  return { id, name, parameters: {}, command: { words: [] }, places: [], damage };
}

export function readResult(text: unknown): { result: Values; damage?: string } {
  const finding = new Finding();
  const result = finding.read('result', text, readValues, {});
  return finding.damage === null ? { result } : { result, damage: finding.damage };
}

export function readState(state: unknown): State | undefined {
  return STATES.find((known) => known === state);
}

export function readSource(source: unknown): 'worker' | 'table' | null {
  return source === 'worker' || source === 'table' ? source : null;
}

const OUTCOMES = ['completed', 'failed', 'given-back', 'lost', 'cancelled'] as const;

export function readOutcome(outcome: unknown): AttemptInfo['outcome'] {
  if (outcome === null || outcome === undefined) return null;
  return OUTCOMES.find((known) => known === outcome) ?? 'lost';
}

/** In ms since the epoch; null: none, or none that is a time. */
export function readTime(value: unknown): number | null {
  const time = value === null || value === undefined || value === '' ? Number.NaN : Number(value);
  return Math.abs(time) <= 8.64e15 ? time : null;
}

/** Of 0 and more; 0 for what is no such number. */
export function readCount(value: unknown): number {
  const count = Number(value);
  return Number.isSafeInteger(count) && count >= 0 ? count : 0;
}

export function readText(value: unknown): string {
  return typeof value === 'string' ? value : '';
}

export function readTaker(worker: unknown, host: unknown, pid: unknown, gpus: unknown): WorkerInfo {
  const list = Array.isArray(gpus) ? gpus.filter((gpu) => typeof gpu === 'string') : [];
  return { worker: readText(worker), host: readText(host), pid: readCount(pid), gpus: list };
}

/** The file that an attempt's output went to. */
export function readLog(path: unknown, from: unknown, to: unknown): AttemptInfo['log'] {
  if (typeof path !== 'string' || path === '' || path.includes('\0')) return null;
  const begin = readCount(from);
  const end = to === null || to === undefined || to === '' ? null : readCount(to);
  return { path, from: begin, to: end === null ? null : Math.max(begin, end) };
}

/** JSON of somebody's; null where it is none. */
export function readJSON(text: unknown): unknown {
  try {
    return typeof text === 'string' ? JSON.parse(text) : null;
  } catch {
    return null;
  }
}

/** As {@link readJSON}, of a map: what isn't one has nothing in it. */
export function readRecord(text: unknown): Readonly<Record<string, unknown>> {
  const value = readJSON(text);
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
}

/** Whoever has paused a queue wanted that, whatever has become of what they said. */
export function readPause(text: string): Pause {
  const { by, message, since } = readRecord(text);
  return {
    by: by === 'failures' ? 'failures' : 'person',
    message: typeof message === 'string' ? message : 'the record of the pause is damaged',
    since: readTime(since) ?? Date.now(),
  };
}

const NAMED = 5;

/** For those who can't do without: tasks whose records are damaged. */
export function damagedTasks(url: string, tasks: readonly { name: string; damage: string }[]): GPUOwnerError {
  const more = tasks.length - NAMED;
  const list = tasks
    .slice(0, NAMED)
    .map(({ name, damage }) => `${sanitize(name, 100)}: ${sanitize(damage, 200)}`);
  return new GPUOwnerError(
    'ERR_QUEUE',
    `the queue ${sanitize(url, 300)} has damaged records; everything else was done. ${list.join('; ')}${more > 0 ? `; and ${more} more` : ''}. ` +
      'Run such a task again: gpu-owner exp cancel NAME, then exp run with its sweep in another queue; or restore the queue from a backup.',
  );
}
