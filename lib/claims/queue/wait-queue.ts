import type { LeaseInfo } from '../../gpus/index.ts';
import { native } from '../../native.ts';
import { bootId, now, readBlock, schema, warnOnce } from '../../platform/index.ts';
import { decodeRecord, type LockDirectory, leaseInfo, MAX_EPOCHS, RECORD_SIZE } from '../locks/index.ts';
import {
  bookingInTheWay,
  type GpuRequest,
  inOrder,
  type Place,
  parseTag,
  type ShareSize,
  type Tag,
  type TogetherLimit,
} from '../rules/index.ts';
import { bookedRequest, bookingsWhenAsked } from './booking-files.ts';
import { holdingsWhenAsked, type ReachedLimit, reachedLimit } from './holdings.ts';
import {
  blockOffset,
  describeDamaged,
  HEARTBEAT_BYTES,
  HEARTBEAT_TIMEOUT_MS,
  heartbeatOffset,
  readStamp,
  readTag,
  WAIT_QUEUE_FILE,
} from './queue-file.ts';

/** A waiter, as far as its record says. */
export interface Waiter extends GpuRequest {
  info: LeaseInfo;
  /** How many GPUs that is, where MIG instances and shares count by their part. */
  size: number;
  /** How long the command that it waits for may run; null: for ever. */
  limitMs: number | null;
  /** When it stops waiting, in ms since 1970; null: never. */
  waitUntil: number | null;
  /** The epochs of leases that are to give way to it. */
  preempts: readonly number[];
  /** Hasn't sent a heartbeat for some seconds, and is stopped or should have: it is skipped. */
  isSuspended: boolean;
  /** Must start Node.js before it can take anything. */
  isIdle: boolean;
  /** The waiter's place in the order; null: the record is damaged. */
  tag: Tag | null;
  /** How many GPUs its user may have at a time, where that is limited; null: no limit. */
  most: number | null;
  /** How many the user's groups may have together. */
  together: readonly TogetherLimit[];
  /** Waits for GPUs of its user, or of a group of the user: it holds up no other request. */
  isAboveLimit: boolean;
  /** That limit; null: none. */
  reached: ReachedLimit | null;
  /** The GPUs that it can't use now, as they are booked by others. */
  booked: readonly string[];
}

interface KnownAhead {
  stamp: string;
  places: readonly Place[];
}

/** The requests ahead of this process's own slots, so that the whole queue is only read when its order has changed. */
const knownAhead = new Map<string, KnownAhead>();
const MAX_KNOWN = 64;

/** For one block at a time: a new buffer for each of a thousand takes longer than reading it. */
const blockBuffer = Buffer.alloc(RECORD_SIZE);

export function rememberAhead(
  { path }: LockDirectory,
  slot: number,
  stamp: string,
  places: readonly Place[],
): void {
  if (knownAhead.size >= MAX_KNOWN) knownAhead.clear();
  knownAhead.set(`${path} ${slot}`, { stamp, places });
}

export function placesBefore(slot: number, places: readonly Place[]): Place[] {
  const order = inOrder(places);
  const own = order.indexOf(slot);
  const bySlot = new Map(places.map((place) => [place.slot, place]));
  return (own < 0 ? order : order.slice(0, own)).flatMap((each) => bySlot.get(each) ?? []);
}

const SHARE_SIZE: schema.Check<ShareSize> = (value, path) => {
  const { bytes, percent } = schema.record({
    bytes: schema.or(schema.amount(), null),
    percent: schema.or(schema.amount(100), null),
  })(value, path);
  return bytes === null ? { percent: percent ?? 100 } : { bytes };
};
const TIME = schema.or(schema.amount(8.64e15, Number.MIN_VALUE), null);
/** There are no more sets of connected GPUs, nor GPUs in one. */
const MAX_MEMBERS = 1_024;
/** A user is in no more groups that have a limit. */
const MAX_GROUPS = 16;
const REQUEST = schema.record({
  place: schema.whole(),
  boot: schema.text,
  count: schema.whole(Number.MAX_SAFE_INTEGER, 1),
  size: schema.or(schema.amount(), undefined),
  memory: schema.or(SHARE_SIZE, undefined),
  uuids: schema.validOf(schema.text),
  sets: schema.or(
    schema.listOf(schema.listOf(schema.whole(MAX_MEMBERS), MAX_MEMBERS), MAX_MEMBERS),
    undefined,
  ),
  scope: schema.or(schema.text, null),
  limitMs: TIME,
  waitUntil: TIME,
  order: schema.or(schema.text, null),
  most: schema.or(schema.amount(), null),
  together: schema.or(
    schema.listOf(
      schema.record({ group: schema.text, gid: schema.whole(2 ** 32), most: schema.amount() }),
      MAX_GROUPS,
    ),
    [],
  ),
  preempts: schema.or(schema.validOf(schema.whole(MAX_EPOCHS)), []),
});

/** The wait queue of a machine, for readers. Takes nothing. */
export class WaitQueue {
  readonly #directory: LockDirectory;
  readonly #descriptor: number;

  private constructor(directory: LockDirectory, descriptor: number) {
    this.#directory = directory;
    this.#descriptor = descriptor;
  }

  /** null: no process has ever waited here. The caller closes it. */
  static open(directory: LockDirectory): WaitQueue | null {
    const descriptor = directory.openForProbe(WAIT_QUEUE_FILE);
    return descriptor < 0 ? null : new WaitQueue(directory, descriptor);
  }

  /** The waiters in these slots, read one after the other as far as the caller goes. */
  *waiters(
    slots: readonly number[],
    holdings = holdingsWhenAsked(this.#directory),
    bookings = bookingsWhenAsked(this.#directory),
  ): Generator<Waiter> {
    for (const slot of slots) {
      const waiter = this.waiter(slot, holdings, bookings);
      if (waiter !== null) yield waiter;
    }
  }

  /** The slots that are taken, by number, each with its tag; none if other programs have locked too many for the queue to be usable. */
  places(): Place[] {
    const slots = native().queueSlots(this.#descriptor, 0, 0);
    if (slots === null) warnOnce(describeDamaged(this.#directory));
    return (slots ?? []).map((slot) => ({ slot, tag: this.tag(slot) }));
  }

  /** The slots that are taken, in the order in which their requests are served. */
  order(): number[] {
    return inOrder(this.places());
  }

  /** The slots that are served before this one. null: all. */
  ahead(slot: number | null): number[] {
    if (slot === null) return this.order();
    const stamp = readStamp(this.#descriptor);
    const known = knownAhead.get(`${this.#directory.path} ${slot}`);
    const isKnown = known !== undefined && known.stamp === stamp;
    const places = isKnown ? this.#stillThere(known.places) : placesBefore(slot, this.places());
    rememberAhead(this.#directory, slot, stamp, places);
    return places.map((place) => place.slot);
  }

  /** The places that still belong to the same requests. */
  #stillThere(places: readonly Place[]): readonly Place[] {
    if (places.length === 0) return places;
    const last = Math.max(...places.map(({ slot }) => slot));
    const taken = new Set(native().queueSlots(this.#descriptor, 0, last + 1));
    return places.filter(({ slot, tag }) => taken.has(slot) && this.tag(slot)?.joined === tag?.joined);
  }

  /** The tag of the request in a slot; null: it has none. */
  tag(slot: number): Tag | null {
    return readTag(this.#descriptor, slot);
  }

  /** Whether other programs have locked too many slots for a waiter to join the queue. */
  get isDamaged(): boolean {
    return native().queueSlots(this.#descriptor, 0, 0) === null;
  }

  get descriptor(): number {
    return this.#descriptor;
  }

  close(): void {
    native().fileClose(this.#descriptor);
  }

  /** The waiter in a slot; null: there is no readable record, so no claim can stand back for it. */
  waiter(
    slot: number,
    holdings = holdingsWhenAsked(this.#directory),
    bookings = bookingsWhenAsked(this.#directory),
  ): Waiter | null {
    const block = readBlock(this.#descriptor, RECORD_SIZE, blockOffset(slot), blockBuffer);
    const record = decodeRecord(block.subarray(0, RECORD_SIZE - HEARTBEAT_BYTES));
    const request = schema.readAs(REQUEST, record);
    if (request === null || request.place !== slot || request.boot !== bootId()) return null;
    const {
      count,
      size = count,
      memory,
      uuids,
      sets,
      scope,
      limitMs,
      waitUntil,
      order,
      most,
      together,
      preempts,
    } = request;
    const heartbeat = block.toString('latin1', RECORD_SIZE - HEARTBEAT_BYTES);
    // A heartbeat may count for longer, but not that of a process which is stopped.
    const isLate = !(now() - Number.parseInt(heartbeat, 10) < HEARTBEAT_TIMEOUT_MS);
    const tag = order === null ? null : parseTag(order);
    const info = leaseInfo(record, isLate);
    const user = bookedRequest(tag?.uid ?? info.uid ?? -1, tag?.class ?? 'normal', limitMs);
    const at = Date.now();
    const isBooked = (uuid: string) => bookingInTheWay(uuid, user, bookings(), at) !== null;
    const owner = tag?.uid ?? null;
    const reached = owner === null ? null : reachedLimit({ uid: owner, size, most, together }, holdings);
    return {
      slot,
      count,
      size,
      ...(memory === undefined ? {} : { memory }),
      uuids,
      ...(sets === undefined ? {} : { sets: namedSets(sets, uuids, count) }),
      scope,
      info,
      limitMs,
      waitUntil,
      tag,
      most,
      together,
      preempts,
      isAboveLimit: reached !== null,
      reached,
      booked: scope === null && bookings().length > 0 ? uuids.filter(isBooked) : [],
      isIdle: /rests|wakes/.test(heartbeat),
      isSuspended:
        (isLate && info.suspended === true) ||
        !native().queueIsAlive(this.#descriptor, heartbeatOffset(slot), HEARTBEAT_TIMEOUT_MS),
    };
  }
}

/** The waiters of a directory's queue, in order, as far as the caller goes. @param before only those ahead of this slot; null: all */
export function* readWaiters(
  directory: LockDirectory | null,
  before: number | null = null,
  holdings = holdingsWhenAsked(directory),
): Generator<Waiter> {
  const queue = directory === null ? null : WaitQueue.open(directory);
  if (queue === null) return;
  try {
    yield* queue.waiters(queue.ahead(before), holdings);
  } finally {
    queue.close();
  }
}

/** A claimant's position in the wait queue. */
export interface QueuePosition {
  /** null: it has none, and everybody is ahead. */
  slot: number | null;
  /** Places ahead that don't count, since their waiters don't take what they could. */
  skipped: ReadonlySet<number>;
}

/**
 * The waiters that are to be served before, in order, as far as the caller goes. @param position null: without a slot of one's
 * own
 */
export function* waitersAhead(
  directory: LockDirectory | null,
  position: QueuePosition | null,
): Generator<Waiter> {
  yield* activeWaiters(readWaiters(directory, position?.slot), position?.skipped);
}

/**
 * Waiters without those that are suspended, skipped, or wait for their user's own GPUs, as far as the caller goes. Each with the
 * GPUs that it could use now.
 */
export function* activeWaiters(waiters: Iterable<Waiter>, skipped?: ReadonlySet<number>): Generator<Waiter> {
  for (const waiter of waiters)
    if (!waiter.isSuspended && !waiter.isAboveLimit && skipped?.has(waiter.slot) !== true)
      yield withoutGPUs(waiter, waiter.booked);
}

/** Sets of connected GPUs, which the record has as positions among the UUIDs: of a long list only the first ones fit. */
function namedSets(
  sets: readonly (readonly number[])[],
  uuids: readonly string[],
  count: number,
): string[][] {
  return sets.map((set) => set.flatMap((at) => uuids[at] ?? [])).filter((set) => set.length >= count);
}

/** A request without some of the GPUs that would do. */
export function withoutGPUs<Request extends Pick<GpuRequest, 'count' | 'uuids' | 'sets'>>(
  request: Request,
  uuids: readonly string[],
): Request {
  if (uuids.length === 0) return request;
  const isLeft = (uuid: string) => !uuids.includes(uuid);
  const sets = request.sets?.map((set) => set.filter(isLeft)).filter((set) => set.length >= request.count);
  return {
    ...request,
    uuids: request.uuids.filter(isLeft),
    ...(sets === undefined ? {} : { sets }),
  };
}
