import { checkOptions, ledgerOf } from '../claims/index.ts';
import { loadConfiguration } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import {
  csvLine,
  formatDuration,
  formatSince,
  groupName,
  oneOf,
  parseDuration,
  sanitize,
} from '../platform/index.ts';
import { getGPUs } from '../status/index.ts';
import { KINDS, type Kind, type Report, readLedger, reportOf, type Sum } from '../usage/index.ts';
import type { Command } from './command.ts';
import { askFleet, HOSTS_WITH_JSON, isForHosts } from './hosts.ts';
import { type OptionGroup, type Parsed, rejectOperands, SIMULATE, usage } from './options.ts';
import { alignColumns, print, say } from './output.ts';

const DEFAULT_SINCE = '30d';
/** In 1970 in each time zone. */
const EARLIEST = Date.UTC(1970, 0, 2);

const GROUPS = [
  {
    options: {
      since: {
        value: 'DURATION',
        help: `count what was used since so long ago (default ${DEFAULT_SINCE})`,
        candidates: ['1d', '7d', '30d', '365d'],
      },
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
      ...SIMULATE,
    },
  },
] as const satisfies readonly OptionGroup[];

async function report(parsed: Parsed<typeof GROUPS>): Promise<void> {
  const { values } = parsed;
  rejectOperands(parsed);
  if (values.csv && (values.json || values.hosts !== undefined))
    throw usage(`--csv: it can't go with --${values.json ? 'json' : 'hosts'}; leave one out`);
  const by = oneOf(values.by ?? 'user', KINDS, '--by');
  const sinceMs = parseDuration(values.since ?? DEFAULT_SINCE, '--since');
  if (sinceMs === 0) throw usage('--since: nothing can have been used in no time; use 1d, for example');
  if (isForHosts(values))
    return askFleet('report', parsed, 'report', ({ host, records: [first] }) =>
      first === undefined ? `${host}:\n` : `${host}:\n${page(first)}\n`,
    );
  const made = await makeReport(by, sinceMs);
  if (values.json) print(JSON.stringify(made, null, 2));
  else print(values.csv ? csv(made) : page(made));
}

async function makeReport(by: Kind, sinceMs: number): Promise<Report> {
  const { request } = checkOptions({});
  const path = ledgerOf(request.lockDirectory);
  if (path === null)
    throw new GPUOwnerError(
      'ERR_LOCK_DIRECTORY',
      'this machine has no ledger of usage: its lock directory is lost at a reboot. As root: install -d -m 1777 /var/lib/gpu-owner/usage',
    );
  const until = Date.now();
  const since = Math.max(EARLIEST, until - sinceMs);
  const uid = process.geteuid?.() ?? 0;
  const showsAll = uid === 0 || loadConfiguration().usageCommands === 'everybody';
  const ledger = readLedger(path, since, until);
  if (ledger.problem !== undefined)
    throw new GPUOwnerError('ERR_LOCK_DIRECTORY', `the ledger of usage can't be read: ${ledger.problem}.`);
  return reportOf(ledger, {
    since,
    until,
    by,
    gpus: await countGPUs(request.lockDirectory),
    groupOf: ({ gid }) => (gid === null ? 'unknown' : groupName(gid)),
    showsCommand: (owner) => showsAll || owner === uid,
  });
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
  { title: 'GPU HOURS', of: ({ gpuHours }) => gpuHours.toFixed(1) },
  { title: 'SHARE', of: ({ share }) => (share === null ? '?' : `${(100 * share).toFixed(1)}%`) },
  { title: 'WAITED (p50)', of: ({ waitedSeconds: { p50 } }) => formatDuration(1000 * p50) },
  { title: '(p90)', of: ({ waitedSeconds: { p90 } }) => formatDuration(1000 * p90) },
  { title: 'IDLE', of: ({ idleShare }) => (idleShare === null ? '?' : `${(100 * idleShare).toFixed(0)}%`) },
  { title: 'KWH', of: ({ energyKWh }) => (energyKWh === null ? '?' : energyKWh.toFixed(1)) },
];

function page({ since, by, gpus, rows, longest, skipped }: Report): string {
  const count = gpus === null ? '' : `, ${gpus === 1 ? 'one GPU' : `${gpus} GPUs`}`;
  const lines = [`Since ${formatSince(since)}${count}:`];
  if (rows.length === 0) return `${lines[0]} no lease.${note(skipped)}`;
  const titles = [by.toUpperCase(), ...COLUMNS.map(({ title }) => title)];
  const table = rows.map((row) => [sanitize(row.key, 60), ...COLUMNS.map(({ of }) => of(row))]);
  lines.push(...alignColumns([titles, ...table], (column) => column > 0), '', 'The longest leases:');
  for (const { job, gpus: on, gpuHours, since: began, exit } of longest)
    lines.push(
      `  ${gpuHours.toFixed(1)} GPU hours  ${sanitize(job, 60)} on GPU ${on.join(',')}, since ${formatSince(began)}${exit === null || exit === 0 ? '' : `, exit code ${exit}`}`,
    );
  return lines.join('\n') + note(skipped);
}

function note(skipped: number): string {
  return skipped === 0
    ? ''
    : `\n${skipped === 1 ? 'One line or file was' : `${skipped} lines or files were`} skipped: damaged, or not its user's.`;
}

function csv({ rows, by }: Report): string {
  const lines = rows.map(
    ({ key, leases, gpuHours, share, waitedSeconds: { p50, p90 }, idleShare, energyKWh }) =>
      csvLine(
        [key, leases, gpuHours, share, p50, p90, idleShare, energyKWh].map((each) => String(each ?? '')),
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
