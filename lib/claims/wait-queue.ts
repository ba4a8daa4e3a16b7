import { closeSync } from 'node:fs';
import { loadConfiguration } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import type { LeaseInfo } from '../gpus/index.ts';
import { EXCLUSIVE, errno, type NativeHeartbeat, native, OFD } from '../native.ts';
import {
  bootId,
  bootMilliseconds,
  pathIn,
  readBlock,
  schema,
  systemError,
  warnOnce,
} from '../platform/index.ts';
import {
  formatTag,
  GPU_UNITS,
  type GpuRequest,
  inOrder,
  isAboveLimit,
  type JoiningRequest,
  type Place,
  parseTag,
  TAG_LENGTH,
  type Tag,
  tagFor,
} from '../policy/index.ts';
import { type Holdings, readHoldings } from './holdings.ts';
import type { LockDirectory } from './lock-directory.ts';
import {
  decodeRecord,
  encodeRecord,
  leaseInfo,
  MAX_EPOCHS,
  RECORD_SIZE,
  type RecordContents,
} from './record.ts';

// A slot is a byte of this file that its waiter has locked; what it waits for is in a block of the file.
export const WAIT_QUEUE_FILE = 'line.lock';
/** Locked by one that joins, so that each sees the tags of those before it. */
const JOIN_FILE = 'line-join.lock';
/** One that joins takes some ms. Others don't wait longer for one that is suspended meanwhile. */
const JOIN_TIMEOUT_MS = 200;
/** A block begins with the request's tag, so that the order can be read without the rest. */
const TAG_PREFIX = '{"order":"';
/** Blocks are used again by slots this far behind: a longer line would still be in order, but not all of it readable. */
const BLOCKS = 4096;
/** These and BLOCKS as in native/locks/heartbeat_file.h. */
const HEARTBEAT_BYTES = 32;
const MAX_REPLACEMENTS = 16;
/** In a record, with quotes and comma. */
const UUID_LENGTH = 43;
const MAX_COMMAND_LENGTH = 200; // characters: the rest of the block is for UUIDs

/** How often a waiter shows that it is alive, in ms. */
export const HEARTBEAT_MS = 1_000;
/** A waiter that hasn't shown it for so long is suspended or stuck: it is skipped until it does, in ms. */
const HEARTBEAT_TIMEOUT_MS = 2_500;

/** A waiter, as far as its record says. */
export interface Waiter extends GpuRequest {
  info: LeaseInfo;
  /** How long the command that it waits for may run; null: for ever. */
  limitMs: number | null;
  /** When it stops waiting, in ms since 1970; null: never. */
  waitUntil: number | null;
  /** The epochs of leases that are to give way to it. */
  preempts: readonly number[];
  /** Hasn't sent a heartbeat for some seconds: it is skipped. */
  isSuspended: boolean;
  /** Must start Node.js before it can take anything. */
  isIdle: boolean;
  /** The waiter's place in the order; null: it is of a release that has none. */
  tag: Tag | null;
  /** How many GPUs its user may have at a time, where that is limited; null: no limit. */
  most: number | null;
  /** Waits for its user's own GPUs: nobody is held up by it. */
  isAboveLimit: boolean;
}

/** A slot as one process leaves it to the next. */
export interface KeptSlot {
  /** On whose description the slot is locked. */
  descriptor: number;
  number: number;
  /** Since when its waiter waits, in ISO 8601. */
  since: string;
  /** The tag as text; missing: the waiter is of a release that has none. */
  order?: string;
}

/** The slot of this process in a machine's wait queue, until it leaves or ends. */
export class Slot {
  readonly number: number;
  readonly #descriptor: number;
  readonly #heartbeat: NativeHeartbeat;
  readonly #since: string;
  #order: string | undefined;
  #record: RecordContents | null = null;
  #onNews: ((unlocked: boolean) => void) | null = null;
  #told = false;

  private constructor({ descriptor, number, since, order }: KeptSlot) {
    this.#descriptor = descriptor;
    this.number = number;
    this.#since = since;
    this.#order = order;
    this.#heartbeat = new (native().Heartbeat)(
      descriptor,
      heartbeatOffset(number),
      HEARTBEAT_MS,
      HEARTBEAT_TIMEOUT_MS,
      (unlocked) => this.#onNews?.(unlocked),
    );
  }

  /** Goes on with the slot that the process before this one had; null: it isn't held any longer. */
  static resume(kept: KeptSlot): Slot | null {
    const error = native().lockTry(kept.descriptor, OFD, EXCLUSIVE, kept.number, 1);
    return error === 0 ? new Slot(kept) : null;
  }

  /** Takes the slot behind all others; null where that can't be done (a person is told why): then order doesn't count. */
  static join(directory: LockDirectory, record: RecordContents, request: JoiningRequest): Slot | null {
    for (let i = 0; i < MAX_REPLACEMENTS; i++) {
      let descriptor = -1;
      let slot: Slot | null = null;
      const turn = lockJoining(directory);
      try {
        descriptor = directory.openFile(WAIT_QUEUE_FILE);
        const number = native().queueJoin(descriptor);
        if (number === -errno.E2BIG)
          throw new GPUOwnerError('ERR_LOCK_DIRECTORY', describeDamaged(directory));
        if (number < 0) throw new GPUOwnerError('ERR_LOCK_DIRECTORY', systemError(-number));
        const { tag, ahead } = placeOf(record, request, directory, number);
        slot = new Slot({ descriptor, number, since: record.since, order: formatTag(tag) });
        if (slot.isIntact(directory)) {
          slot.#write(record, request);
          rememberAhead(directory, number, stampOrder(descriptor), ahead);
          return slot;
        }
        slot.leave(); // the file was removed meanwhile: no other waiter would join this queue
      } catch (error) {
        if (slot !== null) slot.leave();
        else if (descriptor >= 0) closeSync(descriptor);
        if (!(error instanceof GPUOwnerError)) throw error;
        warnOnce(
          error.message === describeDamaged(directory)
            ? error.message
            : `cannot join the wait queue, so others may be served first: ${error.message}`,
        );
        return null;
      } finally {
        if (turn >= 0) native().fileClose(turn);
      }
    }
    return null;
  }

  /** Writes down what is waited for, where that isn't what is written already: anybody may have written there. */
  updateRequest(
    by: RecordContents,
    request: Omit<JoiningRequest, 'class'>,
    preempts: readonly number[] = [],
  ): void {
    const tag = readTag(this.#descriptor, this.number);
    if (tag !== null) this.#order = formatTag(tag); // the user may have changed the order of their own requests
    this.#write(by, request, preempts);
  }

  #write(
    by: RecordContents,
    { count, uuids, scope, most }: Omit<JoiningRequest, 'class'>,
    preempts: readonly number[] = [],
  ): void {
    this.#record ??= { ...by, command: by.command.slice(0, MAX_COMMAND_LENGTH), since: this.#since };
    const order = this.#order === undefined ? {} : { order: this.#order };
    const record = {
      ...order,
      ...this.#record,
      place: this.number,
      count,
      scope,
      ...(most === undefined || !Number.isFinite(most) ? {} : { most }),
      ...(preempts.length === 0 ? {} : { preempts }),
    };
    const bytes = encodeRecord(fitToBlock(record, uuids)).subarray(0, RECORD_SIZE - HEARTBEAT_BYTES);
    const present = Buffer.alloc(bytes.length);
    readBlock(this.#descriptor, present, blockOffset(this.number));
    if (present.equals(bytes)) return;
    const error = native().fileWriteBlock(this.#descriptor, bytes, blockOffset(this.number));
    if (error === 0 || this.#told) return;
    this.#told = true;
    warnOnce(
      `this request can't be written to the wait queue in the lock directory (${systemError(-error)}), so others may be served first.`,
    );
  }

  /** Whether the queue's file is still where others look for it. */
  isIntact(directory: LockDirectory): boolean {
    return directory.isNamed(this.#descriptor, WAIT_QUEUE_FILE);
  }

  get kept(): KeptSlot {
    const order = this.#order === undefined ? {} : { order: this.#order };
    return { descriptor: this.#descriptor, number: this.number, since: this.#since, ...order };
  }

  /**
   * Calls back, once, when one of these slots shows no sign of life any more, or when a lease isn't held. Costs this process
   * nothing meanwhile. @param quiet for so many ms leases don't count
   */
  watch(
    slots: readonly number[],
    leases: readonly number[],
    quiet: number,
    onNews: (unlocked: boolean) => void,
  ): void {
    this.#onNews = onNews;
    this.#heartbeat.watch(slots.map(heartbeatOffset), leases, quiet);
  }

  unwatch(): void {
    this.#onNews = null;
    this.#heartbeat.watch([], [], 0);
  }

  leave(): void {
    this.#heartbeat.end();
    closeSync(this.#descriptor);
  }
}

/** Waits until no other request is joining. @returns a descriptor that the caller closes; -errno: there is none, and tags may be the same */
export function lockJoining(directory: LockDirectory): number {
  const descriptor = directory.openIfPossible(JOIN_FILE);
  if (descriptor >= 0) native().lockWaitSync(descriptor, OFD, EXCLUSIVE, 0, 1, JOIN_TIMEOUT_MS);
  return descriptor;
}

/** Where the queue's file says which order it has: behind all blocks. */
const STAMP_OFFSET = BLOCKS * RECORD_SIZE;
const STAMP_LENGTH = 32;

/** Says that requests have joined or changed places since others looked. */
export function stampOrder(descriptor: number): string {
  const stamp = `${process.pid} ${process.hrtime.bigint()}`
    .slice(0, STAMP_LENGTH - 1)
    .padEnd(STAMP_LENGTH - 1);
  native().fileWriteBlock(descriptor, Buffer.from(`${stamp}\n`), STAMP_OFFSET);
  return `${stamp}\n`;
}

interface KnownAhead {
  stamp: string;
  places: readonly Place[];
}

/** The requests ahead of this process's own slots, so that the whole queue is only read when its order has changed. */
const knownAhead = new Map<string, KnownAhead>();
const MAX_KNOWN = 64;

function rememberAhead({ path }: LockDirectory, slot: number, stamp: string, places: readonly Place[]): void {
  if (knownAhead.size >= MAX_KNOWN) knownAhead.clear();
  knownAhead.set(`${path} ${slot}`, { stamp, places });
}

function placesBefore(slot: number, places: readonly Place[]): Place[] {
  const order = inOrder(places);
  const own = order.indexOf(slot);
  const bySlot = new Map(places.map((place) => [place.slot, place]));
  return (own < 0 ? order : order.slice(0, own)).flatMap((each) => bySlot.get(each) ?? []);
}

function readTag(descriptor: number, slot: number): Tag | null {
  readBlock(descriptor, tagBlock, blockOffset(slot));
  const text = tagBlock.toString('latin1');
  return text.startsWith(TAG_PREFIX) ? parseTag(text.slice(TAG_PREFIX.length)) : null;
}

/** The tag that the request had before; null: none. */
function earlierTag({ class: own, order }: JoiningRequest): Tag | null {
  const tag = order === undefined ? null : parseTag(order);
  return tag?.class === own ? tag : null;
}

/** The tag of a request that has just taken a slot, and the requests ahead. */
function placeOf(
  { uid }: RecordContents,
  request: JoiningRequest,
  directory: LockDirectory,
  slot: number,
): { tag: Tag; ahead: Place[] } {
  const { count, size = count, scope, class: own } = request;
  const queue = WaitQueue.open(directory);
  try {
    const places = queue?.places() ?? [];
    const waiting = places.flatMap((place) => (place.slot === slot || place.tag === null ? [] : [place.tag]));
    const isOnMachine = scope === null;
    const joining = {
      class: own,
      uid: isOnMachine ? uid : null,
      size,
      held: isOnMachine ? (readHoldings(directory).get(uid)?.gpus ?? 0) : 0,
    };
    const tag =
      earlierTag(request) ??
      tagFor(joining, waiting, bootMilliseconds(), loadConfiguration().order ?? 'fair');
    return {
      tag,
      ahead: placesBefore(
        slot,
        places.map((place) => (place.slot === slot ? { slot, tag } : place)),
      ),
    };
  } finally {
    queue?.close();
  }
}

/** With as many UUIDs as there is room for, some 80: those behind then stand back for these at least. */
function fitToBlock(record: object, uuids: readonly string[]): object {
  const whole = { ...record, uuids };
  const excess = Buffer.byteLength(JSON.stringify(whole)) - (RECORD_SIZE - HEARTBEAT_BYTES);
  if (excess <= 0) return whole;
  return fitToBlock(record, uuids.slice(0, Math.min(-Math.ceil(excess / UUID_LENGTH), -1)));
}

/** Why a queue of which so much is locked is not used; see native/locks/wait_queue.h. */
function describeDamaged({ path }: LockDirectory): string {
  return (
    "the wait queue can't be used, so requests are served in no order: a program that is not gpu-owner has locked " +
    `${pathIn(path, WAIT_QUEUE_FILE)}. As root, run \`gpu-owner doctor\`: it names the program.`
  );
}

const TIME = schema.or(schema.amount(8.64e15, Number.MIN_VALUE), null);
const REQUEST = schema.record({
  place: schema.whole(),
  boot: schema.text,
  count: schema.whole(Number.MAX_SAFE_INTEGER, 1),
  uuids: schema.validOf(schema.text),
  scope: schema.or(schema.text, null),
  limitMs: TIME,
  waitUntil: TIME,
  order: schema.or(schema.text, null),
  most: schema.or(schema.amount(), null),
  preempts: schema.or(schema.validOf(schema.whole(MAX_EPOCHS)), []),
});

const tagBlock = Buffer.alloc(TAG_PREFIX.length + TAG_LENGTH);

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
  *waiters(slots: readonly number[]): Generator<Waiter> {
    let held: Holdings | undefined;
    const holdings = () => (held ??= readHoldings(this.#directory));
    for (const slot of slots) {
      const waiter = this.waiter(slot, holdings);
      if (waiter !== null) yield waiter;
    }
  }

  /** The slots that are taken, by number, each with its tag; none where other programs have locked so many that the queue is unusable. */
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
    const stamp = this.#stamp();
    const known = knownAhead.get(`${this.#directory.path} ${slot}`);
    const isKnown = known !== undefined && known.stamp === stamp;
    const places = isKnown ? this.#stillThere(known.places) : placesBefore(slot, this.places());
    rememberAhead(this.#directory, slot, stamp, places);
    return places.map((place) => place.slot);
  }

  #stamp(): string {
    const block = Buffer.alloc(STAMP_LENGTH);
    readBlock(this.#descriptor, block, STAMP_OFFSET);
    return block.toString('latin1');
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

  /** Whether other programs have locked so many slots that no waiter can join the queue. */
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
  waiter(slot: number, holdings = () => readHoldings(this.#directory)): Waiter | null {
    const block = Buffer.alloc(RECORD_SIZE);
    readBlock(this.#descriptor, block, blockOffset(slot));
    const record = decodeRecord(block.subarray(0, RECORD_SIZE - HEARTBEAT_BYTES));
    const request = schema.readAs(REQUEST, record);
    if (request === null || request.place !== slot || request.boot !== bootId()) return null;
    const { count, uuids, scope, limitMs, waitUntil, order, most, preempts } = request;
    const tag = order === null ? null : parseTag(order);
    const isLimited = most !== null && tag !== null && tag.uid !== null;
    return {
      slot,
      count,
      uuids,
      scope,
      info: leaseInfo(record),
      limitMs,
      waitUntil,
      tag,
      most,
      preempts,
      isAboveLimit:
        isLimited &&
        isAboveLimit((holdings().get(tag.uid ?? -1)?.gpus ?? 0) + (tag.end - tag.start) / GPU_UNITS, most),
      isIdle: block.subarray(RECORD_SIZE - HEARTBEAT_BYTES).includes('rests'),
      isSuspended: !native().queueIsAlive(this.#descriptor, heartbeatOffset(slot), HEARTBEAT_TIMEOUT_MS),
    };
  }
}

/** The waiters of a directory's queue, in order, as far as the caller goes. @param before only those ahead of this slot; null: all */
export function* readWaiters(
  directory: LockDirectory | null,
  before: number | null = null,
): Generator<Waiter> {
  const queue = directory === null ? null : WaitQueue.open(directory);
  if (queue === null) return;
  try {
    yield* queue.waiters(queue.ahead(before));
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

/** Waiters without those that are suspended, skipped, or wait for their user's own GPUs, as far as the caller goes. */
export function* activeWaiters(waiters: Iterable<Waiter>, skipped?: ReadonlySet<number>): Generator<Waiter> {
  for (const waiter of waiters)
    if (!waiter.isSuspended && !waiter.isAboveLimit && skipped?.has(waiter.slot) !== true) yield waiter;
}

/** Where a slot's block has the text of its tag. */
export function tagOffset(slot: number): number {
  return blockOffset(slot) + TAG_PREFIX.length;
}

function blockOffset(slot: number): number {
  return (slot % BLOCKS) * RECORD_SIZE;
}

/** The end of a block says when its waiter was last alive. */
function heartbeatOffset(slot: number): number {
  return blockOffset(slot) + RECORD_SIZE - HEARTBEAT_BYTES;
}

/** With so many more waiters ahead each looks one heartbeat later whether those take what they could. */
export const WAITERS_PER_HEARTBEAT = 25;
/** Longer than any waiter that works takes to take what it can have, in ms. */
const STALL_TIMEOUT_MS = 2_500;
/** So much longer for one that waits in the small process: until it has started Node.js and looked at the driver, in ms. */
const STALL_WAKING_MS = 3_000;
/** Waiters behind lose their patience one after the other, so that they don't all try at once. */
const STALL_STAGGER_MS = 20;

/**
 * Waiters who could have had GPUs for seconds and didn't take them are skipped, so that a broken one doesn't keep the
 * machine idle. They are noticed all at the same time, not one after the other.
 */
export class StallDetector {
  readonly #since = new Map<number, number>();

  /** @param free UUIDs of GPUs that are free now @param at ms on any clock that goes on evenly */
  observe(
    ahead: readonly (GpuRequest & { isIdle?: boolean })[],
    free: ReadonlySet<string>,
    at: number,
  ): void {
    const kept = new Set<string>();
    const able = new Map<number, number>();
    for (const { slot, count, uuids, isIdle = false } of ahead) {
      const could = uuids.filter((uuid) => free.has(uuid) && !kept.has(uuid));
      if (could.length >= count) able.set(slot, isIdle ? at + STALL_WAKING_MS : at);
      else for (const uuid of uuids) kept.add(uuid);
    }
    for (const slot of this.#since.keys()) if (!able.has(slot)) this.#since.delete(slot);
    for (const [slot, since] of able) if (!this.#since.has(slot)) this.#since.set(slot, since);
  }

  /** Whether the waiter in the slot could have had what it waits for, when last observed. */
  couldTake(slot: number): boolean {
    return this.#since.has(slot);
  }

  forget(): void {
    this.#since.clear();
  }

  /** Whether anybody could have had what they wait for, when last observed. */
  get suspects(): boolean {
    return this.#since.size > 0;
  }

  /** The slots that are skipped. @param own how many are ahead of the one who asks */
  stalled(own: number, at: number): Set<number> {
    const limit = STALL_TIMEOUT_MS + own * STALL_STAGGER_MS;
    return new Set([...this.#since].filter(([, since]) => at - since >= limit).map(([slot]) => slot));
  }
}
