import { closeSync } from 'node:fs';
import { GPUOwnerError } from '../errors.ts';
import type { LeaseInfo } from '../gpus/index.ts';
import { EXCLUSIVE, errno, type NativeHeartbeat, native, OFD } from '../native.ts';
import { bootId, pathIn, readBlock, schema, systemError, warnOnce } from '../platform/index.ts';
import type { LockDirectory } from './lock-directory.ts';
import { decodeRecord, encodeRecord, leaseInfo, RECORD_SIZE, type RecordContents } from './record.ts';

// A slot is a byte of this file that its waiter has locked; what it waits for is in a block of the file.
export const WAIT_QUEUE_FILE = 'line.lock';
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

/** The GPUs that a waiter waits for. */
export interface GpuRequest {
  /** Lower ones are served first. */
  slot: number;
  count: number;
  /** The GPUs that would do, as far as is known when they aren't free. */
  uuids: readonly string[];
  /** The job within whose GPUs this is; wishes of different scopes don't concern each other. null: the machine. */
  scope: string | null;
}

/** The latest time of a Date, in ms since 1970. */

/** A waiter, as far as its record says. */
export interface Waiter extends GpuRequest {
  info: LeaseInfo;
  /** How long the command that it waits for may run; null: for ever. */
  limitMs: number | null;
  /** When it stops waiting, in ms since 1970; null: never. */
  waitUntil: number | null;
  /** Hasn't sent a heartbeat for some seconds: it is skipped. */
  isSuspended: boolean;
  /** Must start Node.js before it can take anything. */
  isIdle: boolean;
}

/** A slot as one process leaves it to the next. */
export interface KeptSlot {
  /** On whose description the slot is locked. */
  descriptor: number;
  number: number;
  /** Since when its waiter waits, in ISO 8601. */
  since: string;
}

/** The slot of this process in a machine's wait queue, until it leaves or ends. */
export class Slot {
  readonly number: number;
  readonly #descriptor: number;
  readonly #heartbeat: NativeHeartbeat;
  readonly #since: string;
  #record: RecordContents | null = null;
  #onNews: ((unlocked: boolean) => void) | null = null;
  #told = false;

  private constructor({ descriptor, number, since }: KeptSlot) {
    this.#descriptor = descriptor;
    this.number = number;
    this.#since = since;
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
  static join(
    directory: LockDirectory,
    record: RecordContents,
    request: Omit<GpuRequest, 'slot'>,
  ): Slot | null {
    for (let i = 0; i < MAX_REPLACEMENTS; i++) {
      let descriptor = -1;
      let slot: Slot | null = null;
      try {
        descriptor = directory.openFile(WAIT_QUEUE_FILE);
        const number = native().queueJoin(descriptor);
        if (number === -errno.E2BIG)
          throw new GPUOwnerError('ERR_LOCK_DIRECTORY', describeDamaged(directory));
        if (number < 0) throw new GPUOwnerError('ERR_LOCK_DIRECTORY', systemError(-number));
        slot = new Slot({ descriptor, number, since: record.since });
        if (slot.isIntact(directory)) {
          slot.updateRequest(record, request);
          return slot;
        }
        slot.leave(); // the file was removed meanwhile: nobody else would join this queue
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
      }
    }
    return null;
  }

  /** Writes down what is waited for, where that isn't what is written already: anybody may have written there. */
  updateRequest(by: RecordContents, { count, uuids, scope }: Omit<GpuRequest, 'slot'>): void {
    this.#record ??= { ...by, command: by.command.slice(0, MAX_COMMAND_LENGTH), since: this.#since };
    const record = { ...this.#record, place: this.number, count, scope };
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
    return { descriptor: this.#descriptor, number: this.number, since: this.#since };
  }

  /**
   * Has somebody told, once, when one of these slots shows no sign of life any more, or when a lease is held by nobody.
   * Costs this process nothing meanwhile. @param quiet for so many ms leases don't count
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
});

/** The wait queue of a machine, for readers. Takes nothing. */
export class WaitQueue {
  readonly #directory: LockDirectory;
  readonly #descriptor: number;

  private constructor(directory: LockDirectory, descriptor: number) {
    this.#directory = directory;
    this.#descriptor = descriptor;
  }

  /** null: nobody has ever waited here. The caller closes it. */
  static open(directory: LockDirectory): WaitQueue | null {
    const descriptor = directory.openForProbe(WAIT_QUEUE_FILE);
    return descriptor < 0 ? null : new WaitQueue(directory, descriptor);
  }

  /** The waiters in these slots, read one after the other as far as the caller goes. */
  *waiters(slots: readonly number[]): Generator<Waiter> {
    for (const slot of slots) {
      const waiter = this.waiter(slot);
      if (waiter !== null) yield waiter;
    }
  }

  /** The slots that are taken, in order; none where other programs have locked so many that the queue is unusable. @param before only those ahead */
  slots(before: number | null = null): number[] {
    const slots = before === 0 ? [] : native().queueSlots(this.#descriptor, 0, before ?? 0);
    if (slots === null) warnOnce(describeDamaged(this.#directory));
    return slots ?? [];
  }

  /** Whether other programs have locked so many slots that nobody can join the queue. */
  get isDamaged(): boolean {
    return native().queueSlots(this.#descriptor, 0, 0) === null;
  }

  get descriptor(): number {
    return this.#descriptor;
  }

  close(): void {
    native().fileClose(this.#descriptor);
  }

  /** The waiter in a slot; null: there is no record that can be read, so nobody can stand back for it. */
  waiter(slot: number): Waiter | null {
    const block = Buffer.alloc(RECORD_SIZE);
    readBlock(this.#descriptor, block, blockOffset(slot));
    const record = decodeRecord(block.subarray(0, RECORD_SIZE - HEARTBEAT_BYTES));
    const request = schema.readAs(REQUEST, record);
    if (request === null || request.place !== slot || request.boot !== bootId()) return null;
    const { count, uuids, scope, limitMs, waitUntil } = request;
    return {
      slot,
      count,
      uuids,
      scope,
      info: leaseInfo(record),
      limitMs,
      waitUntil,
      isIdle: block.subarray(RECORD_SIZE - HEARTBEAT_BYTES).includes('rests'),
      isSuspended: !native().queueIsAlive(this.#descriptor, heartbeatOffset(slot), HEARTBEAT_TIMEOUT_MS),
    };
  }
}

/** The waiters of a directory's queue, in order, as far as the caller goes. @param before only those ahead of this slot */
export function* readWaiters(
  directory: LockDirectory | null,
  before: number | null = null,
): Generator<Waiter> {
  const queue = directory === null ? null : WaitQueue.open(directory);
  if (queue === null) return;
  try {
    yield* queue.waiters(queue.slots(before));
  } finally {
    queue.close();
  }
}

/** A claimant's position in the wait queue. */
export interface QueuePosition {
  /** null: it has none, and everybody is ahead. */
  slot: number | null;
  /** Places ahead that don't count, since whoever has them doesn't take what they could. */
  skipped: ReadonlySet<number>;
}

/** Those who are to be served before, in order, as far as the caller goes. @param position null: without a slot of one's own */
export function* waitersAhead(
  directory: LockDirectory | null,
  position: QueuePosition | null,
): Generator<Waiter> {
  yield* activeWaiters(readWaiters(directory, position?.slot), position?.skipped);
}

/** Those of them who are neither suspended nor skipped, as far as the caller goes. */
export function* activeWaiters(waiters: Iterable<Waiter>, skipped?: ReadonlySet<number>): Generator<Waiter> {
  for (const waiter of waiters) if (!waiter.isSuspended && skipped?.has(waiter.slot) !== true) yield waiter;
}

function blockOffset(slot: number): number {
  return (slot % BLOCKS) * RECORD_SIZE;
}

/** The end of a block says when its waiter was last alive. */
function heartbeatOffset(slot: number): number {
  return blockOffset(slot) + RECORD_SIZE - HEARTBEAT_BYTES;
}

/**
 * Decides which waiter may take which GPU: a waiter takes only GPUs that nobody ahead could use. So a request for four is not starved by
 * requests for one, and one that insists on GPU 0 doesn't keep the others idle.
 *
 * @param ahead in order; read no further than need be
 * @returns those of the GPUs that are left to somebody ahead, each with the first of them
 */
export function reservedFor<Waiting extends GpuRequest>(
  uuids: Iterable<string>,
  scope: string | null,
  ahead: Iterable<Waiting>,
): Map<string, Waiting> {
  const open = new Set(uuids);
  const reserved = new Map<string, Waiting>();
  if (open.size === 0) return reserved;
  for (const request of ahead) {
    if (request.scope !== scope) continue;
    for (const uuid of request.uuids) if (open.delete(uuid)) reserved.set(uuid, request);
    if (open.size === 0) break;
  }
  return reserved;
}

/**
 * Whom to wait for. None: enough GPUs aren't left to others, so it is worth watching them. Otherwise it is not as long as all of
 * these wait; usually it is the one directly ahead, so that one wakes for each that goes.
 * @param nearestFirst those ahead; read no further than need be
 */
export function findBlockers(
  { count, uuids, scope }: Omit<GpuRequest, 'slot'>,
  nearestFirst: Iterable<GpuRequest>,
): GpuRequest[] {
  const wanted = new Set(uuids);
  const together: GpuRequest[] = [];
  let left = wanted;
  for (const request of nearestFirst) {
    if (request.scope !== scope) continue;
    const alone = without(wanted, request.uuids).size;
    // Fewer may be wanted than are needed, as long as some are silent and haven't told their UUIDs. That is nobody's fault.
    if (alone === wanted.size) continue;
    if (alone < count) return [request];
    const after = without(left, request.uuids);
    if (after.size === left.size) continue;
    together.push(request);
    left = after;
    if (left.size < count) return together;
  }
  return [];
}

function without(uuids: Set<string>, taken: readonly string[]): Set<string> {
  const left = new Set(uuids);
  for (const uuid of taken) left.delete(uuid);
  return left;
}

/** With so many more waiters ahead each looks one heartbeat later whether those take what they could. */
export const WAITERS_PER_HEARTBEAT = 25;
/** Longer than any waiter that works takes to take what it can have, in ms. */
const STALL_TIMEOUT_MS = 2_500;
/** So much longer for one that waits in the small process: until it has started Node.js and looked at the driver, in ms. */
const STALL_WAKING_MS = 3_000;
/** Those behind lose their patience one after the other, so that they don't all try at once. */
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

  /** Whether whoever has the slot could have had what they wait for, when last observed. */
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
