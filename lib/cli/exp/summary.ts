import { failedTasks, firstLine, isOver, type Overview, type Queue } from '../../experiments/index.ts';
import { listWords, sanitize, shellWords } from '../../platform/index.ts';
import type { Values } from '../arguments.ts';
import { whyStopped } from './crew.ts';
import { counts } from './frame.ts';
import type { Outcome } from './outcome.ts';
import { sameQueue } from './queue-options.ts';

const MOST_FAILURES = 3;
const MOST_TABLES = 3;

/** What came of it, and what to do next: lines for people. @param lifts whether starting it again ends a pause after failures */
export async function summary(
  queue: Queue,
  now: Overview,
  { ends }: Outcome,
  tables: readonly string[] | null,
  values: Values,
  lifts: boolean,
): Promise<string[]> {
  const command = (name: string) => shellWords(['gpu-owner', 'exp', name, ...sameQueue(values)]);
  const lines = [`${now.total} ${now.total === 1 ? 'task' : 'tasks'}: ${counts(now)}`];
  const { pause, counts: all } = now;
  if (pause?.by !== 'failures') lines.push(...whyStopped(ends));
  if (pause !== null) {
    const [first = '', ...details] = pause.message.split('\n');
    lines.push(
      `paused${pause.by === 'failures' ? ' after failures' : ''}${first === '' ? '' : `: ${first}`}`,
      ...details,
    );
    lines.push(
      lifts && pause.by === 'failures' ? 'started again, it goes on' : `to go on: ${command('resume')}`,
    );
  }
  if (all.failed > 0) {
    // Without their names, if the queue can't be asked any longer: what came of it is known.
    for (const { task, error } of await failedTasks(queue, MOST_FAILURES).catch(() => [])) {
      lines.push(`failed: ${task.name}: ${sanitize(firstLine(error ?? ''), 300)}`);
    }
    if (all.failed > MOST_FAILURES) lines.push(`and ${all.failed - MOST_FAILURES} more failed`);
    lines.push(`their output: ${command('logs')} NAME; once more: ${command('retry')} failed`);
  }
  if (tables !== null && now.completed > 0) {
    const more = tables.length > MOST_TABLES ? [`${tables.length - MOST_TABLES} more`] : [];
    lines.push(`results: ${listWords([...tables.slice(0, MOST_TABLES), ...more])}`);
  }
  if (!isOver(now) && pause === null) lines.push('started again, it goes on where it was');
  return lines;
}
