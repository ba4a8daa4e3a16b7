import { closeSync, readSync } from 'node:fs';
import { GPUOwnerError } from '../errors.ts';
import type { LeaseInfo } from '../gpus/index.ts';
import { errno, type NativeHeartbeat, native } from '../native.ts';
import { bootId, pathIn, systemError, warnOnce } from '../platform/index.ts';
import type { Wish } from './fairness.ts';
import type { LockDirectory } from './lock-directory.ts';
import { decodeRecord, encodeRecord, leaseInfo, RECORD_SIZE, type RecordContents } from './record.ts';

// A place is a byte of this file that its waiter has locked; what it waits for stands in a block of the file.
export const NAME = 'line.lock';
/** Blocks are used again by places this far behind: a longer line would still be in order, but not all of it readable. */
const BLOCKS = 4096;
/** Of native/locks/heartbeat.h. */
const PULSE_SIZE = 32;
const MOST_REPLACEMENTS = 16;
/** In a record, with quotes and comma. */
const UUID_LENGTH = 43;
const MOST_COMMAND = 200; // characters: the rest of the block is for UUIDs

/** How often a waiter shows that it is alive, in ms. */
export const PULSE = 1_000;
/** A waiter that hasn't shown it for so long is stopped or stuck: it is passed over until it does, in ms. */
const LIFELESS = 2_500;

/** Somebody who stands in line, as far as their record says. */
export interface Waiter extends Wish {
  info: LeaseInfo;
  /** Hasn't shown a sign of life for some seconds: it is passed over. */
  stopped: boolean;
}

/** The place of this process in the line of a machine's waiters, until it leaves or ends. */
export class Place {
  readonly number: number;
  readonly #directory: LockDirectory;
  readonly #descriptor: number;
  readonly #pulse: NativeHeartbeat;
  readonly #record: RecordContents;
  #onNews: ((unlocked: boolean) => void) | null = null;
  #told = false;

  private constructor(directory: LockDirectory, descriptor: number, number: number, record: RecordContents) {
    this.#directory = directory;
    this.#descriptor = descriptor;
    this.number = number;
    this.#record = { ...record, command: record.command.slice(0, MOST_COMMAND) };
    this.#pulse = new (native().Heartbeat)(descriptor, pulseOf(number), PULSE, LIFELESS, (unlocked) =>
      this.#onNews?.(unlocked),
    );
  }

  /** Takes the place behind all others; null where that can't be done (a person is told why): then order doesn't count. */
  static join(directory: LockDirectory, record: RecordContents, wish: Omit<Wish, 'place'>): Place | null {
    for (let i = 0; i < MOST_REPLACEMENTS; i++) {
      let descriptor = -1;
      try {
        descriptor = directory.openFile(NAME);
        const number = native().queueJoin(descriptor);
        if (number === -errno.E2BIG) throw new GPUOwnerError('ERR_LOCK_DIRECTORY', spoilt(directory));
        if (number < 0) throw new GPUOwnerError('ERR_LOCK_DIRECTORY', systemError(-number));
        const place = new Place(directory, descriptor, number, record);
        if (place.isIntact()) {
          place.wish(wish);
          return place;
        }
        place.leave(); // the file was removed meanwhile: nobody else would stand in this line
      } catch (error) {
        if (descriptor >= 0) closeSync(descriptor);
        if (!(error instanceof GPUOwnerError)) throw error;
        warnOnce(
          error.message === spoilt(directory)
            ? error.message
            : `there is no place in line to be had, so others may be served first: ${error.message}`,
        );
        return null;
      }
    }
    return null;
  }

  /** Writes down what is waited for, where that isn't what is written already: anybody may have written there. */
  wish({ count, uuids, scope }: Omit<Wish, 'place'>): void {
    const record = { ...this.#record, place: this.number, count, scope };
    const bytes = encodeRecord(fitting(record, uuids)).subarray(0, RECORD_SIZE - PULSE_SIZE);
    const present = Buffer.alloc(bytes.length);
    readSync(this.#descriptor, present, 0, bytes.length, blockOf(this.number));
    if (present.equals(bytes)) return;
    const error = native().fileWriteBlock(this.#descriptor, bytes, blockOf(this.number));
    if (error === 0 || this.#told) return;
    this.#told = true;
    warnOnce(
      `what this process waits for can't be written down in the lock directory (${systemError(-error)}), so others may be served first.`,
    );
  }

  /** Whether the line's file is still where others look for it. */
  isIntact(): boolean {
    return this.#directory.isNamed(this.#descriptor, NAME);
  }

  /**
   * Has somebody told, once, when one of these places shows no sign of life any more, or when a lease is held by nobody.
   * Costs this process nothing meanwhile. @param quiet for so many ms leases don't count
   */
  watch(
    places: readonly number[],
    leases: readonly number[],
    quiet: number,
    onNews: (unlocked: boolean) => void,
  ): void {
    this.#onNews = onNews;
    this.#pulse.watch(places.map(pulseOf), leases, quiet);
  }

  unwatch(): void {
    this.#onNews = null;
    this.#pulse.watch([], [], 0);
  }

  leave(): void {
    this.#pulse.end();
    closeSync(this.#descriptor);
  }
}

/** With as many UUIDs as there is room for, some 80: those behind then stand back for these at least. */
function fitting(record: object, uuids: readonly string[]): object {
  const whole = { ...record, uuids };
  const excess = Buffer.byteLength(JSON.stringify(whole)) - (RECORD_SIZE - PULSE_SIZE);
  if (excess <= 0) return whole;
  return fitting(record, uuids.slice(0, Math.min(-Math.ceil(excess / UUID_LENGTH), -1)));
}

/** Why nothing hangs on a line of which so much is locked; see native/locks/wait_queue.h. */
function spoilt({ path }: LockDirectory): string {
  return (
    `the wait queue can't be used, so others may be served first: more of ${pathIn(path, NAME)} is locked than waiters lock. ` +
    'Somebody disturbs it on purpose: `gpu-owner doctor`, as root, says who.'
  );
}

/** The line of a machine, for those who look. Takes nothing. */
export class Line {
  readonly #directory: LockDirectory;
  readonly #descriptor: number;

  private constructor(directory: LockDirectory, descriptor: number) {
    this.#directory = directory;
    this.#descriptor = descriptor;
  }

  /** null: nobody has ever waited here. The caller closes it. */
  static open(directory: LockDirectory): Line | null {
    const descriptor = directory.openForProbe(NAME);
    return descriptor < 0 ? null : new Line(directory, descriptor);
  }

  /** Who has these places, read one after the other as far as the caller goes. */
  *waiters(places: readonly number[]): Generator<Waiter> {
    for (const place of places) {
      const waiter = this.waiter(place);
      if (waiter !== null) yield waiter;
    }
  }

  /** The places that are taken, in order; none where strangers have locked so many that the line is spoilt. @param before only those ahead */
  places(before: number | null = null): number[] {
    const places = before === 0 ? [] : native().queueSlots(this.#descriptor, 0, before ?? 0);
    if (places === null) warnOnce(spoilt(this.#directory));
    return places ?? [];
  }

  /** Whether strangers have locked so many places that nobody can stand in line. */
  get isSpoilt(): boolean {
    return native().queueSlots(this.#descriptor, 0, 0) === null;
  }

  get descriptor(): number {
    return this.#descriptor;
  }

  close(): void {
    native().fileClose(this.#descriptor);
  }

  /** Who has a place; null: nothing that can be read, so nobody can stand back for it. */
  waiter(place: number): Waiter | null {
    const block = Buffer.alloc(RECORD_SIZE);
    readSync(this.#descriptor, block, 0, RECORD_SIZE, blockOf(place));
    const record = decodeRecord(block.subarray(0, RECORD_SIZE - PULSE_SIZE));
    if (record === null || record.place !== place || record.boot !== bootId()) return null;
    const { count, uuids, scope } = record;
    if (!Number.isSafeInteger(count) || Number(count) < 1 || !Array.isArray(uuids)) return null;
    return {
      place,
      count: Number(count),
      uuids: uuids.filter((uuid): uuid is string => typeof uuid === 'string'),
      scope: typeof scope === 'string' ? scope : null,
      info: leaseInfo(record),
      stopped: !native().queueIsAlive(this.#descriptor, pulseOf(place), LIFELESS),
    };
  }
}

/** Who stands in a directory's line, in order, as far as the caller goes. @param before only those ahead of this place */
export function* waitersIn(directory: LockDirectory | null, before: number | null = null): Generator<Waiter> {
  const line = directory === null ? null : Line.open(directory);
  if (line === null) return;
  try {
    yield* line.waiters(line.places(before));
  } finally {
    line.close();
  }
}

/** Where in the line a claimant stands. */
export interface Standing {
  /** null: it has none, and everybody is ahead. */
  place: number | null;
  /** Places ahead that don't count, since whoever has them doesn't take what they could. */
  passedOver: ReadonlySet<number>;
}

/** Those who are to be served before, in order, as far as the caller goes. @param standing null: without a place of one's own */
export function* waitersAhead(directory: LockDirectory | null, standing: Standing | null): Generator<Waiter> {
  yield* thatCount(waitersIn(directory, standing?.place), standing?.passedOver);
}

/** Those of them who are neither stopped nor passed over, as far as the caller goes. */
export function* thatCount(waiters: Iterable<Waiter>, passedOver?: ReadonlySet<number>): Generator<Waiter> {
  for (const waiter of waiters) if (!waiter.stopped && passedOver?.has(waiter.place) !== true) yield waiter;
}

function blockOf(place: number): number {
  return (place % BLOCKS) * RECORD_SIZE;
}

/** The end of a block says when its waiter was last alive. */
function pulseOf(place: number): number {
  return blockOf(place) + RECORD_SIZE - PULSE_SIZE;
}
