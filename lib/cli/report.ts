import { checkOptions, ledgerOf } from '../claims/index.ts';
import { loadConfiguration } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import {
  csvLine,
  findUid,
  formatDuration,
  formatSince,
  groupName,
  groupsOf,
  listWords,
  oneOf,
  parseDate,
  parseDuration,
  parseMoment,
  parseMonth,
  sanitize,
  userName,
} from '../platform/index.ts';
import { getGPUs } from '../status/index.ts';
import { KINDS, type Kind, type Report, readLedger, reportOf, type Sum, type Use } from '../usage/index.ts';
import type { Command } from './command.ts';
import { askFleet, HOSTS_WITH_JSON, isForHosts } from './hosts.ts';
import { type OptionGroup, type Parsed, rejectOperands, usage } from './options.ts';
import { alignColumns, print, say } from './output.ts';

const DEFAULT_SINCE = '30d';
/** A report that ends less long ago is one until now, in ms. */
const PRESENT_MS = 60_000;
/** In 1970 in each time zone. */
const EARLIEST = Date.UTC(1970, 0, 2);

const GROUPS = [
  {
    options: {
      since: {
        value: 'TIME',
        help: `count use since then: a duration ago (default ${DEFAULT_SINCE}), or a date (2026-10-01)`,
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
    throw usage(`--csv: it can't go with --${values.json ? 'json' : 'hosts'}; leave one out`);
  const by = oneOf(values.by ?? 'user', KINDS, '--by');
  const time = timeOf(values, Date.now());
  const user = values.user === undefined ? null : findUid(values.user);
  if (isForHosts(values))
    return askFleet('report', parsed, 'report', ({ host, records: [first] }) =>
      first === undefined ? `${host}:\n` : `${host}:\n${page(first)}\n`,
    );
  if (values.user !== undefined && user === null)
    throw usage(`--user: there is no user ${sanitize(values.user, 60)} here; give a name or a uid`);
  const { made, skipped } = await makeReport(by, time, user);
  if (values.json) print(JSON.stringify(made, null, 2));
  else print(values.csv ? csv(made) : page(made, skipped));
}

/** The time that a report is about. @throws ERR_INVALID_ARGUMENT */
function timeOf(
  { since = DEFAULT_SINCE, until, month }: Partial<Record<'since' | 'until' | 'month', string>>,
  now: number,
): { since: number; until: number } {
  if (month !== undefined) {
    if (since !== DEFAULT_SINCE || until !== undefined)
      throw usage('--month contradicts --since and --until; leave it out, or them');
    const { from, until: end } = parseMonth(month, '--month');
    if (from > now) throw usage(`--month: ${month} has not begun; use a month that has`);
    return { since: Math.max(EARLIEST, from), until: Math.min(end, now) };
  }
  const end = until === undefined ? now : momentOf(until, '--until', now);
  const begin = momentOf(since, '--since', now);
  if (begin > now) throw usage('--since: that is a time to come; use 1d, or a day that has begun');
  if (begin >= end)
    throw usage(
      `--since: nothing can have been used in no time; use ${until === undefined ? '1d, for example' : 'a time before --until'}`,
    );
  return { since: Math.max(EARLIEST, begin), until: Math.min(end, now) };
}

/** So long ago, a date, or a moment as `parseMoment` has it. */
function momentOf(value: string, option: string, now: number): number {
  const date = parseDate(value, option);
  if (date !== null) return date;
  return /[-:]|now/i.test(value) ? parseMoment(value, option, now) : now - parseDuration(value, option);
}

async function makeReport(
  by: Kind,
  { since, until }: { since: number; until: number },
  user: number | null,
): Promise<{ made: Report; skipped: ReadonlyMap<number, number> }> {
  const { request } = checkOptions({});
  const path = ledgerOf(request.lockDirectory);
  if (path === null)
    throw new GPUOwnerError(
      'ERR_LOCK_DIRECTORY',
      'this machine has no ledger of usage: its lock directory is lost at a reboot. As root: install -d -m 1777 /var/lib/gpu-owner/usage',
    );
  const uid = process.geteuid?.() ?? 0;
  const showsAll = uid === 0 || loadConfiguration().usageCommands === 'everybody';
  const gpus = await countGPUs(request.lockDirectory);
  const ledger = readLedger(path, since, gpus, user);
  if (ledger.problem !== undefined)
    throw new GPUOwnerError('ERR_LOCK_DIRECTORY', `the ledger of usage can't be read: ${ledger.problem}.`);
  const made = reportOf(ledger, {
    since,
    until,
    by,
    gpus,
    groupOf,
    showsCommand: (owner) => showsAll || owner === uid,
  });
  return { made, skipped: ledger.skipped };
}

/** The group of a lease: a user who isn't in the group that the line says counts for the user's first one. */
function groupOf({ uid, gid }: Use): string {
  const groups = groupsOf(uid);
  const [first] = groups;
  const counted = gid !== null && groups.has(gid) ? gid : first;
  return counted === undefined || counted < 0 ? 'unknown' : groupName(counted);
}

/** How many GPUs the machine has; null: the driver doesn't tell now. */
async function countGPUs(lockDirectory: string | undefined): Promise<number | null> {
  try {
    const gpus = await getGPUs({ lockDirectory });
    return new Set(gpus.map(({ index }) => index)).size || null;
  } catch (error) {
    if (!(error instanceof GPUOwnerError)) throw error;
    say(`shares are unknown: ${error.message}`);
    return null;
  }
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

function csv({ rows, by }: Report): string {
  const lines = rows.map(
    ({ key, leases, gpuHours, share, waitedSeconds: { p50, p90 }, idleShare, energyKWh }) =>
      csvLine(
        [key, leases, gpuHours.toFixed(2), share, p50, p90, idleShare, energyKWh].map((each) =>
          String(each ?? ''),
        ),
      ),
  );
  return [
    `${by},leases,gpu_hours,share,waited_seconds_p50,waited_seconds_p90,idle_share,energy_kwh`,
    ...lines,
  ].join('\n');
}

export const COMMAND: Command = {
  usage: '[OPTIONS]',
  about: `Shows who used the GPUs of this machine for how long, by the ledger in which each lease has a line. Everybody sees the sums of all users; programs and names of others' jobs only where the machine's configuration says so.`,
  groups: GROUPS,
  run: report,
};
