import { stringify, type Values } from '../../task/index.ts';
import { MAX_BYTES, type Pause, type Selection } from '../queue.ts';
import { readPause, readTime } from '../records.ts';
import type { Connection } from './connection.ts';

/** Tasks per operation, at most. */
const PORTION = 500;

/** See `Queue.importResults`. */
export async function importResults(
  connection: Connection,
  rows: readonly { id: string; result: Values }[],
): Promise<boolean[]> {
  const adopted: boolean[] = [];
  let words: string[] = [];
  let size = 0;
  const send = async () => {
    const answers = await connection.call<number[]>('importResults', ...words);
    adopted.push(...answers.map((answer) => answer === 1));
    words = [];
    size = 0;
  };
  for (const { id, result } of rows) {
    const text = stringify(result);
    if (words.length === 2 * PORTION || (words.length > 0 && size + text.length > MAX_BYTES)) await send();
    words.push(id, text);
    size += text.length;
  }
  if (words.length > 0) await send();
  return adopted;
}

/** See `Queue.retry`, `Queue.cancel`. */
export async function select(
  connection: Connection,
  action: 'retry' | 'cancel',
  selection: Selection | 'all',
): Promise<string[]> {
  const names: string[] = [];
  if (selection !== 'all' && 'ids' in selection) {
    for (let from = 0; from < selection.ids.length; from += PORTION) {
      const ids = selection.ids.slice(from, from + PORTION);
      names.push(...(await connection.call<string[]>('select', action, ...ids)));
    }
    return [...new Set(names)];
  }
  const state = selection === 'all' ? '' : selection.state;
  for (let after = '0'; ; ) {
    const [last, some] = await connection.call<[string, string[]]>(
      'selectState',
      action,
      state,
      after,
      PORTION,
    );
    names.push(...some);
    if (last === '0') return names;
    after = last;
  }
}

export async function pause(connection: Connection, by: Pause['by'], message: string): Promise<void> {
  const pause: Pause = { by, message, since: Date.now() };
  await connection.call('pause', JSON.stringify(pause), by);
}

export async function resume(connection: Connection): Promise<void> {
  await connection.call('resume');
}

export async function paused(connection: Connection): Promise<Pause | null> {
  const [text, since] = await connection.call<[string | null, string | null]>('paused');
  if (text !== null) return readPause(text);
  return since === null
    ? null
    : { by: 'person', message: 'paused in a dashboard of BullMQ', since: readTime(since) ?? Date.now() };
}
