import {
  fitColumns,
  formatSince,
  hostName,
  sanitize,
  shellWords,
  showValue,
  usageError,
} from '../../platform/index.ts';
import {
  type AttemptInfo,
  formatProgress,
  isOver,
  type Progress,
  readStatus,
  type Status,
  statusJSON,
  withQueue,
} from '../../sweeps/index.ts';
import { COUNTS } from '../claim-options.ts';
import type { Command } from '../command.ts';
import { type OptionGroup, type Parsed, rejectOperands } from '../command-line.ts';
import { alignColumns, pageWidth } from '../output.ts';
import { refresh, WATCH, watchInterval } from '../refresh.ts';
import { locationOf, QUEUE, sameQueue } from './queue-options.ts';
import { bestLines, counts, seconds } from './render.ts';

/** The most that the page has; --json has more. */
const MAX_FAILURES_SHOWN = 5;

const GROUPS = [
  {
    options: {
      json: {
        help: 'print { project, queue, total, counts, progress, manager, pause, nextTime, running, failures, search }; times are ISO 8601, null is unknown or none',
      },
      best: { value: 'N', help: 'show the best N trials of a search (default 1)', candidates: COUNTS },
      ...WATCH,
      ...QUEUE,
    },
  },
] as const satisfies readonly OptionGroup[];

async function status(parsed: Parsed<typeof GROUPS>): Promise<void> {
  rejectOperands(parsed);
  const { values } = parsed;
  const interval = watchInterval(values);
  const best = values.best === undefined ? 1 : Number(/^\d{1,6}$/.exec(values.best)?.[0] ?? 0);
  if (best < 1) throw usageError(`--best: ${showValue(values.best)} is not a number of trials; use 1, 2, …`);
  await withQueue(locationOf(values), async (queue) => {
    await refresh('exp status', interval, async () => {
      const now = await readStatus(queue, best);
      if (values.json) return statusJSON(locationOf(values).directory, queue.url, now);
      return statusPage(now, { width: pageWidth(), now: Date.now(), options: sameQueue(values) });
    });
  });
}

interface PageOptions {
  /** Columns of the terminal. */
  width: number;
  /** ms since the epoch. */
  now: number;
  /** Options that lead the named commands to the same queue. */
  options: readonly string[];
}

/** Describes the state of an experiment. */
export function statusPage(status: Status, { width, now, options }: PageOptions): string {
  const clip = (line: string) => fitColumns(line, Math.max(width, 40));
  const command = (name: string) => shellWords(['gpu-owner', 'exp', name, ...options]);
  const { completed, total, counts: all, running, failures, search } = status;
  const shown = { counts: { ...all, active: Math.min(all.active, running.length) } };
  const lines = [`${formatProgress(completed, total)}: ${counts(shown)}`, ...stateLines(status, command)];
  lines.push(...bestLines(search?.best ?? null).map(clip));
  if (running.length > 0) lines.push('Running:', ...table(running, now).map(clip));
  if (failures.length > 0) {
    lines.push('Failed:');
    for (const { task, starts, error } of failures.slice(0, MAX_FAILURES_SHOWN)) {
      const times = starts === 1 ? '1 start' : `${starts} starts`;
      lines.push(clip(`  ${sanitize(task.name, 80)} (${times}): ${brief(error)}`));
    }
    if (all.failed > MAX_FAILURES_SHOWN) lines.push(`  and ${all.failed - MAX_FAILURES_SHOWN} more`);
    lines.push(`  their output: ${command('logs')} NAME; start them again: ${command('retry')} failed`);
  }
  return lines.join('\n');
}

function stateLines(progress: Progress, command: (name: string) => string): string[] {
  const { manager, pause, nextTime, counts, running } = progress;
  const lines: string[] = [];
  if (pause !== null) {
    const since = formatSince(pause.since);
    const who = pause.by === 'person' ? '' : ' after failures';
    const message = pause.message === '' ? '' : `: ${sanitize(pause.message, 500)}`;
    lines.push(`Paused${who}${since === null ? '' : ` since ${since}`}${message}`);
    lines.push(`  to resume: ${command('resume')}`);
  }
  if (manager !== null) {
    const where = manager.host === hostName() ? '' : ` on ${sanitize(manager.host, 60)}`;
    lines.push(`Its manager is pid ${manager.pid}${where}.`);
  } else if (!isOver(progress) || counts.active > 0) {
    lines.push(
      `No manager is running: results are not written to tables. Start one: ${command('run')}, or exp manager for workers over TCP`,
    );
  }
  // This is what is known by now: a worker that was cut off may still report.
  const without = counts.active - running.length;
  if (without === 1) lines.push('1 task has lost its worker, and will be started again.');
  else if (without > 1) lines.push(`${without} tasks have lost their workers, and will be started again.`);
  if (nextTime !== null && running.length === 0 && counts.pending > 0) {
    lines.push(`The next task waits until ${formatSince(nextTime) ?? 'later'}.`);
  }
  return lines;
}

function table(running: readonly AttemptInfo[], now: number): string[] {
  const own = hostName();
  const rows = running.map(({ taskName, worker, since }) => [
    `${worker.host === own ? '' : `${sanitize(worker.host, 30)} `}${sanitize(worker.name, 30)}`,
    sanitize(taskName, 80),
    worker.gpus.map((gpu) => sanitize(gpu, 12).replace('\u2026', '')).join(' '),
    `since ${formatSince(since) ?? '?'} (${seconds(now - since)})`,
  ]);
  return alignColumns(rows).map((line) => `  ${line}`);
}

/** The first line of an error, which says what happened: the end of the log follows it. */
function brief(error: string | null): string {
  return error === null ? 'failed' : sanitize(error.split('\n')[0], 300);
}

export const COMMAND: Command = {
  usage: '[OPTIONS]',
  about: `Shows the state of an experiment: how many tasks are done, which worker runs which task since when, what has failed, which process writes the tables, and whether it is paused.`,
  groups: GROUPS,
  run: status,
};
