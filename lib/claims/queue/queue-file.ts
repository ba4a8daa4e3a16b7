// The file of the wait queue: where it has what.
import { closeSync } from 'node:fs';
import { EXCLUSIVE, native, OFD } from '../../native.ts';
import { now, pathIn, readBlock } from '../../platform/index.ts';
import { type LockDirectory, RECORD_SIZE } from '../locks/index.ts';
import { formatTag, parseTag, TAG_LENGTH, type Tag } from '../rules/index.ts';

// A slot is a byte of this file that its waiter has locked; what it waits for is in a block of the file.
export const WAIT_QUEUE_FILE = 'line.lock';
/** Locked by one that joins, so that each sees the tags of those before it. */
const JOIN_FILE = 'line-join.lock';
/** One that joins takes some ms. Others don't wait longer for one that is suspended meanwhile. */
const JOIN_TIMEOUT_MS = 200;
/** A block begins with the request's tag, so that the order can be read without the rest. */
const TAG_PREFIX = '{"order":"';
/** Slots with this distance share a block: a longer queue keeps its order, but not all of it is readable. */
const BLOCKS = 4096;
/** These and BLOCKS as in native/locks/heartbeat_file.h. */
export const HEARTBEAT_BYTES = 32;

/** How often a waiter shows that it is alive, in ms. */
export const HEARTBEAT_MS = 1_000;
/** A waiter whose heartbeat is older counts as suspended or stuck, and is skipped, in ms. */
export const HEARTBEAT_TIMEOUT_MS = 2_500;

/** Waits until no other request is joining. @returns a descriptor that the caller closes; -errno: there is none, and tags may be the same */
export function lockJoining(directory: LockDirectory): number {
  const descriptor = directory.openIfPossible(JOIN_FILE);
  if (descriptor >= 0) native().lockWaitSync(descriptor, OFD, EXCLUSIVE, 0, 1, JOIN_TIMEOUT_MS);
  return descriptor;
}

/** Offset of the queue's order in its file: after all blocks. */
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

/** Where it says when bookings have changed: as in native/locks/heartbeat_file.h, which reads it. */
const BOOKINGS_OFFSET = STAMP_OFFSET + STAMP_LENGTH;

/** Tells those who wait that a booking was made or cancelled. */
export function stampBookings(directory: LockDirectory): void {
  const descriptor = directory.openIfPossible(WAIT_QUEUE_FILE);
  if (descriptor < 0) return; // they look once in a while
  const stamp = `\n${Math.ceil(now())}`.padEnd(HEARTBEAT_BYTES - 1);
  native().fileWriteBlock(descriptor, Buffer.from(`${stamp}\n`), BOOKINGS_OFFSET);
  closeSync(descriptor);
}

export function readStamp(descriptor: number): string {
  return readBlock(descriptor, STAMP_LENGTH, STAMP_OFFSET).toString('latin1');
}

export function readTag(descriptor: number, slot: number): Tag | null {
  const text = readBlock(descriptor, TAG_PREFIX.length + TAG_LENGTH, blockOffset(slot)).toString('latin1');
  return text.startsWith(TAG_PREFIX) ? parseTag(text.slice(TAG_PREFIX.length)) : null;
}

/**
 * Changes tags while no request joins. Where a tag can't be written, the request keeps the place that it has.
 * @param change gets the function that writes a tag @returns what it returns; null: there is no queue
 */
export function changeTags<Result>(
  directory: LockDirectory,
  change: (write: (slot: number, tag: Tag) => void) => Result,
): Result | null {
  const turn = lockJoining(directory);
  const descriptor = directory.openIfPossible(WAIT_QUEUE_FILE);
  try {
    if (descriptor < 0) return null;
    const result = change((slot, tag) => {
      const offset = blockOffset(slot) + TAG_PREFIX.length;
      native().fileWriteBlock(descriptor, Buffer.from(formatTag(tag)), offset);
    });
    stampOrder(descriptor);
    return result;
  } finally {
    for (const each of [descriptor, turn]) if (each >= 0) native().fileClose(each);
  }
}

/** Why a queue with this many foreign locks is not used; see native/locks/wait_queue.h. */
export function describeDamaged({ path }: LockDirectory): string {
  return (
    'requests are served in no order, as a program that is not gpu-owner has locked ' +
    `${pathIn(path, WAIT_QUEUE_FILE)}. As root, \`fuser -v ${pathIn(path, WAIT_QUEUE_FILE)}\` shows it.`
  );
}

export function blockOffset(slot: number): number {
  return (slot % BLOCKS) * RECORD_SIZE;
}

/** The end of a block says when its waiter was last alive. */
export function heartbeatOffset(slot: number): number {
  return blockOffset(slot) + RECORD_SIZE - HEARTBEAT_BYTES;
}
