// A share of a GPU's memory has a file of its own, like the lease of a GPU, and a read lock on the lease of that GPU, in whose file it
// has locked a byte for each unit of memory. The kernel adds up, and frees what a dead holder had.
import { EXCLUSIVE, errno, native, OFD } from '../native.ts';

/** Behind all other bytes that claims lock in a lease file. */
export const FIRST_UNIT = 2 ** 51;
/** 256 TiB. */
const MAX_UNITS = 2 ** 20;

/** How much of a GPU a share is, in units. */
export interface ShareParts {
  units: number;
  /** The units of the GPU. */
  capacity: number;
}

/** The name in place of the GPU's UUID: of the lowest unit, which no other share has. @param depth of the GPU's lease file */
export function shareId(uuid: string, depth: number, unit: number): string {
  return `${uuid}${depth === 0 ? '' : `-nested-${depth}`}-share-${unit}`;
}

/** The UUID of the GPU that this is a share of; null: it is none, or a share within a job. */
export function gpuOfShare(id: string): string | null {
  const match = /^(.*)-share-\d+$/.exec(id);
  return match === null || id.includes('-nested-') ? null : (match[1] as string);
}

/** Whether it is a share within a job. */
export function isNestedShare(id: string): boolean {
  return id.includes('-nested-');
}

/** @returns the lowest of the units, or null: there aren't so many left */
export function takeUnits(descriptor: number, { units, capacity }: ShareParts): number | null {
  const lowest = native().unitsTake(descriptor, FIRST_UNIT, capacity, units);
  return lowest < 0 ? null : lowest - FIRST_UNIT;
}

/** The units that other open files have taken: each lock's first one, and how many. */
export function takenUnits(descriptor: number): { first: number; units: number }[] {
  const flat = native().unitsTaken(descriptor, FIRST_UNIT, MAX_UNITS) ?? [FIRST_UNIT, MAX_UNITS];
  const locks: { first: number; units: number }[] = [];
  for (let i = 0; i < flat.length; i += 2)
    locks.push({ first: (flat[i] as number) - FIRST_UNIT, units: flat[i + 1] as number });
  return locks;
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
