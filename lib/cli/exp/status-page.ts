import {
  type AttemptInfo,
  formatProgress,
  isOver,
  type Overview,
  type TaskRow,
  type WithoutResult,
} from '../../experiments/index.ts';
import { formatSince, hostName, sanitize, shellWords } from '../../platform/index.ts';
import { shorten } from '../waiting-line.ts';
import { counts, seconds } from './frame.ts';

const MOST_FAILURES = 5;
const MOST_WORKERS = 5;

export interface PageOptions {
  /** Columns of the terminal. */
  width: number;
  /** ms since the epoch. */
  now: number;
  /** What commands that are named need, so that they mean the same queue. */
  options: readonly string[];
}

/** How an experiment stands, for people. */
export function statusPage(
  overview: Overview,
  { failures, withoutResult }: { failures: readonly TaskRow[]; withoutResult: readonly WithoutResult[] },
  { width, now, options }: PageOptions,
): string {
  const clip = (line: string) => shorten(line, Math.max(width, 40));
  const command = (name: string) => shellWords(['gpu-owner', 'exp', name, ...options]);
  const { completed, total, counts: all, running } = overview;
  const shown = { counts: { ...all, active: Math.min(all.active, running.length) } };
  const lines = [`${formatProgress(completed, total)}: ${counts(shown)}`, ...standing(overview, command)];
  if (running.length > 0) lines.push('Running:', ...table(running, now).map(clip));
  if (failures.length > 0) {
    lines.push('Failed:');
    for (const { task, starts, error } of failures.slice(0, MOST_FAILURES)) {
      const times = starts === 1 ? '1 start' : `${starts} starts`;
      lines.push(clip(`  ${sanitize(task.name, 80)} (${times}): ${brief(error)}`));
    }
    if (all.failed > MOST_FAILURES) lines.push(`  and ${all.failed - MOST_FAILURES} more`);
    lines.push(`  their output: ${command('logs')} NAME; once more: ${command('retry')} failed`);
  }
  if (withoutResult.length > 0) {
    lines.push('Completed without a result:');
    for (const { worker, host, tasks } of withoutResult.slice(0, MOST_WORKERS)) {
      const where = host === hostName() ? '' : ` on ${sanitize(host, 60)}`;
      lines.push(clip(`  ${tasks} ${tasks === 1 ? 'task' : 'tasks'} by ${sanitize(worker, 60)}${where}`));
    }
    if (withoutResult.length > MOST_WORKERS)
      lines.push(`  and ${withoutResult.length - MOST_WORKERS} more workers`);
    lines.push(
      '  their rows have no results: submit_result must go to the address of the manager, not to localhost',
      `  once the worker is changed, run them again: ${command('retry')} NAME`,
    );
  }
  return lines.join('\n');
}

function standing(overview: Overview, command: (name: string) => string): string[] {
  const { manager, pause, nextTime, counts, running } = overview;
  const lines: string[] = [];
  if (pause !== null) {
    const since = formatSince(pause.since);
    const who = pause.by === 'person' ? '' : ' after failures';
    const message = pause.message === '' ? '' : `: ${sanitize(pause.message, 500)}`;
    lines.push(`Paused${who}${since === null ? '' : ` since ${since}`}${message}`);
    lines.push(`  to go on: ${command('resume')}`);
  }
  if (manager !== null) {
    const where = manager.host === hostName() ? '' : ` on ${sanitize(manager.host, 60)}`;
    lines.push(`Its manager is pid ${manager.pid}${where}.`);
  } else if (!isOver(overview) || counts.active > 0) {
    lines.push(
      `Nobody manages it: tables of results wait. To go on: ${command('run')}, or exp manager for workers over TCP`,
    );
  }
  // As far as can be known by now: somebody has to notice, and a worker that was cut off may still be heard of.
  const without = counts.active - running.length;
  if (without === 1) lines.push('1 task has lost its worker, and is given out again.');
  else if (without > 1) lines.push(`${without} tasks have lost their workers, and are given out again.`);
  if (nextTime !== null && running.length === 0 && counts.pending > 0) {
    lines.push(`The next task waits until ${formatSince(nextTime) ?? 'later'}.`);
  }
  return lines;
}

function table(running: readonly AttemptInfo[], now: number): string[] {
  const own = hostName();
  const rows = running.map(({ taskName, taker, since }) => [
    `${taker.host === own ? '' : `${sanitize(taker.host, 30)} `}${sanitize(taker.worker, 30)}`,
    sanitize(taskName, 80),
    taker.gpus.map((gpu) => sanitize(gpu, 12).replace('\u2026', '')).join(' '),
    `since ${formatSince(since) ?? '?'} (${seconds(now - since)})`,
  ]);
  const widths = [0, 1, 2].map((column) => Math.max(...rows.map((row) => (row[column] as string).length)));
  return rows.map((row) => `  ${row.map((cell, i) => cell.padEnd(widths[i] ?? 0)).join('  ')}`.trimEnd());
}

/** Errors are told with the end of the log; its first line says what happened. */
function brief(error: string | null): string {
  return error === null ? 'failed' : sanitize(error.split('\n')[0], 300);
}
