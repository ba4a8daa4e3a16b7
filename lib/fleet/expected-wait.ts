// When a request would start on a machine, as far as its leases and its queue tell.
import { parseDuration, parseSize, userName } from '../platform/index.ts';
import type { QueueEntry, Readings, Snapshot } from '../shapes/index.ts';

/** The assumed time of a job whose limit isn't known, in ms. */
const USUAL_MS = 3_600_000;
/** The assumed time until a preemptible lease has given way, in ms. */
const GRACE_MS = 10_000;

/** The parts of a request that decide. */
export interface Wanted {
  count: number;
  /** ms; null: no limit */
  lasts: number | null;
  isPreemptible: boolean;
  /** Indexes; null: any GPU. */
  devices: ReadonlySet<number> | null;
  minFreeBytes: number;
  /** A part of a GPU will do. */
  mayShare: boolean;
}

/** @param words options of `submit` or `run`, as `--name=value` */
export function wantedOf(words: readonly string[], count: number): Wanted {
  const end = words.indexOf('--');
  const options = end < 0 ? words : words.slice(0, end);
  const option = (name: string) =>
    options.findLast((word) => word.startsWith(`--${name}=`))?.slice(name.length + 3);
  const [lasts, memory, devices] = [option('for'), option('min-free-memory'), option('devices')];
  return {
    count,
    lasts: lasts === undefined ? null : parseDuration(lasts, '--for'),
    isPreemptible: options.includes('--preemptible'),
    devices: devices === undefined ? null : indexesIn(devices),
    minFreeBytes: memory === undefined ? 0 : parseSize(memory, '--min-free-memory'),
    mayShare: option('memory') !== undefined,
  };
}

/** null: they are named by UUIDs or instances, which only their host knows. */
function indexesIn(devices: string): Set<number> | null {
  const parts = devices.split(',').map((part) => /^\s*(\d{1,4})(?:-(\d{1,4}))?\s*$/.exec(part));
  const indexes = new Set<number>();
  for (const part of parts) {
    if (part === null) return null;
    const [first, last] = [Number(part[1]), Number(part[2] ?? part[1])];
    for (let index = first; index <= last; index++) indexes.add(index);
  }
  return indexes;
}

/** The parts of a snapshot that decide. */
export type Load = {
  gpus: readonly { state: string; until: number | null }[];
  /** Requests in the order in which they are served: how many GPUs each wants. */
  queue: readonly number[];
};

/** The GPUs that would do, free or not. */
export function gpusFor<T extends Pick<Readings, 'index' | 'memory'>>(
  wanted: Wanted,
  gpus: readonly T[],
): T[] {
  return gpus.filter(
    ({ index, memory }) =>
      wanted.devices?.has(index) !== false &&
      (memory.totalBytes ?? Number.POSITIVE_INFINITY) >= wanted.minFreeBytes,
  );
}

/** A machine as far as it decides. */
type Machine = Pick<Snapshot, 'gpus'> & { queue: readonly Pick<QueueEntry, 'class' | 'count'>[] };

/** @param now in ms since 1970, as on that machine, whose user is taken to have the same name there */
export function loadOf({ gpus, queue }: Machine, wanted: Wanted, now: number): Load {
  const user = userName(process.geteuid?.() ?? 0);
  return {
    gpus: gpusFor(wanted, gpus).map(({ state, lease, booking }) => {
      const isBooked =
        booking !== null &&
        booking.user !== user &&
        Date.parse(booking.from) - now < (wanted.lasts ?? Number.POSITIVE_INFINITY);
      if (isBooked && state !== 'unavailable')
        return { state: 'leased', until: Date.parse(booking.until) || null };
      if (lease?.preemptible === true && !wanted.isPreemptible) return { state, until: now + GRACE_MS };
      return { state, until: Date.parse(lease?.until ?? '') || null };
    }),
    // Preemptible requests come after all others.
    queue: queue
      .filter((each) => wanted.isPreemptible || each.class !== 'preemptible')
      .map(({ count }) => count),
  };
}

/**
 * How long a request waits that joins the queue of this machine, in ms, if those ahead keep their order; Infinity: it has too few GPUs. Only
 * comparisons mean something: where no limit is known, an hour stands for it.
 */
export function expectedWait({ gpus, queue }: Load, count: number, now: number): number {
  const isFreeIn = (until: number | null) => (until === null ? USUAL_MS : Math.max(0, until - now));
  const free = gpus
    .filter(({ state }) => state !== 'unavailable')
    .map(({ state, until }) => (state === 'free' ? 0 : isFreeIn(until)));
  for (const ahead of queue) {
    free.sort((a, b) => a - b);
    const start = free[ahead - 1];
    if (start !== undefined) free.fill(start + USUAL_MS, 0, ahead);
  }
  return free.sort((a, b) => a - b)[count - 1] ?? Number.POSITIVE_INFINITY;
}

/** Hosts, the one first where a request is expected to start first. Ties are decided by chance. */
export function byExpectedWait<T>(known: readonly { host: T; snapshot: Machine }[], wanted: Wanted): T[] {
  const now = Date.now();
  return known
    .map(({ host, snapshot }) => ({
      host,
      wait: expectedWait(loadOf(snapshot, wanted, now), wanted.count, now),
      chance: Math.random(),
    }))
    .sort((a, b) => a.wait - b.wait || a.chance - b.chance)
    .map(({ host }) => host);
}
