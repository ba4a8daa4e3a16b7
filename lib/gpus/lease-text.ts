// Leases and shares in words.
import { formatBytes, formatSince, listWords, MAX_USER_NAME_LENGTH, sanitize } from '../platform/index.ts';
import { isInstance } from './selection.ts';
import {
  type GPU,
  type JudgeContext,
  type LeaseInfo,
  SHARE_UNIT_BYTES,
  type Share,
  type Sharing,
} from './types.ts';

const MAX_PID = 2 ** 22;
/** How many users of shares are named. */
const MAX_USERS = 4;

/** '35 GiB of 79.5 GiB leased in shares by ann and ben' */
export function describeShares(gpu: GPU, { shares, taken, capacity }: Sharing): string {
  const users = [...new Set(shares.map(({ user }) => sanitize(user, MAX_USER_NAME_LENGTH)))];
  const shown = users.slice(0, MAX_USERS);
  if (users.length > shown.length) shown.push(`${users.length - shown.length} more`);
  const all = `${formatUnits(taken)}${capacity === null ? '' : ` of ${formatUnits(capacity)}`}`;
  const whose = shown.length === 0 ? '' : ` by ${listWords(shown)}`;
  return `${all} ${isInstance(gpu) ? 'of the MIG instance ' : ''}leased in shares${whose}`;
}

export function describeLease(lease: LeaseInfo, context: JudgeContext): string {
  if (lease.stranger === true) return 'leased by a process that has written no record';
  const { who, what } = leaseText(lease, context);
  return `leased by ${who}${what}`;
}

function leaseText(lease: LeaseInfo, { now, hostname }: Pick<JudgeContext, 'now' | 'hostname'>) {
  const since = formatSince(lease.since, now);
  const until = formatSince(lease.until, now);
  const idleEnds = formatSince(lease.idleEnds, now);
  const host = sanitize(lease.host, 64);
  const command = sanitize(lease.command, 80);
  const survivors = Number.isSafeInteger(lease.survivors) ? Number(lease.survivors) : 0;
  const note = sanitize(lease.note, 100);
  const details = [
    lease.convention === 'gpu-owner' ? '' : sanitize(lease.convention, 40),
    sanitize(lease.name, 32),
    [isPID(lease.pid) ? `pid ${lease.pid}` : '', host && host !== hostname ? `on ${host}` : '']
      .filter(Boolean)
      .join(' '),
  ]
    .filter(Boolean)
    .join(', ');
  let text = [details, command].filter(Boolean).join(': ');
  if (survivors > 0) {
    text += `${text ? ' ' : ''}has ended, ${survivors} of its processes still ${survivors === 1 ? 'runs' : 'run'}`;
  }
  return {
    who: `${sanitize(lease.user, MAX_USER_NAME_LENGTH) || 'somebody'}${since ? ` since ${since}` : ''}${until ? ` until ${until}` : ''}${lease.preemptible === true ? ', preemptible' : ''}${lease.suspended === true ? ', suspended' : ''}${idleEnds ? `, ended at ${idleEnds} unless used` : ''}`,
    what: `${text ? ` (${text})` : ''}${note ? `; note: ${note}` : ''}`,
  };
}

function isPID(pid: unknown): boolean {
  return Number.isSafeInteger(pid) && Number(pid) > 0 && Number(pid) <= MAX_PID;
}

export function formatUnits(units: number): string {
  return formatBytes(units * SHARE_UNIT_BYTES);
}

/** '25 GiB for ann since 09:12, uses 24.1 GiB (pid 26166: python train.py)' */
export function describeShare(share: Share, context: Pick<JudgeContext, 'now' | 'hostname'>): string {
  const { bytes, usedBytes } = share;
  const use = usedBytes === null ? '' : `, uses ${formatBytes(usedBytes)}`;
  const { who, what } = leaseText(share, context);
  return `${formatBytes(bytes)} for ${who}${use}${what}`;
}
