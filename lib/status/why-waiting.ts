// Why a request waits, in one sentence: the page, `top`, `queue` and `jobs` all show this one.
import { describeReached, type GPUStatus, type Waiter } from '../claims/index.ts';
import { type LeaseInfo, label } from '../gpus/index.ts';
import { formatSince, listWords } from '../platform/index.ts';

/** A GPU that a request waits for. `unknown`: the driver wasn't asked, and no lease is in the way. */
export type WantedGPU = Pick<GPUStatus, 'index' | 'instance' | 'uuid' | 'reason' | 'shares' | 'booking'> & {
  state: GPUStatus['state'] | 'unknown';
  lease: LeaseInfo | null;
};

interface Circumstances {
  ahead: RequestsAhead;
  gpus: readonly WantedGPU[];
  /** ISO 8601: when it starts at the latest; null: unknown. */
  latestStart: string | null;
}

type Request = Pick<Waiter, 'uuids' | 'scope' | 'info'>;

/** A user's requests: how many, the first of them, and how many of others came before that. */
interface OfUser {
  count: number;
  first: LeaseInfo;
  at: number;
}

/** The active requests ahead of one, each with the GPUs that it could use: counted once for all that come after them. */
export class RequestsAhead {
  readonly #groups = new Map<string, Omit<Request, 'info'> & { users: Map<string, OfUser> }>();
  #size = 0;

  constructor(requests: Iterable<Request> = []) {
    for (const request of requests) this.add(request);
  }

  add({ uuids, scope, info }: Request): void {
    const key = `${scope} ${uuids}`;
    const group = this.#groups.get(key) ?? { uuids, scope, users: new Map<string, OfUser>() };
    this.#groups.set(key, group);
    const known = group.users.get(info.user);
    if (known === undefined) group.users.set(info.user, { count: 1, first: info, at: this.#size });
    else known.count++;
    this.#size++;
  }

  /** The users whose requests want some of the same GPUs, in the order of these. */
  usersOf({ uuids, scope }: Omit<Request, 'info'>): OfUser[] {
    const wanted = new Set(uuids);
    const found = new Map<string, OfUser>();
    for (const group of this.#groups.values()) {
      if (group.scope !== scope || !group.uuids.some((uuid) => wanted.has(uuid))) continue;
      for (const [user, each] of group.users) {
        const other = found.get(user);
        const first = other === undefined || each.at < other.at ? each : other;
        found.set(user, { ...first, count: each.count + (other?.count ?? 0) });
      }
    }
    return [...found.values()].sort((a, b) => a.at - b.at);
  }
}

const MAX_USERS = 3;
const MAX_NAME_LENGTH = 24;

/** Says what a request waits for, or for whom. */
export function whyWaiting(waiter: Waiter, { ahead, gpus, latestStart }: Circumstances): string {
  const { info, uuids, isSuspended, reached, preempts } = waiter;
  if (isSuspended) return 'suspended: skipped until it resumes';
  if (reached !== null) return `${describeReached(reached, info.user)}, so others go first`;
  const others = ahead.usersOf(waiter);
  const until = latestStart === null ? '' : `; by ${formatSince(latestStart)} at the latest`;
  if (others.length > 0) return `after ${requestsOf(others)}${until}`;
  if (preempts.length > 0) return 'preemptible jobs give way to it';
  const text = obstacles(
    waiter,
    gpus.filter(({ uuid }) => uuids.includes(uuid)),
  );
  return text + until;
}

/** "ben's vit-large", '2 requests of ben and 1 of cara', '7 requests of 4 users' */
function requestsOf(users: readonly OfUser[]): string {
  if (users.length > MAX_USERS) {
    const all = users.reduce((sum, { count }) => sum + count, 0);
    return `${all} requests of ${users.length} users`;
  }
  if (users.every(({ count, first }) => count === 1 && first.name))
    return listWords(users.map(({ first }) => jobOf(first)));
  const counts = users.map(({ count, first: { user } }, i) =>
    i === 0 ? `${count} request${count === 1 ? '' : 's'} of ${user}` : `${count} of ${user}`,
  );
  return listWords(counts);
}

/** "ben's vit-large", or 'ben' */
function jobOf({ user, name }: LeaseInfo): string {
  if (!name) return user;
  return `${user}'s ${name.length > MAX_NAME_LENGTH ? `${name.slice(0, MAX_NAME_LENGTH - 1)}…` : name}`;
}

/** Says what is in the way of a request that is next. */
function obstacles({ count, booked, scope, sets }: Waiter, gpus: readonly WantedGPU[]): string {
  const holdersOf = ({ lease, shares }: WantedGPU): readonly LeaseInfo[] =>
    lease === null ? shares : [(scope === null ? null : lease.nested) ?? lease];
  const isReserved = (gpu: WantedGPU) =>
    booked.includes(gpu.uuid) && gpu.state !== 'busy' && holdersOf(gpu).length === 0;
  const reserved = gpus.filter(isReserved);
  const idle = gpus.filter((gpu) => gpu.state === 'free' || gpu.state === 'unknown' || isReserved(gpu));
  const missing = Math.max(1, count - idle.length + reserved.length);
  if (reserved.length >= missing) return bookedText(reserved);
  const leased = gpus.filter((gpu) => holdersOf(gpu).length > 0);
  const foreign = gpus.filter((gpu) => !idle.includes(gpu) && !leased.includes(gpu));
  const busy = foreign.filter(({ state }) => state === 'busy');
  const holders = new Map(
    leased
      .flatMap((gpu) => [...holdersOf(gpu)])
      .map((info) => [`${info.user} ${info.pid} ${info.since}`, info]),
  );
  const [only] = holders.values();
  if (only !== undefined && holders.size === 1 && foreign.length === 0)
    return `${jobOf(only)} has ${named(leased)}`;
  if (only === undefined) {
    if (busy.length > 0) return `${named(busy)} ${busy.length === 1 ? 'is' : 'are'} used without a claim`;
    const [first] = foreign;
    if (first !== undefined) return `GPU ${label(first)}: ${first.reason ?? first.state}`;
    return gpus.some(({ state }) => state === 'unknown')
      ? 'no lease is in its way: GPUs are used without a claim, or come free'
      : 'starts in a moment';
  }
  const byUser = new Map<string, number>();
  for (const gpu of leased)
    for (const user of new Set(holdersOf(gpu).map((info) => info.user)))
      byUser.set(user, (byUser.get(user) ?? 0) + 1);
  const users = [...byUser]
    .sort(([, a], [, b]) => b - a)
    .map(([user, owned], i) => `${user}${i === 0 ? ' has' : ''} ${owned}`);
  const rest = [...byUser.values()].sort((a, b) => b - a).slice(MAX_USERS - 1);
  const others = rest.reduce((sum, owned) => sum + owned, 0);
  const shown = users.length > MAX_USERS ? [...users.slice(0, MAX_USERS - 1), `others ${others}`] : users;
  const more =
    busy.length === 0 ? '' : `; ${busy.length} ${busy.length === 1 ? 'is' : 'are'} used without a claim`;
  return `needs ${missing === count ? '' : `${missing} more of `}${count === 1 ? 'a GPU' : `${count} ${sets === undefined ? '' : 'connected '}GPUs`}: ${listWords(shown)}${more}`;
}

/** 'GPUs 6,7 are booked by cara from 09:00' */
function bookedText(gpus: readonly WantedGPU[]): string {
  const { booking = null } = gpus[0] ?? {};
  const same = gpus.filter((gpu) => gpu.booking?.id === booking?.id);
  if (booking === null) return 'its GPUs are booked by others';
  const isNow = Date.parse(booking.from) <= Date.now();
  const when = isNow ? `until ${formatSince(booking.until)}` : `from ${formatSince(booking.from)}`;
  return `${named(same)} ${same.length === 1 ? 'is' : 'are'} booked by ${booking.user} ${when}`;
}

const MAX_LABELS = 8;

/** 'GPU 3', 'GPUs 6,7', '12 GPUs' */
function named(gpus: readonly WantedGPU[]): string {
  if (gpus.length > MAX_LABELS) return `${gpus.length} GPUs`;
  return `GPU${gpus.length === 1 ? '' : 's'} ${gpus.map(label).join(',')}`;
}
