// A share of a GPU's memory has a file of its own, like the lease of a GPU, and a read lock on the lease of that GPU, in whose file it
// has locked a byte for each unit of memory. The kernel adds up, and frees what a dead holder had.
import { EXCLUSIVE, errno, native, OFD } from '../../native.ts';

/** Behind all other bytes that claims lock in a lease file. */
export const FIRST_UNIT = 2 ** 51;
/** 256 TiB. */
export const MAX_UNITS = 2 ** 20;
/** Behind the units: a byte for each share, whose place is its number. */
const FIRST_NUMBER = FIRST_UNIT + 2 * MAX_UNITS;
const MAX_SHARES = 2 ** 12;

/** How much of a GPU a share is, in units. */
export interface ShareParts {
  units: number;
  /** The units of the GPU. */
  capacity: number;
}

/** The name of a share in place of the GPU's UUID. @param depth of the GPU's lease file */
export function shareId(uuid: string, depth: number, number: number): string {
  return `${uuid}${depth === 0 ? '' : `-nested-${depth}`}-share-${number}`;
}

/** The UUID of the GPU that this is a share of; null: it is none, or a share within a job. */
export function gpuOfShare(id: string): string | null {
  const uuid = /^(.*)-share-\d+$/.exec(id)?.[1];
  return uuid === undefined || id.includes('-nested-') ? null : uuid;
}

/** Whether it is a share within a job. */
export function isNestedShare(id: string): boolean {
  return id.includes('-nested-');
}

/**
 * Takes the lowest number that no other share of the GPU has, and then units: so units without a number are no share's.
 * @returns the number, or null: there isn't enough left
 */
export function takeShare(descriptor: number, { units, capacity }: ShareParts): number | null {
  const place = native().unitsTake(descriptor, FIRST_NUMBER, MAX_SHARES, 1);
  if (place < 0 || native().unitsTake(descriptor, FIRST_UNIT, capacity, units) < 0) return null;
  return place - FIRST_NUMBER + 1;
}

/** Whether another program has locked what shares lock, and no share has: it must not have come or gone meanwhile. */
export function isLockedByOtherProgram(descriptor: number): boolean {
  const isShared = () => (shareNumbers(descriptor) ?? []).length > 0;
  const all = FIRST_NUMBER + MAX_SHARES - FIRST_UNIT;
  return !isShared() && native().lockProbe(descriptor, OFD, EXCLUSIVE, FIRST_UNIT, all) >= 0 && !isShared();
}

/**
 * How many units shares with other open files have taken, and other programs beside them: these gain no more than a claim of the whole GPU
 * does, which every user may make.
 * @returns null: there are more locks than shares make, or reading them takes too long
 */
export function countUnits(descriptor: number): number | null {
  const flat = native().unitsTaken(descriptor, FIRST_UNIT, MAX_UNITS);
  return flat?.filter((_, i) => i % 2 === 1).reduce((sum, units) => sum + units, 0) ?? null;
}

/** The numbers of the shares that other open files have; null as in {@link countUnits}. A longer lock is another program's. */
export function shareNumbers(descriptor: number): number[] | null {
  const flat = native().unitsTaken(descriptor, FIRST_NUMBER, MAX_SHARES);
  if (flat === null) return null;
  return flat.filter((_, i) => i % 2 === 0 && flat[i + 1] === 1).map((place) => place - FIRST_NUMBER + 1);
}

/** Tells others the size, by a lock in the share's own file: where it begins tells the GPU's. @returns 0 or an errno value */
export function lockSize(descriptor: number, { units, capacity }: ShareParts): number {
  return capacity > MAX_UNITS
    ? errno.E2BIG
    : native().lockTry(descriptor, OFD, EXCLUSIVE, FIRST_UNIT + capacity, units);
}

/** The size of a share; null: it isn't held. */
export function readSize(descriptor: number): ShareParts | null {
  const [start, units] = native().unitsTaken(descriptor, FIRST_UNIT, 2 * MAX_UNITS) ?? [];
  return start === undefined || units === undefined ? null : { units, capacity: start - FIRST_UNIT };
}
