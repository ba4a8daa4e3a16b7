import { seedOf, stringify, type TaskSpec, taskId } from '../../task/index.ts';
import { commandText, conflict, conflicting } from '../commands.ts';
import { phaseInName, taskName } from '../names.ts';
import { type Enqueued, MAX_BYTES } from '../queue.ts';
import type { Connection } from './connection.ts';
import { placeText } from './rows.ts';

/** Tasks per operation, at most: others wait for some ten milliseconds at most. */
const BATCH = 500;

/** See `Queue.enqueue`. */
export async function enqueue(
  connection: Connection,
  tasks: Iterable<TaskSpec> | AsyncIterable<TaskSpec>,
  { replaceCommands = false, signal }: { replaceCommands?: boolean; signal?: AbortSignal },
): Promise<Enqueued> {
  const total: Enqueued = { added: 0, known: 0, placed: 0 };
  /** Tasks of earlier batches, if commands may be replaced: not by two of one sweep in turn. */
  const seen = replaceCommands ? new Set<string>() : null;
  let sent: Promise<void> = Promise.resolve();
  const send = async (words: readonly string[]) => {
    const answer = await connection.call<(string | number)[]>('enqueue', replaceCommands ? 1 : 0, ...words);
    const [kind, ...rest] = answer;
    if (kind === 'conflicts') throw refusal(rest);
    const [added, known, placed] = rest as [number, number, number];
    total.added += added;
    total.known += known;
    total.placed += placed;
  };
  /** While Redis has the last ones, the next are prepared. */
  let ids: string[] = [];
  let words: string[] = [];
  let size = 0;
  const add = (spec: TaskSpec) => {
    const id = taskId(spec.parameters);
    const described = describe(spec);
    for (const word of described) size += word.length;
    words.push(id, ...described, seen?.has(id) ? '1' : '0');
    ids.push(id);
  };
  const dispatch = async () => {
    for (const id of ids) seen?.add(id);
    const batch = words;
    ids = [];
    words = [];
    size = 0;
    await sent;
    signal?.throwIfAborted();
    sent = send(batch);
    sent.catch(() => {}); // it is met by the next, or at the end
  };
  try {
    for await (const spec of tasks) {
      add(spec);
      if (ids.length === BATCH || size > MAX_BYTES) await dispatch();
    }
    if (ids.length > 0) await dispatch();
  } finally {
    await sent;
  }
  return total;
}

function describe(spec: TaskSpec): string[] {
  const { parameters, command } = spec;
  const phase = phaseInName(spec.phase);
  // The counter is known where it is counted.
  const suffix = taskName('', 0, seedOf(parameters)).slice('_0'.length);
  return [stringify(parameters), commandText(command), phase, suffix, placeText(spec)];
}

function refusal([count, ...words]: (string | number)[]): Error {
  const conflicts: string[] = [];
  for (let index = 0; index < words.length; index += 3) {
    const [name, known, other] = words.slice(index, index + 3) as [string, string, string];
    conflicts.push(conflict(name, known, other));
  }
  return conflicting(conflicts, count as number);
}
