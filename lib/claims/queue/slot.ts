import { closeSync } from 'node:fs';
import { GPUOwnerError } from '../../errors.ts';
import { EXCLUSIVE, errno, type NativeHeartbeat, native, OFD } from '../../native.ts';
import { readBlock, systemError, warnOnce } from '../../platform/index.ts';
import { encodeRecord, type LockDirectory, RECORD_SIZE, type RecordContents } from '../locks/index.ts';
import { formatTag, type JoiningRequest, type Place, parseTag, type Tag } from '../rules/index.ts';
import {
  blockOffset,
  describeDamaged,
  HEARTBEAT_BYTES,
  HEARTBEAT_MS,
  HEARTBEAT_TIMEOUT_MS,
  heartbeatOffset,
  lockJoining,
  readTag,
  stampOrder,
  WAIT_QUEUE_FILE,
} from './queue-file.ts';
import { newTag } from './turns.ts';
import { placesBefore, rememberAhead, WaitQueue } from './wait-queue.ts';

const MAX_REPLACEMENTS = 16;
/** In a record, with quotes and comma. */
const UUID_LENGTH = 43;
const MAX_COMMAND_LENGTH = 200; // characters: the rest of the block is for UUIDs

/** A slot as one process leaves it to the next. */
export interface KeptSlot {
  /** On whose description the slot is locked. */
  descriptor: number;
  number: number;
  /** Since when its waiter waits, in ISO 8601. */
  since: string;
  /** The tag as text. */
  order: string;
  /** When the request has asked leases to give way, in ms since boot, by their epochs. */
  asked: readonly (readonly [epoch: number, at: number])[];
}

/** The slot of this process in a machine's wait queue, until it leaves or ends. */
export class Slot {
  readonly number: number;
  readonly #descriptor: number;
  readonly #heartbeat: NativeHeartbeat;
  readonly #since: string;
  #order: string;
  /** A copy of the notice's times: any user may write to the notice. */
  readonly asked: Map<number, number>;
  #record: RecordContents | null = null;
  #onNews: ((changed: boolean) => void) | null = null;
  #told = false;

  private constructor({ descriptor, number, since, order, asked }: KeptSlot) {
    this.asked = new Map(asked);
    this.#descriptor = descriptor;
    this.number = number;
    this.#since = since;
    this.#order = order;
    this.#heartbeat = new (native().Heartbeat)(
      descriptor,
      heartbeatOffset(number),
      HEARTBEAT_MS,
      HEARTBEAT_TIMEOUT_MS,
      (changed) => this.#onNews?.(changed),
    );
  }

  /** Goes on with the slot that the process before this one had; null: it isn't held any longer. */
  static resume(kept: KeptSlot): Slot | null {
    const error = native().lockTry(kept.descriptor, OFD, EXCLUSIVE, kept.number, 1);
    return error === 0 ? new Slot(kept) : null;
  }

  /** Takes the last slot; null if that fails, with a warning: the claim then has no place in the order. */
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
        slot = new Slot({ descriptor, number, since: record.since, order: formatTag(tag), asked: [] });
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
        warnOnce(`cannot join the wait queue, so others may be served first: ${error.message}`);
        return null;
      } finally {
        if (turn >= 0) native().fileClose(turn);
      }
    }
    return null;
  }

  /** Writes the request into its block, unless the block has it: any user may have written there. */
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
    { count, size = count, memory, uuids, sets, scope, most, together = [] }: Omit<JoiningRequest, 'class'>,
    preempts: readonly number[] = [],
  ): void {
    this.#record ??= { ...by, command: by.command.slice(0, MAX_COMMAND_LENGTH), since: this.#since };
    const record = {
      order: this.#order,
      ...this.#record,
      place: this.number,
      count,
      ...(size === count ? {} : { size }),
      ...(memory === undefined ? {} : { memory }),
      scope,
      ...(most === undefined || !Number.isFinite(most) ? {} : { most }),
      ...(together.length === 0 ? {} : { together }),
      ...(preempts.length === 0 ? {} : { preempts }),
      ...(sets === undefined ? {} : { sets: sets.map((set) => set.map((uuid) => uuids.indexOf(uuid))) }),
    };
    const bytes = encodeRecord(fitToBlock(record, uuids)).subarray(0, RECORD_SIZE - HEARTBEAT_BYTES);
    const offset = blockOffset(this.number);
    if (readBlock(this.#descriptor, bytes.length, offset).equals(bytes)) return;
    const error = native().fileWriteBlock(this.#descriptor, bytes, offset);
    if (error === 0 || this.#told) return;
    this.#told = true;
    warnOnce(
      `this request can't be written to the wait queue in the lock directory (${systemError(-error)}), so others may be served first.`,
    );
  }

  /** Node.js has started and looked: others may. */
  endStart(): void {
    native().queueEndStart(this.#descriptor);
  }

  /** Whether the queue's file is still where others look for it. */
  isIntact(directory: LockDirectory): boolean {
    return directory.isNamed(this.#descriptor, WAIT_QUEUE_FILE);
  }

  get kept(): KeptSlot {
    return {
      descriptor: this.#descriptor,
      number: this.number,
      since: this.#since,
      order: this.#order,
      asked: [...this.asked],
    };
  }

  /**
   * Calls back, once, when one of these slots shows no sign of life any more, when a lease isn't held, or when bookings have
   * changed. Costs this process nothing meanwhile. @param quiet how long leases don't count, in ms
   * @param seenAt when bookings were looked at, on the clock of `now()`
   */
  watch(
    slots: readonly number[],
    leases: readonly number[],
    quiet: number,
    seenAt: number,
    onNews: (changed: boolean) => void,
  ): void {
    this.#onNews = onNews;
    this.#heartbeat.watch(slots.map(heartbeatOffset), leases, quiet, Math.floor(seenAt));
  }

  unwatch(): void {
    this.#onNews = null;
    this.#heartbeat.watch([], [], 0, Number.MAX_SAFE_INTEGER);
  }

  leave(): void {
    this.#heartbeat.end();
    closeSync(this.#descriptor);
  }
}

/** The tag that the request had before; null: none. */
function earlierTag({ class: own, order }: JoiningRequest): Tag | null {
  const tag = order === undefined ? null : parseTag(order);
  return tag?.class === own ? tag : null;
}

/** The tag of a request that has just taken a slot, and the requests ahead. */
function placeOf(
  record: RecordContents,
  request: JoiningRequest,
  directory: LockDirectory,
  slot: number,
): { tag: Tag; ahead: Place[] } {
  const queue = WaitQueue.open(directory);
  try {
    const places = queue?.places() ?? [];
    // The block of this slot still has the tag of an earlier request.
    const others = places.filter((place) => place.slot !== slot);
    const newest = newTag(directory, record, request, others);
    const tag = earlierTag(request) ?? newest;
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

/** Holds as many UUIDs as there is room for, about 80: later waiters leave at least these to this request. */
function fitToBlock(record: object, uuids: readonly string[]): object {
  const whole = { ...record, uuids };
  const excess = Buffer.byteLength(JSON.stringify(whole)) - (RECORD_SIZE - HEARTBEAT_BYTES);
  if (excess <= 0) return whole;
  return fitToBlock(record, uuids.slice(0, Math.min(-Math.ceil(excess / UUID_LENGTH), -1)));
}
