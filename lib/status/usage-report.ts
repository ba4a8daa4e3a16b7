// Reports from the ledger of usage, as `gpu-owner report` prints them.
import { checkOptions, ledgerOf } from '../claims/index.ts';
import { loadConfiguration } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import {
  csvLine,
  groupName,
  groupsOf,
  parseDate,
  parseDuration,
  parseMoment,
  parseMonth,
  usageError,
} from '../platform/index.ts';
import { type Kind, type Report, readLedger, reportOf, type Use } from '../usage/index.ts';
import { getGPUs } from './discovery.ts';

const DEFAULT_SINCE = '30d';
/** In 1970 in each time zone. */
const EARLIEST = Date.UTC(1970, 0, 2);

/** The time that a report is about. @throws ERR_INVALID_ARGUMENT */
export function reportTime(
  { since = DEFAULT_SINCE, until, month }: Partial<Record<'since' | 'until' | 'month', string>>,
  now: number,
): { since: number; until: number } {
  if (month !== undefined) {
    if (since !== DEFAULT_SINCE || until !== undefined)
      throw usageError('--month contradicts --since and --until; leave it out, or them');
    const { from, until: end } = parseMonth(month, '--month');
    if (from > now) throw usageError(`--month: ${month} has not begun; use a month that has`);
    return { since: Math.max(EARLIEST, from), until: Math.min(end, now) };
  }
  const end = until === undefined ? now : momentBefore(until, '--until', now);
  const begin = momentBefore(since, '--since', now);
  if (begin > now) throw usageError('--since: that is a time to come; use 1d, or a day that has begun');
  if (begin >= end)
    throw usageError(
      `--since: nothing can have been used in no time; use ${until === undefined ? '1d, for example' : 'a time before --until'}`,
    );
  return { since: Math.max(EARLIEST, begin), until: Math.min(end, now) };
}

/** A duration before now, a date, or a moment as `parseMoment` has it. */
function momentBefore(value: string, option: string, now: number): number {
  const date = parseDate(value, option);
  if (date !== null) return date;
  return /[-:]|now/i.test(value) ? parseMoment(value, option, now) : now - parseDuration(value, option);
}

/** A report from the ledger of this machine. `problem`: why shares are unknown. @throws ERR_LOCK_DIRECTORY, ERR_CONFIGURATION */
export async function makeReport(
  by: Kind,
  { since, until }: { since: number; until: number },
  user: number | null,
): Promise<{ made: Report; skipped: ReadonlyMap<number, number>; problem: string | null }> {
  const { request } = checkOptions({});
  const path = ledgerOf(request.lockDirectory);
  if (path === null)
    throw new GPUOwnerError(
      'ERR_LOCK_DIRECTORY',
      'this machine has no ledger of usage: its lock directory is lost at a reboot. As root: install -d -m 1777 /var/lib/gpu-owner/usage',
    );
  const uid = process.geteuid?.() ?? 0;
  const showsAll = uid === 0 || loadConfiguration().usageCommands === 'everybody';
  let gpus: number | null = null;
  let problem: string | null = null;
  try {
    const all = await getGPUs({ lockDirectory: request.lockDirectory });
    gpus = new Set(all.map(({ index }) => index)).size || null;
  } catch (error) {
    if (!(error instanceof GPUOwnerError)) throw error;
    problem = error.message;
  }
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
  return { made, skipped: ledger.skipped, problem };
}

/** The group of a lease: a user who isn't in the group that the line says counts for the user's first one. */
function groupOf({ uid, gid }: Use): string {
  const groups = groupsOf(uid);
  const [first] = groups;
  const counted = gid !== null && groups.has(gid) ? gid : first;
  return counted === undefined || counted < 0 ? 'unknown' : groupName(counted);
}

/** A report as CSV, with a header. */
export function reportCSV({ rows, by }: Report): string {
  const lines = rows.map(
    ({ key, leases, gpuHours, share, waitedSeconds: { p50, p90 }, idleShare, energyKWh }) =>
      csvLine(
        [key, leases, gpuHours.toFixed(2), share?.toFixed(4), p50, p90, idleShare, energyKWh].map((each) =>
          String(each ?? ''),
        ),
      ),
  );
  return [
    `${by},leases,gpu_hours,share,waited_seconds_p50,waited_seconds_p90,idle_share,energy_kwh`,
    ...lines,
  ].join('\n');
}
