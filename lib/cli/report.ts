import {
  findUid,
  formatDuration,
  formatSince,
  listWords,
  oneOf,
  sanitize,
  usageError,
  userName,
} from '../platform/index.ts';
import { makeReport, reportCSV, reportTime } from '../status/index.ts';
import { KINDS, type Report, type Sum } from '../usage/index.ts';
import type { Command } from './command.ts';
import { type OptionGroup, type Parsed, rejectOperands } from './command-line.ts';
import { askFleet, HOSTS_WITH_JSON, isForHosts } from './hosts.ts';
import { alignColumns, say, show } from './output.ts';

/** A report that ends less long ago is one until now, in ms. */
const PRESENT_MS = 60_000;

const GROUPS = [
  {
    options: {
      since: {
        value: 'TIME',
        help: `count use since then: a duration ago (default 30d), or a date (2026-10-01)`,
        candidates: ['1d', '7d', '30d', '365d'],
      },
      until: {
        value: 'TIME',
        help: 'count what was used until then (2026-11-01: until that day begins; default now)',
      },
      month: { value: 'MONTH', help: 'count what was used in this month (2026-10)' },
      user: { value: 'USER', help: 'count only what this user used; a name or a uid' },
      by: {
        value: 'KIND',
        help: `print a row for each ${KINDS.join(', ')} (default user)`,
        candidates: KINDS,
      },
      csv: { help: 'print CSV with a header' },
      json: {
        help: 'print { since, until, by, gpus, rows: [{ key, leases, gpuHours, share, waitedSeconds: { p50, p90 }, idleShare, energyKWh }], longest, skipped }; null is unknown',
      },
      ...HOSTS_WITH_JSON,
    },
  },
] as const satisfies readonly OptionGroup[];

async function report(parsed: Parsed<typeof GROUPS>): Promise<void> {
  const { values } = parsed;
  rejectOperands(parsed);
  if (values.csv && (values.json || values.hosts !== undefined))
    throw usageError(`--csv: it can't go with --${values.json ? 'json' : 'hosts'}; leave one out`);
  const by = oneOf(values.by ?? 'user', KINDS, '--by');
  const time = reportTime(values, Date.now());
  const user = values.user === undefined ? null : findUid(values.user);
  if (isForHosts(values))
    return askFleet('report', parsed, 'report', ({ host, records: [first] }) =>
      first === undefined ? `${host}:\n` : `${host}:\n${page(first)}\n`,
    );
  if (values.user !== undefined && user === null)
    throw usageError(`--user: there is no user ${sanitize(values.user, 60)} here; give a name or a uid`);
  const { made, skipped, problem } = await makeReport(by, time, user);
  if (problem !== null) say(`shares are unknown: ${problem}`);
  show(values.json ? made : values.csv ? reportCSV(made) : page(made, skipped));
}

const COLUMNS: readonly { title: string; of: (row: Sum) => string }[] = [
  { title: 'LEASES', of: ({ leases }) => String(leases) },
  { title: 'GPU HOURS', of: ({ gpuHours }) => gpuHours.toFixed(2) },
  { title: 'SHARE', of: ({ share }) => (share === null ? '?' : `${(100 * share).toFixed(1)}%`) },
  { title: 'WAITED (p50)', of: ({ waitedSeconds: { p50 } }) => formatDuration(1000 * p50) },
  { title: '(p90)', of: ({ waitedSeconds: { p90 } }) => formatDuration(1000 * p90) },
  { title: 'IDLE', of: ({ idleShare }) => (idleShare === null ? '?' : `${(100 * idleShare).toFixed(0)}%`) },
  { title: 'KWH', of: ({ energyKWh }) => (energyKWh === null ? '?' : energyKWh.toFixed(1)) },
];

/** How many numbers of GPUs are named. */
const MAX_NAMED = 16;

function page(
  { since, until, by, gpus, rows, longest, skipped: all }: Report,
  skipped: ReadonlyMap<number, number> | null = null,
): string {
  const count = gpus === null ? '' : `, ${gpus === 1 ? 'one GPU' : `${gpus} GPUs`}`;
  const isOver = Date.now() - Date.parse(until) > PRESENT_MS;
  const end = isOver ? ` until ${formatSince(until)}` : '';
  const lines = [`Since ${formatSince(since)}${end}${count}:`];
  if (rows.length === 0) return `${lines[0]} no lease.${note(all, skipped)}`;
  const titles = [by.toUpperCase(), ...COLUMNS.map(({ title }) => title)];
  const table = rows.map((row) => [sanitize(row.key, 60), ...COLUMNS.map(({ of }) => of(row))]);
  lines.push(...alignColumns([titles, ...table], (column) => column > 0), '', 'The longest leases:');
  for (const { job, gpus: on, gpuHours, since: began, exit } of longest)
    lines.push(
      `  ${gpuHours.toFixed(2)} GPU hours  ${sanitize(job, 60)} on GPU ${named(on)}, since ${formatSince(began)}${exit === null || exit === 0 ? '' : `, exit code ${exit}`}`,
    );
  return lines.join('\n') + note(all, skipped);
}

function named(gpus: readonly number[]): string {
  const more = gpus.length - MAX_NAMED;
  return more > 0 ? `${gpus.slice(0, MAX_NAMED).join()} and ${more} more` : gpus.join();
}

/** @param skipped by user; null: another machine doesn't tell */
function note(all: number, skipped: ReadonlyMap<number, number> | null): string {
  if (all === 0) return '';
  const most = [...(skipped ?? [])].sort((a, b) => b[1] - a[1]);
  const named = most.slice(0, MAX_NAMED).map(([uid, count]) => `${count} of ${userName(uid)}`);
  const others = most.length > MAX_NAMED ? ['those of others'] : [];
  const whose = named.length === 0 ? all : listWords([...named, ...others]);
  return `\nLines or files that were skipped: ${whose}. They are damaged, not their user's, too large, or say what can't be.`;
}

export const COMMAND: Command = {
  usage: '[OPTIONS]',
  about: `Shows who used the GPUs of this machine for how long, by the ledger in which each lease has a line. Everybody sees the sums of all users; programs and names of others' jobs only where the machine's configuration says so.`,
  groups: GROUPS,
  run: report,
};
