import { invalidValue } from '../platform/index.ts';
import type { UrgentUsers } from './urgent.ts';
import { mapping, namesIn, parseTime, single } from './yaml.ts';

/** The key `bookings` of a machine's file: the users and groups who may book GPUs, how many at a time, and how far ahead. */
export interface BookingRules extends UrgentUsers {
  gpus: number;
  aheadMs: number;
}

const EXAMPLE = '{ gpus: 4, ahead: 14d, groups: [staff] }';
const DEFAULTS: BookingRules = {
  gpus: Number.POSITIVE_INFINITY,
  aheadMs: 14 * 24 * 3_600_000,
  users: [],
  groups: [],
};

/** @throws ERR_CONFIGURATION */
export const parseBookings = mapping(EXAMPLE, DEFAULTS, {
  gpus: (place) => ({ gpus: single(place, parseGPUs) }),
  ahead: (place) => ({ aheadMs: single(place, parseTime) }),
  users: (place) => ({ users: namesIn(place, EXAMPLE) }),
  groups: (place) => ({ groups: namesIn(place, EXAMPLE) }),
});

function parseGPUs(value: unknown, name: string): number {
  if (Number.isSafeInteger(value) && Number(value) >= 1) return Number(value);
  throw invalidValue(name, value, 'a number of GPUs', 'use 1, 2, …');
}
