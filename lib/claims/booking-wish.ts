// What a user wants of a booking, from the words of the command.
import {
  findGid,
  findUid,
  formatMoment,
  groupsOf,
  machineUid,
  oneOf,
  parseDate,
  sanitize,
  usageError,
  userName,
} from '../platform/index.ts';
import { MAX_REPEATS } from './queue/index.ts';

export const PERIODS = ['day', 'week'] as const;

/** When a booking begins again, in ms since 1970. @throws ERR_INVALID_ARGUMENT */
export function repeatsOf(
  { every, until }: { every?: string; until?: string },
  from: number,
  duration: number,
): number[] {
  if (every === undefined && until === undefined) return [];
  if (every === undefined)
    throw usageError('--until is for --every: give how long the booking lasts with --for');
  const days = oneOf(every, PERIODS, '--every') === 'day' ? 1 : 7;
  if (until === undefined)
    throw usageError('--every: until when? Give it with --until; for example: --until 2026-12-31');
  const date = parseDate(until, '--until');
  if (date === null)
    throw usageError(`--until: '${sanitize(until, 60)}' is not a date; use one such as 2026-12-31`);
  const repeats: number[] = [];
  const end = new Date(date).setHours(24);
  if (end <= from)
    throw usageError(
      `--until: that day is over before the booking begins at ${formatMoment(from)}; use a later date`,
    );
  const time = new Date(from);
  for (let last = from; ; last = time.getTime()) {
    time.setDate(time.getDate() + days);
    if (time.getTime() >= end) return repeats;
    if (time.getTime() < last + duration)
      throw usageError(
        `--for: the booking would last longer than until its repeat at ${formatMoment(time.getTime())}`,
      );
    repeats.push(time.getTime());
    if (repeats.length > MAX_REPEATS)
      throw usageError(
        `--until: the booking would be repeated more than ${MAX_REPEATS} times; use an earlier date`,
      );
  }
}

/** The user whom `--user` names; undefined: this one. @throws ERR_INVALID_ARGUMENT */
export function bookedUser(user: string | undefined): number {
  const own = machineUid();
  if (user === undefined) return own;
  const uid = findUid(user);
  if (uid === null) throw usageError(`--user: there is no user ${sanitize(user, 60)} here`);
  if (own !== 0 && uid !== own) throw usageError('--user: only root books for other users; use --group');
  return uid;
}

/** The group that `--group` names. @throws ERR_INVALID_ARGUMENT */
export function bookedGroup(group: string | undefined): { gid: number; name: string } | null {
  if (group === undefined) return null;
  const gid = findGid(group);
  if (gid === null) throw usageError(`--group: there is no group ${sanitize(group, 60)} here`);
  const own = machineUid();
  if (own !== 0 && !groupsOf(own).has(gid))
    throw usageError(
      `--group: ${userName(own)} is no member of ${sanitize(group, 60)}; use a group of yours`,
    );
  return { gid, name: sanitize(group, 60) };
}
