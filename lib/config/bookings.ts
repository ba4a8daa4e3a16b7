import type * as YAML from 'yaml';
import { GPUOwnerError } from '../errors.ts';
import { invalidValue, parseDuration } from '../platform/index.ts';
import { pairsOf, type Refuse, unknownKey } from './limits.ts';
import { parseNames, type UrgentUsers } from './urgent.ts';

/** The key `bookings` of a machine's file: the users and groups who may book GPUs, how many at a time, and how far ahead. */
export interface BookingRules extends UrgentUsers {
  gpus: number;
  aheadMs: number;
}

const KEYS = ['gpus', 'ahead', 'users', 'groups'] as const;
const EXAMPLE = '{ gpus: 4, ahead: 14d, groups: [staff] }';
const DEFAULT_AHEAD_MS = 14 * 24 * 3_600_000;

/** @throws ERR_CONFIGURATION */
export function parseBookings(yaml: typeof YAML, node: unknown, refuse: Refuse): BookingRules {
  const rules: BookingRules = {
    gpus: Number.POSITIVE_INFINITY,
    aheadMs: DEFAULT_AHEAD_MS,
    users: [],
    groups: [],
  };
  for (const { key, at, value } of pairsOf(yaml, node, 'bookings', EXAMPLE, refuse)) {
    const name = `bookings.${key}`;
    if (key === 'users' || key === 'groups') {
      rules[key] = parseNames(yaml, value, at, name, EXAMPLE, refuse);
      continue;
    }
    if (key !== 'gpus' && key !== 'ahead') throw unknownKey(key, 'bookings', KEYS, at, refuse);
    const given: unknown = yaml.isScalar(value) ? value.value : undefined;
    try {
      if (key === 'gpus') rules.gpus = parseGPUs(given, name);
      else rules.aheadMs = parseDuration(typeof given === 'number' ? String(given) : given, name);
    } catch (error) {
      if (error instanceof GPUOwnerError) throw refuse(value ?? at, error.message);
      throw error;
    }
  }
  return rules;
}

function parseGPUs(value: unknown, name: string): number {
  if (Number.isSafeInteger(value) && Number(value) >= 1) return Number(value);
  throw invalidValue(name, value, 'a number of GPUs', 'use 1, 2, …');
}
