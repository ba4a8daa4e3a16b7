import {
  activeWaiters,
  type ClaimOptions,
  checkConventions,
  checkDirectory,
  type DiscoveryRequest,
  describeBooking,
  formatShare,
  type GPUStatus,
  holdingsWhenAsked,
  LockDirectory,
  latestStarts,
  readWaiters,
  reservedFor,
  showKeptSets,
  type Waiter,
  WaitQueue,
  whyHere,
  withoutGPUs,
} from '../claims/index.ts';
import { loadConfiguration, normalizeCriteria, refuseNoObject } from '../config/index.ts';
import { label } from '../gpus/index.ts';
import type { QueueEntry } from '../shapes/index.ts';
import { discover, observeGPUs } from './discovery.ts';
import { RequestsAhead, whyWaiting } from './why-waiting.ts';

/** Where to look, and whose locks count. */
export type QueueOptions = Pick<ClaimOptions, 'lockDirectory' | 'conventions'>;

/** The wait queue of this machine, in order. Takes nothing. @throws as `getGPUs` */
export function getQueue(options: QueueOptions = {}): Promise<QueueEntry[]> {
  return queueWith(() => true, options);
}

/** As {@link getQueue}, where one of the requests is concerned; otherwise [], without a look at the driver. */
export async function queueWith(
  isConcerned: (waiter: Waiter) => boolean,
  options: QueueOptions = {},
): Promise<QueueEntry[]> {
  refuseNoObject(options);
  const configuration = loadConfiguration();
  const lockDirectory = checkDirectory(options.lockDirectory, 'lockDirectory');
  const directory = LockDirectory.find(lockDirectory, configuration);
  const holdings = holdingsWhenAsked(directory);
  const waiters = [...readWaiters(directory, null, holdings)];
  if (!waiters.some(isConcerned)) return [];
  const request = {
    criteria: normalizeCriteria({}),
    lockDirectory,
    configuredDirectory: configuration.lockDirectory,
    conventions: checkConventions(options.conventions, configuration, 'conventions'),
    count: 1,
  };
  return describeQueue(waiters, await discover(request, 'machine'));
}

const MINUTE_MS = 60_000;

/** @param waiters from the first on */
function describeQueue(all: readonly Waiter[], gpus: readonly GPUStatus[]): QueueEntry[] {
  const waiters = showKeptSets(all, gpus);
  // GPUs that are booked by others don't count for what is foretold: the booking may not be over by then.
  const unbooked = waiters.map((waiter) => {
    const others = gpus.filter(({ booking }) => booking !== null && booking.user !== waiter.info.user);
    return withoutGPUs(
      waiter,
      others.map(({ uuid }) => uuid),
    );
  });
  const starts = latestStarts(unbooked, gpus, Date.now());
  const active: Waiter[] = [];
  const ahead = new RequestsAhead();
  const positions = new Map(waiters.map(({ slot }, i) => [slot, i + 1]));
  return waiters.map((waiter, i) => {
    const reserved = reservedFor(waiter.uuids, waiter.scope, active);
    const waitingFor = gpus
      .filter(({ uuid }) => all[i]?.uuids.includes(uuid))
      .map(({ index, instance, uuid, reason }) => {
        const before = reserved.get(uuid);
        const position = before === undefined ? 0 : (positions.get(before.slot) ?? 0);
        const free = position > 0 ? `free, but position ${position} in the wait queue comes first` : 'free';
        return {
          index,
          ...(instance === null ? {} : { instance }),
          uuid,
          reason: reason ?? free,
        };
      });
    const { user, uid, pid, host, command, since, job = null, name = null, note = null } = waiter.info;
    const { count, memory, isSuspended: stopped } = waiter;
    const { waitUntil } = waiter;
    const latest = stopped ? Number.NaN : (starts[i] ?? Number.NaN);
    // A display of less than this must not promise more.
    const start = new Date(
      latest <= (waitUntil ?? latest) ? Math.ceil(latest / MINUTE_MS) * MINUTE_MS : Number.NaN,
    );
    const latestStart = Number.isNaN(start.getTime()) ? null : start.toISOString();
    const entry = {
      position: i + 1,
      count,
      memory: memory === undefined ? null : formatShare(memory),
      class: waiter.tag?.class ?? 'normal',
      user,
      uid,
      pid,
      host,
      command,
      since,
      job,
      name,
      note,
      stopped,
      latestStart,
      waitUntil: waitUntil === null ? null : new Date(waitUntil).toISOString(),
      why: whyWaiting(waiter, { ahead, gpus, latestStart }),
      details: [
        waiter.isAboveLimit ? null : whyHere(i, waiters),
        bookedText(waiter, gpus),
        setsText(waiter, gpus),
      ].filter((text) => text !== null),
      waitingFor,
    };
    for (const each of activeWaiters([waiter])) {
      active.push(each);
      ahead.add(each);
    }
    return entry;
  });
}

/** The GPUs that a request can't use now, as they are booked by others; null: none. */
function bookedText({ booked }: Waiter, gpus: readonly GPUStatus[]): string | null {
  const found = gpus.filter(({ uuid }) => booked.includes(uuid));
  const texts = new Map<string, string[]>();
  for (const gpu of found) {
    const text = gpu.booking === null ? 'booked by others' : describeBooking(gpu.booking);
    texts.set(text, [...(texts.get(text) ?? []), label(gpu)]);
  }
  const parts = [...texts].map(([text, labels]) => `GPU ${labels.join(',')} is ${text}`);
  return parts.length === 0 ? null : parts.join(', ');
}

const MAX_SETS = 4;

/** The sets of connected GPUs that would do, and the one that is kept; null: any GPUs will do. */
function setsText({ sets, uuids: kept }: Waiter, gpus: readonly GPUStatus[]): string | null {
  if (sets === undefined) return null;
  const labels = (set: readonly string[]) =>
    gpus
      .filter(({ uuid }) => set.includes(uuid))
      .map(label)
      .join();
  const shown = sets.slice(0, MAX_SETS).map(labels);
  if (sets.length > shown.length) shown.push(`one of ${sets.length - shown.length} other sets`);
  return `connected GPUs are ${shown.join(' or ')}; those of ${labels(kept)} are kept for it`;
}

/** A machine at one moment. */
export interface Observation {
  gpus: GPUStatus[];
  /** The processes that compute without a claim: their PIDs by the GPU's UUID. */
  intruders: ReadonlyMap<string, readonly number[]>;
  /** The first requests in the wait queue, in order. */
  queue: QueueEntry[];
  /** How many requests wait. */
  waiting: number;
}

/** All GPUs and the wait queue, with one look at the driver. @param maxEntries upper bound on the requests read @throws as {@link getGPUs} */
export async function observe(request: DiscoveryRequest, maxEntries: number): Promise<Observation> {
  const { gpus, intruders, directory } = await observeGPUs(request, 'machine');
  const queue = directory === null ? null : WaitQueue.open(directory);
  if (queue === null) return { gpus, intruders, queue: [], waiting: 0 };
  try {
    const slots = queue.order();
    const holdings = holdingsWhenAsked(directory);
    const waiters = [...queue.waiters(slots.slice(0, maxEntries), holdings)];
    const unread = Math.max(0, slots.length - maxEntries);
    const described = describeQueue(waiters, gpus);
    return { gpus, intruders, queue: described, waiting: waiters.length + unread };
  } finally {
    queue.close();
  }
}
